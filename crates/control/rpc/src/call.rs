//! Questions and answers over a channel: many in flight, answered in any order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::channel::{self, Closed, Inbox, Outbox};
use crate::tls::Stream;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection was lost before the answer. The question may have been executed.
    #[error("the connection was lost")]
    Closed,
    /// No answer came in time. The question may still be executed.
    #[error("there was no answer in time")]
    TimedOut,
}

impl From<Closed> for CallError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// Questions that wait for answers of type `A`. Clones share the state.
#[derive(Debug)]
pub struct Pending<A> {
    waiting: Arc<Mutex<Waiting<A>>>,
}

#[derive(Debug)]
struct Waiting<A> {
    next: u64,
    answers: HashMap<u64, oneshot::Sender<A>>,
}

impl<A> Clone for Pending<A> {
    fn clone(&self) -> Self {
        Self { waiting: self.waiting.clone() }
    }
}

impl<A> Default for Pending<A> {
    fn default() -> Self {
        Self { waiting: Arc::new(Mutex::new(Waiting { next: 1, answers: HashMap::new() })) }
    }
}

impl<A> Pending<A> {
    /// Sends a question with `send`, which gets the question's number, and waits for the answer until `limit`.
    ///
    /// # Errors
    /// If the connection is lost or the limit has passed.
    pub async fn ask(
        &self,
        limit: Duration,
        send: impl FnOnce(u64) -> Result<(), Closed>,
    ) -> Result<A, CallError> {
        let (number, answer) = self.enter();
        let answered = match send(number) {
            Ok(()) => timeout(limit, answer).await.map_err(|_| CallError::TimedOut),
            Err(closed) => Err(closed.into()),
        };
        if answered.is_err() {
            self.lock().answers.remove(&number);
        }
        answered?.map_err(|_| CallError::Closed)
    }

    fn enter(&self) -> (u64, oneshot::Receiver<A>) {
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.answers.insert(number, sender);
        (number, answer)
    }

    /// Delivers an answer to its waiter; an answer without a waiter is dropped.
    pub fn answer(&self, number: u64, answer: A) {
        if let Some(sender) = self.lock().answers.remove(&number) {
            let _ = sender.send(answer);
        }
    }

    /// Fails all waiters, because the connection is lost.
    pub fn close(&self) {
        self.lock().answers.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<A>> {
        self.waiting.lock().expect("no thread panics while it holds the lock")
    }
}

/// The asking end of a channel: sends questions `Q`, receives answers `A`.
#[derive(Debug)]
pub struct Caller<Q, A> {
    outbox: Outbox<(u64, Q)>,
    pending: Pending<A>,
    reading: AbortHandle,
}

impl<Q, A> Caller<Q, A>
where
    Q: Serialize,
    A: DeserializeOwned + Send + 'static,
{
    /// Creates a caller over `stream`.
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        let (outbox, inbox) = channel::open(stream);
        let pending = Pending::default();
        let reading = tokio::spawn(read_answers(inbox, pending.clone())).abort_handle();
        Self { outbox, pending, reading }
    }

    /// The answer to `question`.
    ///
    /// # Errors
    /// If the connection is lost or the limit has passed.
    pub async fn call(&self, question: Q, limit: Duration) -> Result<A, CallError> {
        self.pending.ask(limit, |number| self.outbox.send(&(number, question))).await
    }

    /// Whether the connection is lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.outbox.is_closed()
    }
}

impl<Q, A> Drop for Caller<Q, A> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read_answers<A: DeserializeOwned>(mut inbox: Inbox<(u64, A)>, pending: Pending<A>) {
    while let Ok(Some((number, answer))) = inbox.receive().await {
        pending.answer(number, answer);
    }
    drop(inbox);
    pending.close();
}

/// Answers the questions from `stream`, each in a task of its own, until the connection is lost.
pub async fn serve<Q, A, F>(stream: Stream, answer: impl Fn(Q) -> F)
where
    Q: DeserializeOwned,
    A: Serialize + Send + 'static,
    F: Future<Output = A> + Send + 'static,
{
    let (outbox, mut inbox) = channel::open::<(u64, A), (u64, Q)>(stream);
    while let Ok(Some((number, question))) = inbox.receive().await {
        let (outbox, answering) = (outbox.clone(), answer(question));
        tokio::spawn(async move {
            let _ = outbox.send(&(number, answering.await));
        });
    }
}
