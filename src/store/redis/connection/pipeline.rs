//! One connection to one server: what waits goes out together, and the answers come in that order.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc;
use tokio::task::unconstrained;

use super::{Failure, PROBE_EVERY, judge, probe};
use crate::clock;
use crate::random;
use crate::store::StoreHealth;
use crate::store::completion::deliver;
use crate::store::redis::append::Held;
use crate::store::redis::command::{Call, Work, ask};
use crate::store::redis::core::Core;
use crate::store::redis::failure::settle;
use crate::store::redis::generation::hex;
use crate::store::redis::keys::Order;
use crate::store::redis::scripts;

/// As many calls go out together at most.
const TOGETHER: usize = 256;
/// Most flights before the first of them has its replies; further calls gather meanwhile.
const UNDER_WAY: usize = 4;

/// A future that completes without further input.
type Coming<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls that were sent together.
struct Flight {
    calls: Vec<Call>,
    /// Their commands, to be sent again if need be.
    sent: Pipeline,
    answers: Result<Vec<Value>, RedisError>,
}

/// Calls that are to be made again, in their order: Redis has forgotten the scripts.
#[derive(Default)]
struct Again {
    calls: Vec<Call>,
    orders: HashSet<Order>,
}

/// State of one connection.
struct Line<'a> {
    core: &'a Arc<Core>,
    connection: MultiplexedConnection,
    held: Held,
    /// In the order in which they are answered.
    flying: Flying<Flight>,
    again: Again,
    /// Calls that come next.
    waiting: Vec<Call>,
    probing: Flying<Result<(), Failure>>,
}

