//! Reachability of the server, found from connection attempts, for readiness.
//!
//! Owned here: the state, the check that a readiness request starts, the notice to waiting calls,
//! and the log lines of a change. Every attempt counts, including attempts of calls. Invariant: one
//! state for all threads, so that every listener reports the same. Absent: how a connection is made
//! ([`super::connect`]), and the other conditions of readiness.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedMutexGuard};
use tracing::{info, warn};

use crate::clock;
use crate::sync;

/// Minimum time between the beginnings of two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait of a readiness request for a running check. Probes and balancers give up after a
/// second. A server that drops SYN packets must not make its sidecar look dead.
const CHECK_WAIT: Duration = Duration::from_millis(500);

/// Time without a response before the log has a line about a server that has never responded.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// Reachability of one server.
pub(in crate::upstream) struct Reach {
    /// Server address for the log.
    address: String,
    unready_after: Duration,
    state: Mutex<State>,
    /// True once the server has responded to a request, or the log has reported its silence.
    is_heard: AtomicBool,
    /// Notified of the first connection that is accepted after others failed.
    accepted: Notify,
    /// Held by the waiting call that tries to connect.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Beginning of the last check; locked while a check runs.
    checked: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

#[derive(Default)]
struct State {
    reachability: Reachability,
    /// Last accepted connection.
    accepted: Option<Instant>,
    /// Beginning of the first failed attempt since then.
    failing_since: Option<Instant>,
    /// True once the log has reported a server that was never reached.
    has_reported: bool,
}

/// State of a server's reachability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// No connection was accepted yet.
    #[default]
    Unknown,
    /// The server accepts connections.
    Accepting,
    /// The server accepted connections before, and has not for `upstream.unready_secs`.
    Lost,
}

impl Reach {
    /// Creates the reachability of the server at `address`, which is lost once connections have
    /// failed for `unready_after`.
    pub(in crate::upstream) fn new(address: String, unready_after: Duration) -> Self {
        Self {
            address,
            unready_after,
            state: Mutex::default(),
            is_heard: AtomicBool::default(),
            accepted: Notify::new(),
            turn: Arc::default(),
            checked: Arc::default(),
        }
    }

    /// Returns true if the last attempts failed.
    pub(in crate::upstream) fn is_failing(&self) -> bool {
        self.lock().failing_since.is_some()
    }

