//! One connection to one server: what waits goes out together, and the answers come in that order.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, unconstrained};

use super::{Failure, PROBE_EVERY, judge, probe};
use crate::clock;
use crate::store::Standing;
use crate::store::redis::call::{Call, ask, settle};
use crate::store::redis::core::Core;
use crate::store::redis::scripts;

/// As many calls go out together at most.
const TOGETHER: usize = 256;
/// So many times before the first of them is answered.
const UNDER_WAY: usize = 32;

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
    orders: HashSet<u64>,
}

/// Serves until the connection breaks, and says why; `None` when the store is gone.
pub(super) async fn serve(
    core: &std::sync::Arc<Core>,
    connection: MultiplexedConnection,
    mut pushed: mpsc::UnboundedReceiver<PushInfo>,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<Failure> {
    let mut flying = Flying(VecDeque::new());
    let mut again = Again::default();
    let mut waiting = Vec::with_capacity(TOGETHER);
    let mut next_probe = clock::now() + PROBE_EVERY;
    let mut probing: Option<Flying<Result<(), Failure>>> = None;
    let mut open = true;
    loop {
        if !open && flying.0.is_empty() {
            let closed = Failure::lost("Redis closed the connection");
            fail(again.calls, &closed);
            return Some(closed);
        }
        if flying.0.is_empty() && !again.calls.is_empty() {
            if let Err(failure) = load_scripts(&mut connection.clone()).await {
                fail(again.calls, &failure);
                return Some(failure);
            }
            flying.0.push_back(send(&connection, std::mem::take(&mut again).calls));
        }
        tokio::select! {
            biased;
            flight = flying.next() => {
                let broken = match flight {
                    Some(flight) => land(core, flight, &mut again),
                    None => Some(Failure::lost("the connection's task ended")),
                };
                if let Some(failure) = broken {
                    fail(again.calls, &failure);
                    return Some(failure);
                }
            }
            // Answers that came before it are handed out yet.
            push = pushed.recv(), if open => open = push.is_some_and(|push| push.kind != PushKind::Disconnection),
            count = calls.recv_many(&mut waiting, TOGETHER),
                if open && flying.0.len() < UNDER_WAY && again.calls.is_empty() =>
            {
                if count == 0 {
                    return None;
                }
                flying.0.push_back(send(&connection, std::mem::take(&mut waiting)));
            }
            probed = next(&mut probing), if probing.is_some() => {
                probing = None;
                next_probe = clock::now() + PROBE_EVERY;
                if let Err(failure) = judge(core, probed) {
                    return Some(failure);
                }
            }
            () = clock::sleep_until(next_probe), if probing.is_none() => {
                let (core, mut connection) = (core.clone(), connection.clone());
                let probe = tokio::spawn(async move { probe(&core, &mut connection).await });
                probing = Some(Flying(VecDeque::from([probe])));
            }
        }
    }
}

async fn next(probing: &mut Option<Flying<Result<(), Failure>>>) -> Result<(), Failure> {
    match probing {
        Some(probing) => probing.next().await.unwrap_or_else(|| Err(Failure::lost("the probe's task ended"))),
        None => std::future::pending().await,
    }
}

/// Makes Redis know all scripts.
pub(super) async fn load_scripts(connection: &mut MultiplexedConnection) -> Result<(), Failure> {
    for script in scripts::all() {
        ask(connection, &script.load()).await?;
    }
    Ok(())
}

/// Tasks, the first one first. What is dropped is ended.
struct Flying<T>(VecDeque<JoinHandle<T>>);

impl<T> Flying<T> {
    /// The result of the first one; never where there is none. `None` if it ended without. Cancel-safe.
    async fn next(&mut self) -> Option<T> {
        let Some(first) = self.0.front_mut() else { return std::future::pending().await };
        let result = first.await;
        self.0.pop_front();
        result.ok()
    }
}

impl<T> Drop for Flying<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Hands the calls to the connection, behind all that were handed over before.
fn send(connection: &MultiplexedConnection, mut calls: Vec<Call>) -> JoinHandle<Flight> {
    let mut sent = Pipeline::with_capacity(calls.len());
    for step in calls.iter_mut().flat_map(|call| call.steps.drain(..)) {
        sent.add_command(step);
    }
    let mut connection = connection.clone();
    // The connection's queue has room for all that fly, and without a budget nothing else makes the first look wait: the
    // commands are in that queue then.
    let mut flight = Box::pin(unconstrained(async move {
        let count = sent.len();
        let answers = connection.send_packed_commands(&sent, 0, count).await;
        Flight { calls, sent, answers }
    }));
    match Pin::new(&mut flight).poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(flight) => tokio::spawn(std::future::ready(flight)),
        std::task::Poll::Pending => tokio::spawn(flight),
    }
}

/// Hands out the answers, and keeps the calls that must be made again. A failure ends the connection.
fn land(core: &Core, flight: Flight, again: &mut Again) -> Option<Failure> {
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
    let mut broken = None;
    for mut call in flight.calls {
        let count = call.count();
        let answer = settle(answers.by_ref().take(count).collect());
        // What was made after a call that must be made again may have failed for that alone. To make one twice is safe.
        if matches!(answer, Err(Failure::Unknown)) || again.orders.contains(&call.order) {
            call.steps.extend(sent.by_ref().take(count).cloned());
            again.orders.insert(call.order);
            again.calls.push(call);
            continue;
        }
        sent.by_ref().take(count).for_each(drop);
        match &answer {
            Err(Failure::Full(_)) => core.stand(Standing::Full),
            Err(failure) if failure.breaks() => {
                core.stand(Standing::Unreachable);
                broken = Some(failure.clone());
            }
            _ => {}
        }
        call.answer(answer);
    }
    broken
}

fn fail(calls: Vec<Call>, failure: &Failure) {
    calls.into_iter().for_each(|call| call.answer(Err(failure.clone())));
}
