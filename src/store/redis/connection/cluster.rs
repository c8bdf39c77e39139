//! A connection to a Cluster: each command goes to the node of its slot. Calls of one order are
//! made one after the other, because a redirection could let one overtake another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ::redis::cluster_async::ClusterConnection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Failure, PROBE_EVERY, apply_probe, probe};
use crate::StoreHealth;
use crate::redis::command::{Call, Work, ask, cmd};
use crate::redis::core::Core;
use crate::redis::failure::Replies;
use crate::redis::keys::Order;
use mcp_resume_base::clock;

/// Maximum calls in flight and waiting here; the others wait in their channel.
const CALLS_MAX: usize = 4096;

/// Calls that wait for the call of their order in flight.
type WaitingCalls = HashMap<Order, VecDeque<Call>>;

/// Result of a task.
enum Done {
    Call(Call, Replies),
    Probe(Result<(), Failure>),
}

/// Serves calls until the connection breaks, and returns its failure; `None` if the store is
/// dropped.
pub(super) async fn serve(
    core: &Arc<Core>,
    connection: ClusterConnection,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<Failure> {
    let mut tasks = JoinSet::new();
    let mut waiting = WaitingCalls::new();
    let mut accepted = 0;
    let mut next_probe = Some(clock::now() + PROBE_EVERY);
    loop {
        let probe_at = next_probe.unwrap_or_else(clock::now);
        tokio::select! {
            biased;
            Some(done) = tasks.join_next() => match done {
                Ok(Done::Call(call, answer)) => {
                    accepted -= 1;
                    if let Some(next) = take_next(&mut waiting, call.order) {
                        start(core, &mut tasks, &connection, next);
                    }
                    let broken = note_failure(core, &answer);
                    call.complete_with(answer);
                    if broken.is_some() {
                        return broken;
                    }
                }
                Ok(Done::Probe(probed)) => {
                    next_probe = Some(clock::now() + PROBE_EVERY);
                    if let Err(failure) = apply_probe(core, probed) {
                        return Some(failure);
                    }
                }
                Err(_) => return Some(Failure::lost("a call's task ended")),
            },
            call = calls.recv(), if accepted < CALLS_MAX => {
                let call = call?;
                accepted += 1;
                match waiting.get_mut(&call.order) {
                    Some(queue) => queue.push_back(call),
                    None => {
                        waiting.insert(call.order, VecDeque::new());
                        start(core, &mut tasks, &connection, call);
                    }
                }
            }
            () = core.probe_now.notified(), if next_probe.is_some() => next_probe = Some(clock::now()),
            () = clock::sleep_until(probe_at), if next_probe.is_some() => {
                next_probe = None;
                let (core, mut connection) = (core.clone(), connection.clone());
                tasks.spawn(async move { Done::Probe(probe_all(&core, &mut connection).await) });
            }
        }
    }
}

/// Takes the next call of that order. Without one, the order is free.
fn take_next(waiting: &mut WaitingCalls, order: Order) -> Option<Call> {
    let next = waiting.get_mut(&order)?.pop_front();
    if next.is_none() {
        waiting.remove(&order);
    }
    next
}

fn start(core: &Core, tasks: &mut JoinSet<Done>, connection: &ClusterConnection, mut call: Call) {
    let mut connection = connection.clone();
    let steps = match &mut call.work {
        Work::Steps(steps) => std::mem::take(steps),
        // The connection reconnects by itself without a notice, so it gets no permit for plain
        // additions.
        Work::Append(append) => vec![append.script(&core.names, "")],
    };
    tasks.spawn(async move {
        let mut answers = Vec::with_capacity(steps.len());
        for step in &steps {
            match ask(&mut connection, step).await {
                Ok(answer) => answers.push(answer),
                Err(failure) => return Done::Call(call, Err(failure)),
            }
        }
        Done::Call(call, Ok(answers))
    });
}

fn note_failure(core: &Core, answer: &Replies) -> Option<Failure> {
    match answer {
        Err(Failure::Full(_)) => core.set_health(StoreHealth::Full),
        Err(failure) if failure.breaks_connection() => {
            core.set_health(StoreHealth::Unreachable);
            return Some(failure.clone());
        }
        _ => {}
    }
    None
}

/// Probes as for one server, and checks that every master replies.
async fn probe_all(core: &Core, connection: &mut ClusterConnection) -> Result<(), Failure> {
    probe(core, connection).await?;
    ask(connection, &cmd(&[b"PING"])).await?;
    Ok(())
}
