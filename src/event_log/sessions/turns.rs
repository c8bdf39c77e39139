//! Order of a session's POSTs while some of them are held for the upstream.
//!
//! Owned here: the queue. Absent: the count of POSTs in flight (`post_slots.rs`), the reason why a
//! POST is held, and the error without a slot.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::event_log::sessions::Session;
use crate::event_log::sessions::post_slots::PostSlot;
use crate::protocol::error::ErrorCode;

/// Right to go before the session's later POSTs, which wait until this is dropped.
#[derive(Debug)]
pub struct Turn {
    _turn: tokio::sync::OwnedMutexGuard<()>,
    _held: HeldPost,
}

/// A turn that comes after all earlier turns.
pub type QueuedTurn = Pin<Box<dyn Future<Output = Turn> + Send>>;

/// A POST that is held, or waits behind one, counted for the life of this value.
#[derive(Debug)]
struct HeldPost(Arc<AtomicUsize>);

impl HeldPost {
    fn new(held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(1, Ordering::Release);
        Self(held.clone())
    }
}

impl Drop for HeldPost {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Session {
    /// Returns whether any POST of this session is held, or waits behind one. Costs one load.
    pub fn has_held(&self) -> bool {
        self.held_posts.load(Ordering::Acquire) > 0
    }

    /// Waits until no POST of this session is held, in the order of arrival.
    pub async fn wait_idle(&self) {
        if self.has_held() {
            drop(self.turns.lock().await);
        }
    }

    /// Waits until no POST of this session is held. The waiting POST takes a slot of `most`
    /// meanwhile.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn wait_turn(&self, most: usize) -> Result<(), ErrorCode> {
        if self.has_held() {
            let _slot = self.post_slots.take(most).ok_or(ErrorCode::TooManyHeld)?;
            let _held = HeldPost::new(&self.held_posts);
            drop(self.turns.lock().await);
        }
        Ok(())
    }

    /// Takes a slot of `most` for a POST to the upstream. If all are taken and no POST is held, the
    /// upstream may be busy with many at once. This waits up to `patience` for a free slot.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn take_slot(&self, most: usize, patience: Duration) -> Result<PostSlot, ErrorCode> {
        match self.post_slots.take(most) {
            Some(slot) => Ok(slot),
            None if self.has_held() => Err(ErrorCode::TooManyHeld),
            None => {
                let waiting = tokio::time::timeout(patience, self.post_slots.wait(most));
                waiting.await.map_err(|_| ErrorCode::TooManyHeld)
            }
        }
    }

    /// Takes a turn. Later POSTs wait behind it.
    pub async fn take_turn(self: Arc<Self>) -> Turn {
        let held = HeldPost::new(&self.held_posts);
        self.turn(held).await
    }

    /// Queues for a turn behind the POSTs that are held now, or returns `None` without such POSTs.
    pub fn queue_turn(self: &Arc<Self>) -> Option<QueuedTurn> {
        if !self.has_held() {
            return None;
        }
        let held = HeldPost::new(&self.held_posts);
        let mut turn: QueuedTurn = Box::pin(self.clone().turn(held));
        // The first poll enters the queue; the owner of the future polls again.
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(Box::pin(std::future::ready(turn))),
            Poll::Pending => Some(turn),
        }
    }

    async fn turn(self: Arc<Self>, held: HeldPost) -> Turn {
        Turn { _turn: self.turns.clone().lock_owned().await, _held: held }
    }
}
