//! The fallback carrier of datagrams, used where UDP is blocked.
//!
//! It carries the same datagrams, sealed and counted, over the TLS connection on which two nodes have agreed on keys.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::carrier::Source;
use crate::forwarder::Forwarder;
use crate::lock::lock;

/// The receiver of datagrams from all connections, until it is closed.
#[derive(Clone)]
pub(crate) struct Inlets(Arc<Mutex<Option<Forwarder>>>);

impl Inlets {
    pub fn new(forwarder: Forwarder) -> Self {
        Self(Arc::new(Mutex::new(Some(forwarder))))
    }

    pub fn of_session(&self, session: u32) -> Inlet {
        Inlet { all: self.clone(), session }
    }

    pub fn close(&self) {
        *lock(&self.0) = None;
    }
}

/// Takes the datagrams of one session that a connection has carried. It outlives its plane, but takes nothing then.
pub struct Inlet {
    all: Inlets,
    session: u32,
}

impl Inlet {
    /// Takes in `datagrams`, which stand one behind the other, all of `length` bytes but for a shorter last one.
    pub fn take(&self, datagrams: &mut [u8], length: usize) {
        if let Some(forwarder) = &mut *lock(&self.all.0) {
            // A connection spoils nothing.
            let _ = forwarder.take(Source::Connection(self.session), datagrams, length, Duration::ZERO);
        }
    }
}
