//! Names that a user may have meant.

use api::{Event, Request};

use super::target::Target;
use crate::failure::Failure;

/// How alike a name must be to be suggested: 1 is the same.
const ALIKE: f64 = 0.75;

impl Target {
    /// `failure` with the instance or host that was perhaps meant by `name`, if it is about that
    /// and there is none of that name.
    pub fn suggest(&self, failure: Failure, name: &str) -> Failure {
        if !failure.names(name) {
            return failure;
        }
        match nearest(name, &self.names()) {
            Some(near) => failure.with_help(&format!("did you mean `{near}`?")),
            None => failure,
        }
    }

    /// All instances and hosts; none if the coordinator does not answer.
    fn names(&self) -> Vec<String> {
        let instances = match self.ask(&Request::List) {
            Ok(Event::Instances(instances)) => instances,
            _ => Vec::new(),
        };
        let hosts = match self.ask(&Request::Hosts) {
            Ok(Event::Hosts(hosts)) => hosts,
            _ => Vec::new(),
        };
        let instances = instances.into_iter().map(|instance| instance.name);
        instances.chain(hosts.into_iter().map(|host| host.name)).collect()
    }
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    if known.iter().any(|known| known == name) {
        return None;
    }
    let likeness = |known: &&String| strsim::jaro_winkler(name, known);
    let alike = known.iter().filter(|known| likeness(known) >= ALIKE);
    alike.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_alike_is_suggested() {
        let known = ["server", "client", "h1"].map(str::to_owned);
        assert_eq!(nearest("servr", &known).map(String::as_str), Some("server"));
        assert_eq!(nearest("h4", &known), None);
        assert_eq!(nearest("client", &known), None);
    }
}
