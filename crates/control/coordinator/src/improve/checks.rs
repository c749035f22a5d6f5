//! Dry runs of the moves of a plan: an instance that its engine refuses to move counts as pinned.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric::Vid;
use moves::HostName;
use tokio::task::JoinSet;

use crate::core::Cluster;
use crate::moving;

/// The most dry runs for one request. Moves of a larger plan are checked when they are made.
const MOST: usize = 64;

/// Dry runs at the same time.
const AT_A_TIME: usize = 8;

/// A move of a plan.
#[derive(Clone, Debug)]
pub struct Mover {
    pub vid: Vid,
    pub name: String,
    pub to: HostName,
}

/// The moves that have been checked for one request.
#[derive(Default)]
pub struct Checks {
    done: BTreeSet<(Vid, HostName)>,
}

impl Checks {
    /// Checks those of the moves that have not been checked. Returns the instances whose moves are refused, each with the reason. The
    /// cool-down is no reason here: the plan knows it already.
    pub async fn refused(&mut self, cluster: &Arc<Cluster>, movers: &[Mover]) -> Vec<(Vid, String)> {
        let left = MOST.saturating_sub(self.done.len());
        let new = movers.iter().filter(|mover| !self.done.contains(&(mover.vid, mover.to.clone())));
        let new: Vec<Mover> = new.take(left).cloned().collect();
        self.done.extend(new.iter().map(|mover| (mover.vid, mover.to.clone())));
        let (mut waiting, mut checking, mut refused) = (new.into_iter(), JoinSet::new(), Vec::new());
        loop {
            while checking.len() < AT_A_TIME
                && let Some(mover) = waiting.next()
            {
                checking.spawn(reason(cluster.clone(), mover));
            }
            match checking.join_next().await {
                Some(Ok(found)) => refused.extend(found),
                // A check that has panicked has printed a message; the move itself will say more.
                Some(Err(_)) => {}
                None => break,
            }
        }
        refused.sort();
        refused
    }
}

/// Why the instance cannot make its move, if so.
async fn reason(cluster: Arc<Cluster>, Mover { vid, name, to }: Mover) -> Option<(Vid, String)> {
    let found = moving::check(&cluster, &name, &to, true).await;
    let first = found.into_iter().next()?;
    Some((vid, format!("it cannot move to {to}: {}", first.message)))
}