    /// Waits for the next connection that is accepted after a failure, once the future is enabled
    /// or first polled. Waiting calls are notified in the order of their registration.
    pub(in crate::upstream) fn accepted(&self) -> Notified<'_> {
        self.accepted.notified()
    }

    /// Waits for the turn to try to connect. A single waiting call has it at a time, in the order
    /// of their requests for it.
    pub(in crate::upstream) async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Returns the state after `check`, which makes a connection and records its outcome. Returns
    /// the last state if the last check began less than a second ago. Waits half a second at most;
    /// a longer check continues.
    pub(in crate::upstream) async fn check<F>(self: &Arc<Self>, check: impl FnOnce(Reachability) -> F) -> Reachability
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Ok(mut checked) = self.checked.clone().try_lock_owned() {
            let now = clock::now();
            if checked.is_some_and(|began| now.saturating_duration_since(began) < CHECK_INTERVAL) {
                return self.reachability();
            }
            *checked = Some(now);
            let checking = check(self.reachability());
            tokio::spawn(async move {
                checking.await;
                drop(checked);
            });
        }
        let _ = tokio::time::timeout(CHECK_WAIT, self.checked.lock()).await;
        self.reachability()
    }

    /// Records that the server accepted a connection. A connection alone does not make a never
    /// reached server reachable: TLS may still fail.
    pub(in crate::upstream) fn record_accepted(&self) {
        let mut state = self.lock();
        state.accepted = Some(clock::now());
        if state.failing_since.take().is_some() {
            self.accepted.notify_waiters();
        }
        if state.reachability == Reachability::Lost {
            state.reachability = Reachability::Accepting;
            info!(upstream.addr = self.address, "the MCP server accepts connections again: ready");
        }
    }

    /// Waits for the response to a request. The log reports a server that has never responded,
    /// once.
    pub(in crate::upstream) async fn hear<T, E>(
        &self,
        responding: Pin<&mut impl Future<Output = Result<T, E>>>,
    ) -> Result<T, E> {
        if self.is_heard() {
            return responding.await;
        }
        // Boxed: later calls do not carry the timer.
        let response = Box::pin(self.hear_first(responding)).await;
        if response.is_ok() {
            self.is_heard.store(true, Ordering::Relaxed);
        }
        response
    }

    /// Returns true once the server has responded to a request, or the log has reported its
    /// silence.
    pub(in crate::upstream) fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Relaxed)
    }

    async fn hear_first<T, E>(&self, mut responding: Pin<&mut impl Future<Output = Result<T, E>>>) -> Result<T, E> {
        if let Ok(response) = tokio::time::timeout(SILENT_AFTER, responding.as_mut()).await {
            return response;
        }
        if self.reachability() == Reachability::Accepting && !self.is_heard.swap(true, Ordering::Relaxed) {
            let secs = SILENT_AFTER.as_secs();
            warn!(
                upstream.addr = self.address,
                secs, "the MCP server accepts connections, and has not responded to any request yet"
            );
        }
        responding.await
    }

    /// Records that a connection can be used: it was accepted, and any TLS handshake succeeded.
    pub(in crate::upstream) fn record_usable(&self) {
        let mut state = self.lock();
        if state.reachability == Reachability::Unknown {
            state.reachability = Reachability::Accepting;
            info!(upstream.addr = self.address, "the MCP server accepts connections");
        }
    }

    /// Records the failure of an attempt that began at `began`.
    pub(in crate::upstream) fn record_failed(&self, began: Instant, error: &(dyn Error + 'static)) {
        let mut state = self.lock();
        let accepted = state.accepted;
        let since = *state.failing_since.get_or_insert_with(|| accepted.map_or(began, |accepted| accepted.max(began)));
        let is_long = clock::now().saturating_duration_since(since) >= self.unready_after;
        if state.reachability == Reachability::Accepting && is_long {
            state.reachability = Reachability::Lost;
            let error = in_full(error);
            warn!(upstream.addr = self.address, error, "the MCP server accepts no connections: not ready");
        }
        if state.reachability == Reachability::Unknown && !std::mem::replace(&mut state.has_reported, true) {
            warn!(upstream.addr = self.address, error = in_full(error), "the MCP server accepts no connections yet");
        }
    }

    fn reachability(&self) -> Reachability {
        self.lock().reachability
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// Returns an error with its causes: "tcp connect error: Connection refused".
fn in_full(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Uri;

    use super::super::connect::{Dial, DialFuture, Transport};
    use super::*;
    use crate::config::Config;
    use crate::upstream::server::connect::Connector;

    #[derive(Clone, Copy)]
    enum Behaviour {
        Accepts,
        Refuses,
        Silent,
    }

    /// Server behind a dialer.
    struct Server {
        behaviour: Mutex<Behaviour>,
        dialed: AtomicUsize,
    }

    impl Server {
        fn start() -> (Arc<Self>, Connector) {
            let server = Arc::new(Self { behaviour: Mutex::new(Behaviour::Accepts), dialed: AtomicUsize::new(0) });
            let config = Config::for_upstream("http://127.0.0.1:9/mcp").unwrap().upstream;
            (server.clone(), Connector::new(Transport::Dialed(server), &config).unwrap())
        }

        fn set_behaviour(&self, behaviour: Behaviour) {
            *self.behaviour.lock().unwrap() = behaviour;
        }

        fn dialed(&self) -> usize {
            self.dialed.swap(0, Ordering::Relaxed)
        }
    }

    impl Dial for Server {
        fn dial(&self, _: &Uri) -> DialFuture {
            self.dialed.fetch_add(1, Ordering::Relaxed);
            let behaviour = *self.behaviour.lock().unwrap();
            Box::pin(async move {
                match behaviour {
                    Behaviour::Accepts => Ok(Box::new(tokio::io::duplex(1).0) as Box<_>),
                    Behaviour::Refuses => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    Behaviour::Silent => std::future::pending().await,
                }
            })
        }
    }

    async fn pass(time: Duration) {
        clock::sleep(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_lost_once_connections_have_failed_for_long_and_back_with_the_first_accepted() {
        let (server, connector) = Server::start();
        server.set_behaviour(Behaviour::Refuses);
        assert_eq!(connector.reachability().await, Reachability::Unknown);
        for _ in 0..2 {
            server.set_behaviour(Behaviour::Accepts);
            pass(CHECK_INTERVAL).await;
            assert_eq!(connector.reachability().await, Reachability::Accepting);
            server.set_behaviour(Behaviour::Refuses);
            for _ in 0..5 {
                pass(CHECK_INTERVAL).await;
                assert_eq!(connector.reachability().await, Reachability::Accepting);
            }
            pass(CHECK_INTERVAL).await;
            assert_eq!(connector.reachability().await, Reachability::Lost);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_between_two_connections_changes_nothing() {
        let (server, connector) = Server::start();
        for second in 0..60 {
            server.set_behaviour(if second % 4 == 0 { Behaviour::Accepts } else { Behaviour::Refuses });
            assert_eq!(connector.reachability().await, Reachability::Accepting);
            pass(CHECK_INTERVAL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_requests_share_one_check_a_second() {
        let (server, connector) = Server::start();
        for _ in 0..3 {
            let checks = (0..100).map(|_| {
                let connector = connector.clone();
                tokio::spawn(async move { connector.reachability().await })
            });
            for check in checks.collect::<Vec<_>>() {
                assert_eq!(check.await.unwrap(), Reachability::Accepting);
            }
            pass(CHECK_INTERVAL - Duration::from_millis(1)).await;
            assert_eq!(connector.reachability().await, Reachability::Accepting);
            assert_eq!(server.dialed(), 1);
            pass(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_readiness_request_does_not_wait_for_a_silent_server() {
        let (server, connector) = Server::start();
        assert_eq!(connector.reachability().await, Reachability::Accepting);
        pass(CHECK_INTERVAL).await;
        server.set_behaviour(Behaviour::Silent);
        let began = clock::now();
        assert_eq!(connector.reachability().await, Reachability::Accepting);
        assert_eq!(clock::now() - began, CHECK_WAIT);
        // The attempt takes `upstream.connect_timeout_ms`, and has then failed for as long.
        pass(Duration::from_secs(5)).await;
        assert_eq!(connector.reach.reachability(), Reachability::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_responds_is_reported_once_and_heard_later() {
        let (_, connector) = Server::start();
        let reach = &connector.reach;
        let after = |secs| async move {
            clock::sleep(Duration::from_secs(secs)).await;
            Ok::<_, ()>(secs)
        };
        let is_heard = || reach.is_heard();
        // The connection is the fault, and has lines of its own.
        assert_eq!(reach.hear(std::pin::pin!(async { Err::<(), _>(()) })).await, Err(()));
        assert!(!is_heard());
        assert_eq!(connector.reachability().await, Reachability::Accepting);
        let began = clock::now();
        let responding = std::pin::pin!(after(30));
        let mut response = std::pin::pin!(reach.hear(responding));
        let early = tokio::time::timeout(SILENT_AFTER + Duration::from_millis(1), response.as_mut()).await;
        assert!(early.is_err() && is_heard());
        assert_eq!(response.await, Ok(30));
        assert_eq!(clock::now() - began, Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn the_attempts_of_calls_count_as_well() {
        let (server, connector) = Server::start();
        assert!(connector.connect().await.is_ok());
        assert_eq!(connector.reach.reachability(), Reachability::Accepting);
        server.set_behaviour(Behaviour::Refuses);
        assert!(connector.connect().await.is_err());
        pass(Duration::from_secs(5)).await;
        assert!(connector.connect().await.is_err());
        assert_eq!(connector.reach.reachability(), Reachability::Lost);
        server.set_behaviour(Behaviour::Accepts);
        assert!(connector.connect().await.is_ok());
        assert_eq!(connector.reach.reachability(), Reachability::Accepting);
    }
}
