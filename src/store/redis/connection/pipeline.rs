//! One connection to one server: waiting calls are sent together, and their replies come in that
//! order.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc;
use tokio::task::unconstrained;

use super::{Failure, PROBE_EVERY, apply_probe, probe};
use crate::StoreHealth;
use crate::completion::deliver;
use crate::redis::append::PlainAppends;
use crate::redis::command::{Call, Work, ask};
use crate::redis::core::Core;
use crate::redis::failure::check_replies;
use crate::redis::generation::hex;
use crate::redis::keys::Order;
use crate::redis::scripts;
use mcp_resume_base::clock;
use mcp_resume_base::random;

/// Maximum calls that are sent together.
const FLIGHT_CALLS_MAX: usize = 256;
/// Maximum flights without replies; further calls wait meanwhile.
const FLIGHTS_MAX: usize = 4;

/// A future that completes without further input.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls that were sent together.
struct Flight {
    calls: Vec<Call>,
    /// Commands of the calls, to be sent again if need be.
    sent: Pipeline,
    answers: Result<Vec<Value>, RedisError>,
}

/// Calls to be made again, in their order: Redis has forgotten the scripts.
#[derive(Default)]
struct Resend {
    calls: Vec<Call>,
    orders: HashSet<Order>,
}

/// State of one connection.
struct ServerConnection<'a> {
    core: &'a Arc<Core>,
    connection: MultiplexedConnection,
    plain_appends: PlainAppends,
    /// Flights without replies, in the order of the replies.
    in_flight: InOrder<Flight>,
    resend: Resend,
    /// Calls that come next.
    waiting: Vec<Call>,
    probing: InOrder<Result<(), Failure>>,
}

