//! One server with its channel, from its start to its end. It serves one session, several of one
//! caller, or requests without sessions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use tracing::info;

use super::caller::Caller;
use super::connection::{Connection, End, Users};
use super::limits::Limits;
use super::link::{Link, Program, ProgramEnd, ShownStderr};
use super::metrics::EndReason;
use crate::clock;
use crate::protocol::error::{Details, Failure};

/// Time to read the remaining output of a program that has ended. Also the time for a program to
/// end after its output.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Number of the next server.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A server. It lives as long as its channel.
pub(super) struct Server {
    pub(super) number: u64,
    pub(super) connection: Arc<Connection>,
    /// Caller that the server was started for, or `None` for the proxy itself.
    pub(super) caller: Option<Arc<Caller>>,
    program: Box<dyn Program>,
    limits: Limits,
    reason: OnceLock<EndReason>,
    /// End of the program. `None` inside if the program still ran some time after the end of the
    /// channel.
    program_end: SetOnce<Option<ProgramEnd>>,
    pub(super) began: Instant,
}

impl Server {
    /// Begins with an open channel, and watches it on the caller's runtime. `on_end` is called once
    /// when the channel has ended, before any response on it ends. `on_gone` is called when no
    /// process of the program is left.
    pub(super) fn begin(
        users: Users,
        link: Link,
        caller: Option<Arc<Caller>>,
        limits: Limits,
        on_end: impl FnOnce(&Server) + Send + 'static,
        on_gone: impl FnOnce(&Server) + Send + 'static,
    ) -> Arc<Self> {
        let Link { input, output, runtime, program } = link;
        let (connection, reader) = Connection::start(users, limits.clone(), &runtime, input, output);
        limits.metrics.observe_open();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let began = clock::now();
        let (reason, program_end) = (OnceLock::new(), SetOnce::new());
        let server = Arc::new(Self { number, connection, caller, program, limits, reason, program_end, began });
        tokio::spawn(server.clone().watch(reader, on_end, on_gone));
        server
    }

    /// Ends the server: closes its input, and ends its program if that does not end by itself.
    pub(super) fn end(&self, reason: EndReason) {
        let _ = self.reason.set(reason);
        self.connection.end(End::Closed);
    }

    /// Returns the stderr of the program so far, as far as it may be shown.
    pub(super) fn stderr(&self) -> ShownStderr {
        self.program.stderr()
    }

    /// Waits for the end of the program after the end of its channel. Returns `None` if the program
    /// has not ended in the time allowed.
    pub(super) async fn program_end(&self) -> Option<&ProgramEnd> {
        self.program_end.wait().await.as_ref()
    }

    /// Returns the time since which the server is idle, or `None` while a call runs or a client
    /// listens. A GET counts for an hour.
    pub(super) fn idle_since(&self, now: Instant) -> Option<Instant> {
        self.unused_since().filter(|_| !self.connection.is_listened_to(now))
    }

    /// Returns the time of the last use, or `None` while a call runs. A GET does not count, because
    /// its client may have left long ago.
    pub(super) fn unused_since(&self) -> Option<Instant> {
        let activity = self.connection.activity();
        if activity.is_busy { None } else { Some(activity.last_use.unwrap_or(self.began)) }
    }

    async fn watch(
        self: Arc<Self>,
        reader: JoinHandle<()>,
        on_end: impl FnOnce(&Server) + Send,
        on_gone: impl FnOnce(&Server) + Send,
    ) {
        let mut ended = self.program.ended();
        let mut program_end = None;
        tokio::select! {
            _ = self.connection.ended() => {}
            end = &mut ended => {
                // The pipe may still hold its last messages.
                let _ = tokio::time::timeout(LAST_WORDS, self.connection.ended()).await;
                program_end = Some(end);
            }
        }
        on_end(&self);
        self.connection.end(End::Lost);
        self.program.end();
        let is_closed = self.connection.ending() == Some(End::Closed);
        if program_end.is_none() {
            // After its input was closed, a server may complete its calls, in the time allowed for
            // its end.
            program_end = match is_closed {
                true => Some(ended.await),
                false => tokio::time::timeout(LAST_WORDS, ended).await.ok(),
            };
        }
        let reason = *self.reason.get_or_init(|| EndReason::Lost);
        if reason == EndReason::Lost {
            let how = program_end.as_ref().map_or_else(|| "its output was closed".to_owned(), ProgramEnd::describe);
            info!(how, "a server has ended");
        }
        let _ = self.program_end.set(program_end);
        self.fail_calls();
        self.limits.metrics.observe_end(reason);
        self.program.gone().await;
        // Only a process that has left the group can still hold the pipe.
        reader.abort();
        on_gone(&self);
    }

    /// Ends each response that the server still owed with an error.
    fn fail_calls(&self) {
        let failure = Failure::after_send(self.program.lost_code());
        for (queue, subject, ids) in self.connection.take_pending() {
            if !ids.is_empty() {
                queue.set_lost(failure.code);
            }
            for id in &ids {
                let details = Details { text: "", members: self.end_members() };
                queue.force(failure.to_message_with(Some(id), subject, details).into());
            }
            queue.end();
        }
    }

    /// Returns the end of the program as members of an error.
    fn end_members(&self) -> Vec<(&'static str, Value)> {
        let end = self.program_end.get().and_then(Option::as_ref);
        let members = end.into_iter().flat_map(|end| [("exitCode", end.code), ("signal", end.signal)]);
        members.filter_map(|(name, number)| Some((name, number?.into()))).collect()
    }
}
