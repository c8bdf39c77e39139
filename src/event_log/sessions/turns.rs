//! The order of a session's POSTs while some of them are held for the upstream, and how many may be on their way to it.
//!
//! Owned here: the queue, and the count of those that have a place. A POST without requests has one from before it is sent until the
//! upstream has answered it, whoever has its turn meanwhile. Absent: what a POST is held for, and the answer to one that finds no place.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::event_log::sessions::Session;
use crate::protocol::error::ErrorCode;

/// The right to go before the session's later POSTs; they wait until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _turn: tokio::sync::OwnedMutexGuard<()>,
    _held: Held,
}

/// A turn that comes when those before it are over.
pub type QueuedTurn = Pin<Box<dyn Future<Output = Turn> + Send>>;

/// A POST that is held or waits behind one that is, counted for as long as this lives.
#[derive(Debug)]
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(1, Ordering::Release);
        Self(held.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The place of a POST that waits for the upstream, taken for as long as this lives.
#[derive(Debug)]
pub struct PostSlot(Arc<PostSlots>);

impl Drop for PostSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

/// The places of one session.
#[derive(Debug, Default)]
pub(super) struct PostSlots {
    taken: AtomicUsize,
    freed: Notify,
}

impl PostSlots {
    /// Takes one of `most`, where one is free.
    fn take(self: &Arc<Self>, most: usize) -> Option<PostSlot> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| PostSlot(self.clone()))
    }

    /// Waits until one of `most` is free.
    async fn wait(self: &Arc<Self>, most: usize) -> PostSlot {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Before the look: one that is freed in between is told of.
            freed.as_mut().enable();
            if let Some(place) = self.take(most) {
                return place;
            }
            freed.await;
        }
    }
}

impl Session {
    /// Whether any POST of this session is held, or waits behind one that is. Costs one load.
    pub fn has_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Waits until nothing of this session is held, in the order of arrival.
    pub async fn wait_idle(&self) {
        if self.has_held() {
            drop(self.turns.lock().await);
        }
    }

    /// The same for a POST, which has a place meanwhile: one of `most`.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn wait_turn(&self, most: usize) -> Result<(), ErrorCode> {
        if self.has_held() {
            let _place = self.places.take(most).ok_or(ErrorCode::TooManyHeld)?;
            let _held = Held::new(&self.held);
            drop(self.turns.lock().await);
        }
        Ok(())
    }

    /// Takes one of `most` places for a POST that goes to the upstream. Where all are taken and nothing is held, the upstream may be
    /// answering many at once: one that becomes free within `patience` is waited for.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn take_slot(&self, most: usize, patience: Duration) -> Result<PostSlot, ErrorCode> {
        match self.places.take(most) {
            Some(place) => Ok(place),
            None if self.has_held() => Err(ErrorCode::TooManyHeld),
            None => {
                let waiting = tokio::time::timeout(patience, self.places.wait(most));
                waiting.await.map_err(|_| ErrorCode::TooManyHeld)
            }
        }
    }

    /// Makes later POSTs wait.
    pub async fn take_turn(self: Arc<Self>) -> Turn {
        let held = Held::new(&self.held);
        self.turn(held).await
    }

    /// A turn behind what is held now, its place in the queue taken; `None` when nothing is held.
    pub fn queue_turn(self: &Arc<Self>) -> Option<QueuedTurn> {
        if !self.has_held() {
            return None;
        }
        let held = Held::new(&self.held);
        let mut turn: QueuedTurn = Box::pin(self.clone().turn(held));
        // The first poll enters the queue; whoever waits for it polls again.
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(Box::pin(std::future::ready(turn))),
            Poll::Pending => Some(turn),
        }
    }

    async fn turn(self: Arc<Self>, held: Held) -> Turn {
        Turn { _turn: self.turns.clone().lock_owned().await, _held: held }
    }
}