/// Serves calls until the connection breaks, and returns its failure; `None` if the store is
/// dropped.
pub(super) async fn serve(
    core: &Arc<Core>,
    connection: MultiplexedConnection,
    pushed: mpsc::UnboundedReceiver<PushInfo>,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<Failure> {
    let mut state = ServerConnection {
        core,
        connection,
        plain_appends: PlainAppends::new(hex(&random::bytes::<8>())),
        in_flight: InOrder::default(),
        resend: Resend::default(),
        waiting: Vec::new(),
        probing: InOrder::default(),
    };
    let why = state.run(pushed, calls).await;
    if let Some(failure) = &why {
        fail(state.resend.calls, failure);
        fail(state.waiting, failure);
    }
    why
}

impl ServerConnection<'_> {
    async fn run(
        &mut self,
        mut pushed: mpsc::UnboundedReceiver<PushInfo>,
        calls: &mut mpsc::Receiver<Call>,
    ) -> Option<Failure> {
        let mut next_probe = clock::now() + PROBE_EVERY;
        let mut is_open = true;
        loop {
            if !is_open && self.in_flight.is_empty() {
                return Some(Failure::lost("Redis closed the connection"));
            }
            if self.in_flight.is_empty() && !self.resend.calls.is_empty() {
                if let Err(failure) = load_scripts(&mut self.connection.clone()).await {
                    return Some(failure);
                }
                let resend = std::mem::take(&mut self.resend);
                self.waiting.splice(..0, resend.calls);
            }
            if self.may_send(is_open) && !self.waiting.is_empty() {
                self.send();
            }
            let may_take = self.may_send(is_open) && self.waiting.is_empty();
            tokio::select! {
                biased;
                flight = self.in_flight.next() => {
                    if let Some(failure) = self.handle_replies(flight) {
                        return Some(failure);
                    }
                }
                // Replies that came before the end are still delivered.
                push = pushed.recv(), if is_open => is_open = push.is_some_and(|push| push.kind != PushKind::Disconnection),
                count = calls.recv_many(&mut self.waiting, FLIGHT_CALLS_MAX), if may_take => {
                    if count == 0 {
                        return None;
                    }
                }
                probed = self.probing.next() => {
                    next_probe = clock::now() + PROBE_EVERY;
                    self.plain_appends.sweep(clock::now());
                    if let Err(failure) = apply_probe(self.core, probed) {
                        return Some(failure);
                    }
                }
                () = self.core.probe_now.notified(), if self.probing.is_empty() => next_probe = clock::now(),
                () = clock::sleep_until(next_probe), if self.probing.is_empty() => {
                    let (core, mut connection) = (self.core.clone(), self.connection.clone());
                    self.probing.push(Box::pin(async move { probe(&core, &mut connection).await }));
                }
            }
        }
    }

    fn may_send(&self, is_open: bool) -> bool {
        is_open && self.in_flight.len() < FLIGHTS_MAX && self.resend.calls.is_empty()
    }

    /// Sends the waiting calls before the first call that must wait for an earlier reply.
    fn send(&mut self) {
        let now = clock::now();
        let mut calls = std::mem::take(&mut self.waiting);
        let mut sent = Pipeline::with_capacity(calls.len());
        let mut count = 0;
        while let Some(call) = calls.get_mut(count).filter(|call| !self.plain_appends.must_wait(call.order)) {
            match &mut call.work {
                Work::Steps(steps) => {
                    for step in steps.drain(..) {
                        sent.add_command(step);
                    }
                }
                Work::Append(append) => {
                    sent.add_command(self.plain_appends.command(append, &self.core.names, now));
                }
            }
            count += 1;
        }
        self.waiting = calls.split_off(count);
        if !calls.is_empty() {
            self.in_flight.push(send_calls(&self.connection, calls, sent));
        }
    }

    /// Delivers the replies, and keeps the calls that must be made again. A failure ends the
    /// connection.
    fn handle_replies(&mut self, flight: Flight) -> Option<Failure> {
        let answers = match flight.answers {
            Ok(answers) => answers,
            Err(error) => {
                let failure = match Failure::of(&error) {
                    failure if failure.breaks_connection() => failure,
                    failure => Failure::Lost(failure.to_string().into()),
                };
                fail(flight.calls, &failure);
                return Some(failure);
            }
        };
        let mut answers = answers.into_iter();
        let mut sent = flight.sent.cmd_iter();
        let mut refused = Vec::new();
        let mut answered = Vec::with_capacity(flight.calls.len());
        let mut broken = None;
        for mut call in flight.calls {
            let answer = match &call.work {
                Work::Steps(_) => Some(check_replies(answers.by_ref().take(call.count).collect())),
                Work::Append(append) => {
                    self.plain_appends.handle_reply(append, &self.core.names, answers.next().unwrap_or_default())
                }
            };
            let commands = sent.by_ref().take(call.count);
            // If a call must be made again, calls after it may have failed for that alone. A
            // repeated call is safe.
            if matches!(answer, Some(Err(Failure::UnknownScript))) || self.resend.orders.contains(&call.order) {
                match &mut call.work {
                    Work::Steps(steps) => steps.extend(commands.cloned()),
                    Work::Append(_) => skip(commands),
                }
                self.resend.orders.insert(call.order);
                self.resend.calls.push(call);
                continue;
            }
            skip(commands);
            let Some(answer) = answer else {
                refused.push(call);
                continue;
            };
            match &answer {
                Err(Failure::Full(_)) => self.core.set_health(StoreHealth::Full),
                Err(failure) if failure.breaks_connection() => {
                    self.core.set_health(StoreHealth::Unreachable);
                    broken = Some(failure.clone());
                }
                _ => {}
            }
            answered.push(call.into_completion(answer));
        }
        deliver(answered);
        // Later calls of their orders have waited.
        self.waiting.splice(..0, refused);
        broken
    }
}

/// Loads all scripts into Redis.
pub(super) async fn load_scripts(connection: &mut MultiplexedConnection) -> Result<(), Failure> {
    for script in scripts::all() {
        ask(connection, &script.load()).await?;
    }
    Ok(())
}

/// Advances past the commands of a call.
fn skip<T>(commands: impl Iterator<Item = T>) {
    for _ in commands {}
}

/// Futures that are awaited in order.
struct InOrder<T>(VecDeque<BoxFuture<T>>);

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> InOrder<T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, coming: BoxFuture<T>) {
        self.0.push_back(coming);
    }

    /// Waits for the first future, or for ever without a future. Cancel-safe.
    async fn next(&mut self) -> T {
        let Some(first) = self.0.front_mut() else { return std::future::pending().await };
        let result = first.await;
        self.0.pop_front();
        result
    }
}

/// Sends the calls, whose commands are `sent`.
fn send_calls(connection: &MultiplexedConnection, calls: Vec<Call>, sent: Pipeline) -> BoxFuture<Flight> {
    let mut connection = connection.clone();
    // The connection's queue has room for all calls in flight. Without a budget nothing else delays
    // the first poll. So the commands are in that queue afterwards.
    let mut flight = Box::pin(unconstrained(async move {
        let count = sent.len();
        let answers = connection.send_packed_commands(&sent, 0, count).await;
        Flight { calls, sent, answers }
    }));
    match flight.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(flight) => Box::pin(std::future::ready(flight)),
        Poll::Pending => flight,
    }
}

fn fail(calls: Vec<Call>, failure: &Failure) {
    deliver(calls.into_iter().map(|call| call.into_completion(Err(failure.clone()))));
}
