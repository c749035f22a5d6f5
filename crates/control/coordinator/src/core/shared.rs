//! The state that the owner shares with all other tasks.

use std::ops::Deref;
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use store::StoreError;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::State;

/// The state, and whether the journal has failed.
pub struct Shared {
    pub(super) began: Instant,
    state: RwLock<State>,
    failure: Mutex<Option<StoreError>>,
    broken: Notify,
}

/// The state at one moment, which does not change as long as this lives. It is not for long.
pub struct View<'a>(RwLockReadGuard<'a, State>);

impl Deref for View<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl Shared {
    pub(super) fn new(began: Instant, state: State) -> Self {
        Self { began, state: RwLock::new(state), failure: Mutex::new(None), broken: Notify::new() }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn view(&self) -> View<'_> {
        View(self.state.read().expect("a command has panicked"))
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("a command has panicked")
    }

    pub(super) fn break_off(&self, error: StoreError) {
        *self.failure.lock().expect("it is held for an assignment") = Some(error);
        self.broken.notify_one();
    }

    /// Waits until the journal has failed.
    pub(super) async fn broken(&self) -> StoreError {
        loop {
            self.broken.notified().await;
            if let Some(error) = self.failure.lock().expect("it is held for an assignment").take() {
                return error;
            }
        }
    }
}
