//! Suggestions for misspelt names.

use api::{Event, Request};

use super::target::Target;
use crate::failure::Failure;

/// The least similarity of a suggestion; 1 means equal.
const ALIKE: f64 = 0.75;

impl Target {
    /// Adds a suggestion to a failure that is about the unknown instance `name`.
    pub fn suggest_instance(&self, failure: Failure, name: &str) -> Failure {
        suggest(failure, name, || match self.ask(&Request::List) {
            Ok(Event::Instances(instances)) => instances.into_iter().map(|instance| instance.name).collect(),
            _ => Vec::new(),
        })
    }

    /// The same for a host.
    pub fn suggest_host(&self, failure: Failure, name: &str) -> Failure {
        suggest(failure, name, || match self.ask(&Request::Hosts) {
            Ok(Event::Hosts(hosts)) => hosts.into_iter().map(|host| host.name).collect(),
            _ => Vec::new(),
        })
    }
}

/// `known` asks the coordinator for names; it returns none if the coordinator does not answer.
fn suggest(failure: Failure, name: &str, known: impl FnOnce() -> Vec<String>) -> Failure {
    if !failure.names(name) {
        return failure;
    }
    match nearest(name, &known()) {
        Some(near) => failure.with_remedy(&format!("did you mean `{near}`?")),
        None => failure,
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
    fn suggests_similar_names_only() {
        let known = ["server", "client", "h1"].map(str::to_owned);
        assert_eq!(nearest("servr", &known).map(String::as_str), Some("server"));
        assert_eq!(nearest("h4", &known), None);
        assert_eq!(nearest("client", &known), None);
    }
}
