//! Selects the coordinator for a command.

use std::path::{Path, PathBuf};

use api::{Client, ClientError, Event, Request};
use clap::Args;
use lab::LabName;
use lab::layout::Layout;

use super::lasting;
use crate::failure::{Failure, Result};

/// The heading of these options in the help.
const GLOBAL: &str = "Global options";

/// Selects the coordinator. The default is the machine's own, if it listens, else that of the
/// only lab.
#[derive(Args)]
pub struct Target {
    /// The coordinator's socket [default: /run/transhume/coordinator.sock, or that of the only lab]
    #[arg(long, value_name = "PATH", env = api::SOCKET_VARIABLE, hide_env_values = true, global = true, help_heading = GLOBAL)]
    socket: Option<PathBuf>,
    /// The lab to use, create or remove
    #[arg(long, value_name = "NAME", global = true, help_heading = GLOBAL)]
    lab: Option<LabName>,
}

impl Target {
    /// The coordinator's socket.
    pub fn socket(&self) -> PathBuf {
        match (&self.lab, &self.socket) {
            (Some(lab), _) => Layout::of(lab).socket(),
            (None, Some(socket)) => socket.clone(),
            (None, None) => default_socket(),
        }
    }

    /// The listening socket of a coordinator.
    pub fn socket_to_listen_on(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| api::DEFAULT_SOCKET.into())
    }

    /// The selected lab, else the only one, else the default name.
    pub fn lab(&self) -> Result<LabName> {
        match (&self.lab, &lab::Lab::names()[..]) {
            (None, [only]) => Ok(only.clone()),
            (None, [_, _, ..]) => Err(several_labs()),
            _ => self.new_lab(),
        }
    }

    /// Whether a lab was selected.
    pub fn names_a_lab(&self) -> bool {
        self.lab.is_some()
    }

    /// The lab to create: the selected one, or the default name.
    pub fn new_lab(&self) -> Result<LabName> {
        match &self.lab {
            Some(lab) => Ok(lab.clone()),
            None => Ok(LabName::DEFAULT.parse()?),
        }
    }

    /// The lab of the demo: the selected one, or the demo's own.
    pub fn demo_lab(&self) -> Result<LabName> {
        match &self.lab {
            Some(lab) => Ok(lab.clone()),
            None => Ok(LabName::DEMO.parse()?),
        }
    }

    /// The lab to remove: the selected one, or the default name. Other labs are only removed by name.
    pub fn lab_to_remove(&self) -> Result<LabName> {
        match &self.lab {
            Some(lab) => Ok(lab.clone()),
            None => unnamed_to_remove(self.new_lab()?, &lab::Lab::names()),
        }
    }

    /// Sends `request` and returns the connection for its events.
    pub fn send(&self, request: &Request) -> Result<Client> {
        Client::send(&self.socket(), request).map_err(|error| self.explain(error))
    }

    /// Sends `request` and returns the last event of the answer.
    pub fn ask(&self, request: &Request) -> Result<Event> {
        let mut client = self.send(request)?;
        loop {
            let event = client.next_event()?;
            if event.is_last() {
                return succeeded(event);
            }
            lasting::tell(&event);
        }
    }

    /// Like [`Self::ask`], but waits for the coordinator if the connection is lost before the answer.
    pub fn ask_lasting(&self, request: &Request, errand: &str) -> Result<Event> {
        let socket = self.socket();
        let client = match Client::send(&socket, request) {
            Err(error) if error.is_break() => lasting::send_again(&socket, request, errand)?,
            sent => sent.map_err(|error| self.explain(error))?,
        };
        succeeded(lasting::last_event_of(client, &socket, request, errand)?)
    }

    /// Names the lab selection as the cause if no coordinator listens.
    fn explain(&self, error: ClientError) -> Failure {
        let labs = lab::Lab::names();
        match (&error, &self.lab, &self.socket) {
            (ClientError::NotRunning(_), Some(lab), _) if !labs.contains(lab) => {
                lab::Error::NoSuchLab { name: lab.to_string() }.into()
            }
            (ClientError::NotRunning(_), None, None) if labs.len() > 1 => several_labs(),
            _ => error.into(),
        }
    }
}

fn unnamed_to_remove(default: LabName, present: &[LabName]) -> Result<LabName> {
    match present {
        [other, ..] if !present.contains(&default) => Err(Failure::new(
            format!("no lab `{default}` exists, but {}", listed(present)),
            format!("pass its name: `transhume lab down --lab {other}`"),
        )),
        _ => Ok(default),
    }
}

fn several_labs() -> Failure {
    let names = listed(&lab::Lab::names());
    Failure::new(format!("several labs exist: {names}"), "select one with `--lab`")
}

fn listed(labs: &[LabName]) -> String {
    labs.iter().map(LabName::to_string).collect::<Vec<_>>().join(", ")
}

fn succeeded(event: Event) -> Result<Event> {
    match event {
        Event::Failed(failure) => Err(failure.into()),
        event => Ok(event),
    }
}

fn default_socket() -> PathBuf {
    let machine = Path::new(api::DEFAULT_SOCKET);
    if machine.exists() {
        return machine.to_owned();
    }
    only_lab().map_or_else(|| machine.to_owned(), |lab| Layout::of(&lab).socket())
}

fn only_lab() -> Option<LabName> {
    let mut names = lab::Lab::names().into_iter();
    names.next().filter(|_| names.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_lab_is_removed_without_its_name() {
        let lab = |name: &str| name.parse::<LabName>().unwrap();
        let removed = |present: &[LabName]| unnamed_to_remove(lab("lab"), present);
        assert_eq!(removed(&[]).unwrap(), lab("lab"));
        assert_eq!(removed(&[lab("lab"), lab("other")]).unwrap(), lab("lab"));
        let refused = removed(&[lab("other")]).unwrap_err().to_string();
        assert!(refused.contains("`transhume lab down --lab other`"), "{refused}");
    }
}
