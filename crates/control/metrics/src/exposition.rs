use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Labels, which distinguish the series of a metric.
pub type Labels = Vec<(&'static str, String)>;

/// One label.
#[must_use]
pub fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// The values of metrics at one moment.
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// An exposition of metrics whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { registry: Registry::with_prefix(prefix) }
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.registry.register(name, help, gauge);
    }

    /// Adds gauges with labels.
    pub fn gauges(&mut self, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in of {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds counters with labels.
    pub fn counters(&mut self, name: &str, help: &str, of: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in of {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds a histogram.
    pub fn tally(&mut self, name: &str, help: &str, tally: &Tally) {
        self.registry.register(name, help, tally.0.clone());
    }

    /// The text in OpenMetrics format.
    ///
    /// # Errors
    /// If encoding fails.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Values counted in buckets, for a histogram.
pub struct Tally(Histogram);

impl Tally {
    /// An empty tally; `bounds` are the upper bounds of the buckets, in ascending order.
    #[must_use]
    pub fn new(bounds: &[f64]) -> Self {
        Self(Histogram::new(bounds.iter().copied()))
    }

    /// Adds a value.
    pub fn observe(&self, value: f64) {
        self.0.observe(value);
    }
}
