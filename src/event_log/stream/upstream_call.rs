//! The request of a stream at the upstream, as far as others than its pump need to know.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tokio::sync::Notify;

use crate::protocol::ids::SessionGeneration;

/// State of a stream's upstream connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UpstreamState {
    /// No connection: none was needed yet, or it ended.
    Absent,
    /// The request was, or will be, sent, and its response has not ended.
    Requested,
    /// An event stream of the upstream is read.
    Streaming,
}

/// The request of one stream at the upstream.
#[derive(Debug, Default)]
pub struct UpstreamCall {
    /// True while an upstream connection has the request, or has had it.
    is_sent: AtomicBool,
    /// True while the call waits for a server that accepts no connections.
    is_waiting: AtomicBool,
    /// Notified when one of both changes.
    changed: Notify,
    /// State of the upstream connection, an [`UpstreamState`].
    state: AtomicU8,
    /// Generation of the session in which the upstream has the request.
    session_generation: AtomicU32,
}

impl UpstreamCall {
    /// The request was handed to an upstream connection.
    pub fn set_sent(&self) {
        self.is_sent.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The upstream has refused the request without running it, and the request is about to be sent
    /// once more.
    pub fn set_unsent(&self) {
        self.is_sent.store(false, Ordering::Release);
    }

    /// Returns true if the request was handed to an upstream connection.
    pub fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }

    /// Waits until the request was handed to an upstream connection; for ever if it never is.
    pub async fn sent(&self) {
        self.wait_until(Self::is_sent).await;
    }

    /// Sets whether the call waits for a server that accepts no connections.
    pub fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
        if !is_waiting {
            self.changed.notify_waiters();
        }
    }

    /// Returns true if the call waits for a server that accepts no connections. Nothing of its
    /// request was sent then.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed) && !self.is_sent()
    }

    /// Waits until the call no longer waits for the server: its request was sent, or never will be.
    pub async fn reached(&self) {
        self.wait_until(|call| !call.is_waiting()).await;
    }

    /// Sets the state of the upstream connection.
    pub fn set_state(&self, state: UpstreamState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns true if an event stream of the upstream is read for this stream.
    pub fn is_streaming(&self) -> bool {
        self.state.load(Ordering::Relaxed) == UpstreamState::Streaming as u8
    }

    /// Returns true if an upstream connection has the request and has not ended.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != UpstreamState::Absent as u8 && self.is_sent()
    }

    /// Sets the generation of the session in which the upstream has the request.
    pub fn set_session_generation(&self, generation: SessionGeneration) {
        self.session_generation.store(generation.0, Ordering::Relaxed);
    }

    /// Returns the generation of the session in which the upstream has the request: the first, if
    /// the session was never opened again.
    pub fn session_generation(&self) -> SessionGeneration {
        SessionGeneration(self.session_generation.load(Ordering::Relaxed))
    }

    async fn wait_until(&self, is_met: impl Fn(&Self) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Enabled before the look: no change is missed in between.
            changed.as_mut().enable();
            if is_met(self) {
                return;
            }
            changed.await;
        }
    }
}
