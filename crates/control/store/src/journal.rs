//! The changes that become durable while the coordinator runs, and their order.

use std::future::Future;
use std::pin::Pin;
use std::thread::{self, JoinHandle};

use fabric::{Epoch, Vid};
use moves::journal::Record;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::{DeviceKey, Store, StoreError};

/// The notice that something is done, or has failed.
pub type Notice<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// The coordinator's journal: changes become durable in the order of the calls of [`Journal::append`].
///
/// The caller performs the consequences of a change only after the notice of that change. After a failure the caller appends nothing
/// more: only reading the journal again shows whether the change is durable.
pub trait Journal: Send + Sync + 'static {
    /// Checks that there is room for a new operation. Changes that complete an operation in progress have a reserve.
    fn ready(&self) -> Notice<()>;

    /// Makes `change` durable, as a whole or not at all.
    fn append(&self, change: Change) -> Notice<()>;
}

/// A change of the coordinator's durable state. Each is one durable transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of instances and moves.
    Record(Record),
    /// A VID is given out: the next one is another.
    VidGiven(Vid),
    /// A host accepts no instances any more, or does again.
    Drained {
        /// The host.
        host: String,
        /// Which of both.
        is_drained: bool,
    },
    /// A new plan of the overlay.
    Network(Value),
    /// Devices are attached, moved or detached.
    Devices {
        /// The device that is forgotten.
        remove: Option<DeviceKey>,
        /// The device that is added.
        insert: Option<(DeviceKey, Value)>,
        /// The epoch that was given last.
        epoch: Epoch,
    },
    /// The state of the loop that plans by itself.
    Loop(Value),
    /// The plan that is being carried out, or the result of the last one.
    Plan(Value),
    /// Join tokens change, and a host is removed or joins again.
    Members {
        /// Tokens by number; without a value they are forgotten.
        tokens: Vec<(u64, Option<Value>)>,
        /// The record of a removed host.
        removed: Option<(String, Value)>,
    },
}

/// An encoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub(crate) Vec<u8>);

impl Value {
    /// The encoding of `value`.
    ///
    /// # Panics
    /// If its type has values that no byte string can stand for, as a sequence of unknown length.
    #[must_use]
    pub fn of(value: &impl Serialize) -> Self {
        Self(postcard::to_stdvec(value).expect("the type can be encoded"))
    }
}

impl From<Record> for Change {
    fn from(record: Record) -> Self {
        Self::Record(record)
    }
}

/// A [`Store`] with a thread of its own for writing, so that a sync of the disk blocks no other thread.
pub struct StoreJournal {
    orders: Option<mpsc::UnboundedSender<(Order, Done)>>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for StoreJournal {
    /// Closes the store when the present write is complete.
    fn drop(&mut self) {
        self.orders = None;
        let _panicked = self.writer.take().map(JoinHandle::join);
    }
}

/// Where the notice of an order goes.
type Done = oneshot::Sender<Result<(), StoreError>>;

enum Order {
    Ready,
    Append(Box<Change>),
}

impl StoreJournal {
    /// The journal that ends in `store`.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(store: Store) -> Result<Self, StoreError> {
        let (orders, mut received) = mpsc::unbounded_channel();
        let write = move || {
            while let Some((order, notice)) = received.blocking_recv() {
                let done = match order {
                    Order::Ready => store.ready(),
                    Order::Append(change) => store.apply(&change),
                };
                // The coordinator may have ended meanwhile.
                let _ = oneshot::Sender::send(notice, done);
            }
        };
        let writer =
            thread::Builder::new().name("journal".into()).spawn(write).map_err(StoreError::NoThread)?;
        Ok(Self { orders: Some(orders), writer: Some(writer) })
    }

    fn order(&self, order: Order) -> Notice<()> {
        let (notice, done) = oneshot::channel();
        if let Some(orders) = &self.orders {
            // If the order is not accepted, the notice is never given.
            let _ = orders.send((order, notice));
        }
        Box::pin(async move { done.await.unwrap_or(Err(StoreError::Gone)) })
    }
}

impl Journal for StoreJournal {
    fn ready(&self) -> Notice<()> {
        self.order(Order::Ready)
    }

    fn append(&self, change: Change) -> Notice<()> {
        self.order(Order::Append(Box::new(change)))
    }
}
