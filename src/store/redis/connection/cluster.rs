//! A Cluster: each command goes to the node of its slot. Calls of one order are made one after the other, since a redirection could
//! let one overtake another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ::redis::cluster_async::ClusterConnection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Failure, PROBE_EVERY, judge, probe};
use crate::clock;
use crate::store::StoreHealth;
use crate::store::redis::command::{Call, Work, ask, cmd};
use crate::store::redis::core::Core;
use crate::store::redis::failure::Answer;
use crate::store::redis::keys::Order;

/// Most calls held here at once; the others wait in their channel.
const AT_ONCE: usize = 4096;

/// Calls by their order: the ones that wait for the one that is under way.
type Lanes = HashMap<Order, VecDeque<Call>>;

/// Result of a task here.
enum Done {
    Call(Call, Answer),
    Probe(Result<(), Failure>),
}

/// Serves until the connection breaks, and says why; `None` when the store is gone.
pub(super) async fn serve(
    core: &Arc<Core>,
    connection: ClusterConnection,
    calls: &mut mpsc::Receiver<Call>,
) -> Option<Failure> {
    let mut tasks = JoinSet::new();
    let mut lanes = Lanes::new();
    let mut known = 0;
    let mut next_probe = Some(clock::now() + PROBE_EVERY);
    loop {
        let probe_at = next_probe.unwrap_or_else(clock::now);
        tokio::select! {
            biased;
            Some(done) = tasks.join_next() => match done {
                Ok(Done::Call(call, answer)) => {
                    known -= 1;
                    if let Some(next) = next_of(&mut lanes, call.order) {
                        make(core, &mut tasks, &connection, next);
                    }
                    let broken = note(core, &answer);
                    call.answer(answer);
                    if broken.is_some() {
                        return broken;
                    }
                }
                Ok(Done::Probe(probed)) => {
                    next_probe = Some(clock::now() + PROBE_EVERY);
                    if let Err(failure) = judge(core, probed) {
                        return Some(failure);
                    }
                }
                Err(_) => return Some(Failure::lost("a call's task ended")),
            },
            call = calls.recv(), if known < AT_ONCE => {
                let call = call?;
                known += 1;
                match lanes.get_mut(&call.order) {
                    Some(lane) => lane.push_back(call),
                    None => {
                        lanes.insert(call.order, VecDeque::new());
                        make(core, &mut tasks, &connection, call);
                    }
                }
            }
            () = core.doubt.notified(), if next_probe.is_some() => next_probe = Some(clock::now()),
            () = clock::sleep_until(probe_at), if next_probe.is_some() => {
                next_probe = None;
                let (core, mut connection) = (core.clone(), connection.clone());
                tasks.spawn(async move { Done::Probe(probe_all(&core, &mut connection).await) });
            }
        }
    }
}

/// The next call of that order, which begins now; with none, the lane is free.
fn next_of(lanes: &mut Lanes, order: Order) -> Option<Call> {
    let next = lanes.get_mut(&order)?.pop_front();
    if next.is_none() {
        lanes.remove(&order);
    }
    next
}

fn make(core: &Core, tasks: &mut JoinSet<Done>, connection: &ClusterConnection, mut call: Call) {
    let mut connection = connection.clone();
    let steps = match &mut call.work {
        Work::Steps(steps) => std::mem::take(steps),
        // The connection reconnects by itself without a notice, so no stream is held over it.
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

fn note(core: &Core, answer: &Answer) -> Option<Failure> {
    match answer {
        Err(Failure::Full(_)) => core.stand(StoreHealth::Full),
        Err(failure) if failure.breaks() => {
            core.stand(StoreHealth::Unreachable);
            return Some(failure.clone());
        }
        _ => {}
    }
    None
}

/// Probes as for one server, and checks that every master replies.
async fn probe_all(core: &Core, connection: &mut ClusterConnection) -> Result<(), Failure> {
    probe(core, connection).await?;
    ask(connection, &cmd(&[b"PING"])).await.map(drop)
}
