//! Answers questions about the overlay on this host.

use api::{NetFlow, NetHostState};
use rpc::Outbox;
use rpc::net::Question;
use rpc::wire::{self, Answer, reason};

use super::joined::Membership;
use super::{available, interface, state};

/// Answers the coordinator's question with this `number`.
pub async fn answer(
    membership: &Membership,
    number: u64,
    question: Question,
    outbox: &Outbox<wire::FromNode>,
) {
    let answer = answer_now(membership, question).await;
    // After a lost connection, the coordinator repeats its question if it still needs the answer.
    let _ = outbox.send(&wire::FromNode::Answer { number, answer });
}

/// The state of the overlay on this host, and its recent traffic by pairs of MACs.
pub async fn look(membership: &Membership, window_s: u64) -> (NetHostState, Vec<NetFlow>) {
    match &*membership.lock().await {
        Some(joined) => (state::of(joined), state::flows(joined, window_s)),
        None => Default::default(),
    }
}

/// Answers a question of the coordinator about the overlay.
async fn answer_now(membership: &Membership, question: Question) -> Result<Answer, String> {
    let mut joined = membership.lock().await;
    let Some(joined) = &mut *joined else {
        return match question {
            Question::State => Ok(Answer::Net(Box::default())),
            Question::Macs { .. } | Question::Find { .. } => Ok(Answer::Macs(Vec::new())),
            Question::Matrix { .. } => Ok(Answer::Flows(Vec::new())),
            _ => Err(not_joined()),
        };
    };
    let done = match question {
        Question::State => return Ok(Answer::Net(Box::new(state::of(joined)))),
        Question::Macs { first } => return Ok(Answer::Macs(state::macs(joined, first))),
        Question::Find { mac } => return Ok(Answer::Macs(state::find(joined, mac))),
        Question::Matrix { window_s } => return Ok(Answer::Flows(state::flows(joined, window_s))),
        Question::Available => return available::devices(joined).await.map(Answer::Available),
        Question::Look { device, netns } => {
            return interface::look(&device, netns.as_deref()).await.map(Answer::Tap);
        }
        Question::UpToDate => Ok(()),
        Question::Attach(device) => joined.devices.attach(device).await,
        Question::Prepare { device, epoch } => joined.devices.prepare(device, epoch).await,
        Question::Pause { mac } => joined.devices.pause(mac),
        Question::Commit(entry) => joined.devices.commit(entry),
        Question::Resume { mac } => joined.devices.resume(mac),
    };
    done.map(|()| Answer::Done)
}

/// The answer to a question about the overlay before this host joins it.
fn not_joined() -> String {
    reason("this host is not part of the overlay", "`transhume net layout` adds all hosts that are up")
}
