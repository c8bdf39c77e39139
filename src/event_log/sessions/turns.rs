//! The order of a session's POSTs while some of them are held for the upstream, and how many may be.
//!
//! Owned here: the queue, and the count of those in it. Absent: what a POST is held for, and the answer to one that finds no place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::Session;
use crate::protocol::error::ErrorCode;

/// The right to go before the session's later POSTs; they wait until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _turn: tokio::sync::OwnedMutexGuard<()>,
    _held: Held,
}

/// A turn that comes when those before it are over.
pub type QueuedTurn = Pin<Box<dyn Future<Output = Turn> + Send>>;

/// One POST that is held or waits to be, counted for as long as this lives.
#[derive(Debug)]
struct Held(Arc<AtomicUsize>);

impl Held {
    /// One more, where there are less than `most`.
    fn new(held: &Arc<AtomicUsize>, most: usize) -> Result<Self, ErrorCode> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        match held.fetch_update(Ordering::Release, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Self(held.clone())),
            Err(_) => Err(ErrorCode::TooManyHeld),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
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

    /// The same for a POST, which counts as held meanwhile: `most` may be.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn wait_turn(&self, most: usize) -> Result<(), ErrorCode> {
        if self.has_held() {
            let _held = Held::new(&self.held, most)?;
            drop(self.turns.lock().await);
        }
        Ok(())
    }

    /// Makes later POSTs wait, where less than `most` are held.
    ///
    /// # Errors
    /// `TooManyHeld`.
    pub async fn take_turn(self: Arc<Self>, most: usize) -> Result<Turn, ErrorCode> {
        let held = Held::new(&self.held, most)?;
        Ok(self.turn(held).await)
    }

    /// A turn behind what is held now, its place in the queue taken; `None` when nothing is held.
    ///
    /// # Errors
    /// `TooManyHeld`, where `most` are.
    pub fn queue_turn(self: &Arc<Self>, most: usize) -> Result<Option<QueuedTurn>, ErrorCode> {
        if !self.has_held() {
            return Ok(None);
        }
        let held = Held::new(&self.held, most)?;
        let mut turn: QueuedTurn = Box::pin(self.clone().turn(held));
        // The first poll enters the queue; whoever waits for it polls again.
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Ok(Some(Box::pin(std::future::ready(turn)))),
            Poll::Pending => Ok(Some(turn)),
        }
    }

    async fn turn(self: Arc<Self>, held: Held) -> Turn {
        Turn { _turn: self.turns.clone().lock_owned().await, _held: held }
    }
}
