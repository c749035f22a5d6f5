//! Answers the coordinator's questions about instances.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine_api::Intent;
use fabric::Vid;
use rpc::wire::{Answer, Question};
use tokio::task::spawn_blocking;

use crate::instances::{Instances, Outputs, Starter};
use crate::moves::saved;

/// The components that answer.
pub struct Questions {
    starter: Starter,
    outputs: Outputs,
    instances: Arc<Instances>,
}

impl Questions {
    pub fn new(starter: Starter, outputs: Outputs, instances: Arc<Instances>) -> Self {
        Self { starter, outputs, instances }
    }

    /// The answer to `question`.
    ///
    /// # Errors
    /// Why it cannot be answered, in words.
    pub async fn answer(&self, question: Question) -> Result<Answer, String> {
        match question {
            Question::Start { vid, blueprint, followed } => {
                self.starter.start(vid, &blueprint, followed).await
            }
            Question::Output { vid, from, follower } => self.outputs.read(vid, from, follower).await,
            Question::Unfollow { vid, follower } => {
                self.outputs.unfollow(vid, follower);
                Ok(Answer::Done)
            }
            Question::Kill { vid, grace_s } => {
                self.instances.kill(vid, Duration::from_secs(grace_s)).await.map(|()| Answer::Done)
            }
            Question::DiscardImages { vid, images } => {
                let discarding = spawn_blocking(move || saved::discard(Path::new(&images), vid));
                discarding.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                Ok(Answer::Done)
            }
            Question::Weigh { vid } => self.weigh(vid).await,
        }
    }

    /// Tells the coordinator what it does not ask for: how this host runs virtual machines.
    pub fn introduce(&self) {
        self.instances.report_machines();
    }

    async fn weigh(&self, vid: Vid) -> Result<Answer, String> {
        let live = self.instances.get(vid).ok_or("the instance is not on this host")?;
        let report = self.instances.look(&live, Intent { leaves: false, is_saved: false }).await;
        report.map(|report| Answer::Weight { bytes: report.needs.memory }).map_err(|error| error.to_string())
    }
}
