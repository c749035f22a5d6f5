use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// What tells the series of a metric apart.
pub type Labels = Vec<(&'static str, String)>;

/// One label.
#[must_use]
pub fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// Metrics as they are at one moment.
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// Of metrics whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { registry: Registry::with_prefix(prefix) }
    }

    /// A value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.registry.register(name, help, gauge);
    }

    /// Values that go up and down.
    pub fn gauges(&mut self, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in of {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// Values that only go up.
    pub fn counters(&mut self, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in of {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// How often values were how large.
    pub fn tally(&mut self, name: &str, help: &str, tally: &Tally) {
        self.registry.register(name, help, tally.0.clone());
    }

    /// The text.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Values that are counted by their size, for a histogram.
pub struct Tally(Histogram);

impl Tally {
    /// None yet; `bounds` are the upper ones of the histogram's buckets, in ascending order.
    #[must_use]
    pub fn new(bounds: &[f64]) -> Self {
        Self(Histogram::new(bounds.iter().copied()))
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        self.0.observe(value);
    }
}