/// Serves until the connection breaks, and says why; `None` when the store is gone.
pub(super) async fn serve(
    core: &Arc<Core>,
    connection: MultiplexedConnection,
    pushed: mpsc::UnboundedReceiver<PushInfo>,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<Failure> {
    let mut line = Line {
        core,
        connection,
        held: Held::new(hex(&random::bytes::<8>())),
        flying: Flying::default(),
        again: Again::default(),
        waiting: Vec::new(),
        probing: Flying::default(),
    };
    let why = line.run(pushed, calls).await;
    if let Some(failure) = &why {
        fail(line.again.calls, failure);
        fail(line.waiting, failure);
    }
    why
}

impl Line<'_> {
    async fn run(
        &mut self,
        mut pushed: mpsc::UnboundedReceiver<PushInfo>,
        calls: &mut mpsc::Receiver<Call>,
    ) -> Option<Failure> {
        let mut next_probe = clock::now() + PROBE_EVERY;
        let mut open = true;
        loop {
            if !open && self.flying.is_empty() {
                return Some(Failure::lost("Redis closed the connection"));
            }
            if self.flying.is_empty() && !self.again.calls.is_empty() {
                if let Err(failure) = load_scripts(&mut self.connection.clone()).await {
                    return Some(failure);
                }
                let again = std::mem::take(&mut self.again);
                self.waiting.splice(..0, again.calls);
            }
            if self.may_send(open) && !self.waiting.is_empty() {
                self.send();
            }
            let may_take = self.may_send(open) && self.waiting.is_empty();
            tokio::select! {
                biased;
                flight = self.flying.next() => {
                    if let Some(failure) = self.land(flight) {
                        return Some(failure);
                    }
                }
                // Answers that came before it are handed out yet.
                push = pushed.recv(), if open => open = push.is_some_and(|push| push.kind != PushKind::Disconnection),
                count = calls.recv_many(&mut self.waiting, TOGETHER), if may_take => {
                    if count == 0 {
                        return None;
                    }
                }
                probed = self.probing.next() => {
                    next_probe = clock::now() + PROBE_EVERY;
                    self.held.sweep(clock::now());
                    if let Err(failure) = judge(self.core, probed) {
                        return Some(failure);
                    }
                }
                () = self.core.doubt.notified(), if self.probing.is_empty() => next_probe = clock::now(),
                () = clock::sleep_until(next_probe), if self.probing.is_empty() => {
                    let (core, mut connection) = (self.core.clone(), self.connection.clone());
                    self.probing.push(Box::pin(async move { probe(&core, &mut connection).await }));
                }
            }
        }
    }

    fn may_send(&self, open: bool) -> bool {
        open && self.flying.len() < UNDER_WAY && self.again.calls.is_empty()
    }

    /// Hands what waits to the connection, behind all that was handed over before; from a call on that must wait for an answer it
    /// stays.
    fn send(&mut self) {
        let now = clock::now();
        let mut calls = std::mem::take(&mut self.waiting);
        let mut sent = Pipeline::with_capacity(calls.len());
        let mut count = 0;
        while let Some(call) = calls.get_mut(count).filter(|call| !self.held.is_waited_for(call.order)) {
            match &mut call.work {
                Work::Steps(steps) => steps.drain(..).for_each(|step| _ = sent.add_command(step)),
                Work::Append(append) => _ = sent.add_command(self.held.send(append, &self.core.names, now)),
            }
            count += 1;
        }
        self.waiting = calls.split_off(count);
        if !calls.is_empty() {
            self.flying.push(fly(&self.connection, calls, sent));
        }
    }

    /// Hands out the answers, and keeps the calls that must be made again. A failure ends the connection.
    fn land(&mut self, flight: Flight) -> Option<Failure> {
        let answers = match flight.answers {
            Ok(answers) => answers,
            Err(error) => {
                let failure = match Failure::of(&error) {
                    failure if failure.breaks() => failure,
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
                Work::Steps(_) => Some(settle(answers.by_ref().take(call.count).collect())),
                Work::Append(append) => self.held.land(append, &self.core.names, answers.next().unwrap_or_default()),
            };
            let commands = sent.by_ref().take(call.count);
            // What was made after a call that must be made again may have failed for that alone. To make one twice is safe.
            if matches!(answer, Some(Err(Failure::Unknown))) || self.again.orders.contains(&call.order) {
                match &mut call.work {
                    Work::Steps(steps) => steps.extend(commands.cloned()),
                    Work::Append(_) => commands.for_each(drop),
                }
                self.again.orders.insert(call.order);
                self.again.calls.push(call);
                continue;
            }
            commands.for_each(drop);
            let Some(answer) = answer else {
                refused.push(call);
                continue;
            };
            match &answer {
                Err(Failure::Full(_)) => self.core.stand(StoreHealth::Full),
                Err(failure) if failure.breaks() => {
                    self.core.stand(StoreHealth::Unreachable);
                    broken = Some(failure.clone());
                }
                _ => {}
            }
            answered.push(call.answered(answer));
        }
        deliver(answered);
        // Calls of their order have waited.
        self.waiting.splice(..0, refused);
        broken
    }
}

/// Makes Redis know all scripts.
pub(super) async fn load_scripts(connection: &mut MultiplexedConnection) -> Result<(), Failure> {
    for script in scripts::all() {
        ask(connection, &script.load()).await?;
    }
    Ok(())
}

/// Futures that are awaited in order.
struct Flying<T>(VecDeque<Coming<T>>);

impl<T> Default for Flying<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Flying<T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, coming: Coming<T>) {
        self.0.push_back(coming);
    }

    /// The first one; never where there is none. Cancel-safe.
    async fn next(&mut self) -> T {
        let Some(first) = self.0.front_mut() else { return std::future::pending().await };
        let result = first.await;
        self.0.pop_front();
        result
    }
}

/// Sends the calls, which are these commands.
fn fly(connection: &MultiplexedConnection, calls: Vec<Call>, sent: Pipeline) -> Coming<Flight> {
    let mut connection = connection.clone();
    // The connection's queue has room for all that fly, and without a budget nothing else makes the first look wait: the
    // commands are in that queue then.
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
    deliver(calls.into_iter().map(|call| call.answered(Err(failure.clone()))));
}
