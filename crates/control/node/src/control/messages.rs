//! Passes the coordinator's messages to the components that they are for.

use std::sync::Arc;

use moves::node::Input;
use moves::protocol::{Directive, Report, ToCoordinator, ToNode};
use rpc::Outbox;
use rpc::wire::{FromCoordinator, FromNode};

use super::hosts::Hosts;
use super::processes::Processes;
use super::questions::Questions;
use crate::agent::Agent;
use crate::instances::ThisHost;
use crate::names::Names;
use crate::network::Network;

/// The receivers of messages.
pub struct Messages {
    agent: Arc<Agent>,
    host: Arc<ThisHost>,
    network: Arc<Network>,
    hosts: Hosts,
    processes: Processes,
    names: Names,
    questions: Arc<Questions>,
}

impl Messages {
    pub fn new(
        agent: Arc<Agent>,
        host: Arc<ThisHost>,
        network: Arc<Network>,
        hosts: Hosts,
        processes: Processes,
        names: Names,
        questions: Questions,
    ) -> Self {
        Self { agent, host, network, hosts, processes, names, questions: Arc::new(questions) }
    }

    /// Passes a message on. Answers go to `outbox`.
    pub fn take(&self, message: FromCoordinator, outbox: &Outbox<FromNode>) {
        match message {
            FromCoordinator::Refused { .. } | FromCoordinator::Dismissed { .. } => {}
            FromCoordinator::Removed { number, removed } => {
                self.hosts.set_removed(removed, number, outbox.clone());
            }
            FromCoordinator::Hosts(hosts) => self.hosts.set(hosts),
            FromCoordinator::Moves(message) => match self.refusal(&message) {
                Some(refusal) => self.agent.uplink().send(&FromNode::Moves(refusal)),
                None => self.agent.input(Input::Message(message)),
            },
            FromCoordinator::Moved(moved) => self.hosts.note_moved(moved),
            FromCoordinator::Names(change) => self.names.change(change),
            FromCoordinator::Directory { process, number, answer } => {
                self.processes.answer(process, number, answer);
            }
            FromCoordinator::Session { vid, server, id, message } => {
                self.processes.tell_session(vid, server, id, message);
            }
            FromCoordinator::Net(order) => self.network.take_order(order),
            FromCoordinator::AskNet { number, question } => {
                self.network.take_question(number, question, outbox.clone());
            }
            FromCoordinator::Ask { number, question } => {
                let (questions, outbox) = (self.questions.clone(), outbox.clone());
                tokio::spawn(async move {
                    let answer = questions.answer(question).await;
                    let _ = outbox.send(&FromNode::Answer { number, answer });
                });
            }
        }
    }

    /// Reports to a coordinator that is connected now, and may have lost what it knew, the processes and the abilities of this host.
    pub fn report_again(&self) {
        self.processes.report_again();
        self.questions.introduce();
    }

    /// The refusal of an arrival whose record has no room: the record precedes everything else.
    fn refusal(&self, message: &ToNode) -> Option<ToCoordinator> {
        let ToNode::Move { id, vid, directive: Directive::Prepare { .. } } = message else { return None };
        if self.agent.entry(*vid).is_some() {
            return None;
        }
        let reason = self.host.check_room().err()?;
        let report = Report::Refused { reasons: vec![reason] };
        Some(ToCoordinator::Move { id: *id, vid: *vid, report })
    }
}
