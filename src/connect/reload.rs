//! Replacement of the program behind `--` when its files change.
//!
//! Owned here: the order of a replacement. No request is sent any more, and those that run get a
//! moment. The program ends, and its session is opened again. The core compares the lists then. A
//! program that does not start is the error of each call until the next change. Absent: the end and
//! the start of processes (`channel/`, `child/`), and the session's handshake (`upstream/revival`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::{info, warn};

use super::far::{FarState, Reply};
use super::input::HostRequest;
use super::pipe::Pipe;
use super::program::Phase;
use super::watch::Watched;
use super::words;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::RequestId;
use crate::random;

/// Time for running requests before the program is replaced.
const CALLS_TIME: Duration = Duration::from_secs(5);

impl Pipe {
    /// Replaces the program after each change of its files.
    pub(super) async fn replace_on_change(self: Arc<Self>, mut watched: Watched) {
        watched.begin().await;
        watched.changed().await;
        loop {
            tokio::select! {
                // A later change ends a start, too.
                () = watched.changed() => {}
                () = self.replace_program() => watched.changed().await,
            }
        }
    }

    async fn replace_program(&self) {
        info!("files have changed: the program is replaced");
        self.program.begin_replacement();
        let _ = tokio::time::timeout(CALLS_TIME, self.running.idle()).await;
        self.far.replace_server().await;
        if matches!(*self.far.state().borrow(), FarState::Refused(_)) {
            self.program.end_replacement(Phase::Steady);
            return self.open_again().await;
        }
        let phase = match self.reopen().await {
            Ok(()) => Phase::Steady,
            Err(error) => {
                warn!("the changed program has not started: the next change starts it again");
                Phase::Failed(error)
            }
        };
        self.program.end_replacement(phase);
    }

    /// Opens the session again, if there is one: a `ping` in it starts the program.
    ///
    /// # Errors
    /// The error of the start.
    async fn reopen(&self) -> Result<(), Bytes> {
        let state = self.far.state().borrow().clone();
        match state {
            FarState::Open | FarState::Ready => {}
            // Its opening is tried again at once.
            FarState::Absent | FarState::Refused(_) => return Ok(()),
        }
        let id = RequestId::String(format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes())).into());
        let ping = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#, id.to_json());
        match self.far.post(ping.into()).await.0 {
            Reply::Messages(body) => {
                self.read_stream(body).await;
                Ok(())
            }
            Reply::Whole { status, .. } if status.is_success() => Ok(()),
            Reply::Whole { body, .. } => Err(words::with_last_lines(body)),
        }
    }

    /// Waits until the program is there. A request of a session that is being opened does not wait
    /// here.
    ///
    /// # Errors
    /// The response, if the program has failed to start, or does not start in time.
    pub(super) async fn wait_for_program(&self, request: &HostRequest) -> Result<(), Bytes> {
        if !self.program.is_watched() {
            return Ok(());
        }
        if tokio::time::timeout(self.settings.connect.wait, self.program.settled()).await.is_err() {
            return Err(request.failed(Failure::before_run(ErrorCode::Unreachable)));
        }
        self.program.failure(&request.id).map_or(Ok(()), Err)
    }
}
