//! One call: POST, lose the connection, come back, until there is no more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::beside::{cancel, hang};
use super::connection::{Connection, LONGEST, Sender};
use super::exchange::Errand;
use crate::model::{Key, Reading, id_of};
use crate::network::Dialer;
use crate::plan::{Call, Fault, Form};
use crate::rng::Rng;
use crate::wire::Events;
use crate::world::World;

/// One call of a client.
pub(super) struct Caller {
    pub(super) world: Arc<World>,
    pub(super) dialer: Dialer,
    pub(super) key: Key,
    pub(super) call: Call,
    rng: Rng,
    /// A connection that can be used again.
    idle: Option<Connection>,
    /// The event IDs it has seen, the last of which is its cursor.
    pub(super) ids: Vec<String>,
    /// The highest number it has seen.
    pub(super) highest: u64,
    pub(super) retry: Duration,
    /// Requests of the call that have a response, and true once all have.
    pub(super) answered: BTreeSet<usize>,
    pub(super) is_answered: bool,
    /// True once a response said that the stream is gone.
    pub(super) is_lost: bool,
    pub(super) spied: bool,
    /// True if the client itself has cut its last connection.
    has_cut: bool,
}

/// End of an exchange.
pub(super) enum Ended {
    /// There is no more to come.
    Over,
    /// Something is left; something new came.
    Early { progress: bool },
}

impl Caller {
    pub(super) fn new(world: &Arc<World>, dialer: &Dialer, key: Key, call: Call, rng: Rng) -> Self {
        Caller {
            world: world.clone(),
            dialer: dialer.clone(),
            key,
            rng,
            idle: None,
            ids: Vec::new(),
            highest: 0,
            retry: world.plan.config.delivery.retry,
            answered: BTreeSet::new(),
            is_answered: false,
            is_lost: false,
            spied: !call.is_spied_on,
            has_cut: false,
            call,
        }
    }

    /// Listens to the session's own stream for a while.
    pub(super) async fn listen(mut self, lasts: Duration) {
        let world = self.world.clone();
        // After that time it is gone, even in the middle of an exchange.
        let _ = timeout(lasts, self.talk()).await;
        world.reach("the session's own stream");
    }

    pub(super) async fn run(mut self) {
        self.world.sleep(self.call.starts).await;
        if let Some(after) = self.call.cancels {
            tokio::spawn(cancel(self.world.clone(), self.dialer.clone(), self.key, after));
        }
        let patience = self.call.patience.unwrap_or(LONGEST * 3 + self.world.jumped());
        let talked = timeout(patience, self.talk()).await;
        match talked {
            Ok(()) => self.revisit().await,
            Err(_) if self.call.patience.is_none() => self.world.blame(format!("{:?} never ended", self.key)),
            Err(_) => {}
        }
    }

    async fn talk(&mut self) {
        let mut left = self.call.tries;
        let mut faults = self.call.faults.clone().into_iter();
        loop {
            let fault = faults.next().unwrap_or(Fault::None);
            match self.exchange(fault).await {
                Some(Ended::Over) | None => return,
                Some(Ended::Early { progress: true }) => left = self.call.tries,
                Some(Ended::Early { progress: false }) => {}
            }
            let cancelled = self.world.model().call(self.key).cancelled;
            let is_lost = self.ids.is_empty() && self.key.1 > 0 && (!self.call.reposts || cancelled);
            if left == 0 || is_lost || self.world.is_blamed() {
                return;
            }
            left -= 1;
            let pause = self.retry * self.call.haste / 1000;
            self.world.sleep(pause.max(Duration::from_millis(10))).await;
        }
    }

    /// Asks for what is left of the finished stream, later and later.
    async fn revisit(&mut self) {
        if self.ids.is_empty() || self.world.plan.is_tight() || !self.is_answered {
            return;
        }
        self.call.keeps_connection = false;
        self.idle = None;
        for pause in self.call.revisits.clone() {
            self.world.sleep(pause).await;
            let keep = 1 + self.rng.below(self.ids.len());
            self.ids.truncate(keep);
            let ended = self.exchange(Fault::None).await;
            self.world.reach("a visit to a finished stream");
            if !matches!(ended, Some(Ended::Over)) || self.is_lost {
                return;
            }
        }
    }

    fn request(&mut self) -> (String, Option<u64>) {
        let sender = Sender { json_only: self.call.json_only, ..Sender::of(&self.world, self.key.0) };
        if self.key.1 > 0 && self.rng.percent(self.call.forgets) && self.ids.len() > 1 {
            let keep = 1 + self.rng.below(self.ids.len());
            self.ids.truncate(keep);
        }
        if self.key.1 == 0 && (self.ids.is_empty() || self.rng.percent(self.call.forgets)) {
            return (sender.head("GET", "\r\n"), None);
        }
        if let Some(id) = self.ids.last() {
            let seq = id.split('.').nth(1).and_then(|seq| seq.parse().ok());
            return (sender.get(id), seq);
        }
        let arguments = json!({ "client": self.key.0 });
        let mut params = json!({ "name": "slow", "arguments": arguments });
        if self.world.plan.is_modern(self.key) {
            params["_meta"] = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
        }
        let request = |request| {
            let id = id_of(self.key, request);
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
        };
        let body = match self.call.script.requests {
            1 => request(0),
            several => {
                self.world.reach("a batch");
                (0..several).map(request).collect()
            }
        };
        let posted_before = self.world.model().call(self.key).connections > 0;
        let cursor = if posted_before { None } else { Some(0) };
        let key = match self.call.has_key {
            true => format!("Idempotency-Key: k{}\r\n", self.key.1),
            false => String::new(),
        };
        if posted_before {
            self.world.reach("the same POST again");
        }
        (sender.post_with(&key, &body.to_string()), cursor)
    }

    /// Notes that the proxy is gone. A drain waits for a call that was begun before. A response
    /// that was written to the end before the client cut its connection may count as delivered.
    fn note_gone(&self, has_cut: bool) {
        let world = &self.world;
        let was_posted = {
            let mut model = world.model();
            let is_over = model.deleted.contains(&self.key.0);
            let call = model.call(self.key);
            let began = call.posted.filter(|_| !is_over && !call.cancelled);
            began.is_some_and(|began| world.plan.drains.is_some_and(|drains| began < drains))
        };
        let is_timed_out = world.plan.drained().is_some_and(|drained| drained <= world.elapsed());
        if was_posted && !has_cut && !is_timed_out && !self.is_answered && !self.is_lost && self.call.patience.is_none()
        {
            world.blame(format!("{:?}: the proxy has not waited for the call", self.key));
        }
    }

    async fn exchange(&mut self, fault: Fault) -> Option<Ended> {
        let world = self.world.clone();
        let (request, cursor) = self.request();
        let is_post = self.ids.is_empty() && self.key.1 > 0;
        let has_cut = std::mem::replace(&mut self.has_cut, !matches!(fault, Fault::None | Fault::Slow(..)));
        let number = world.model().connect(self.key, world.now());
        let name = format!("c{}.{}.{number}", self.key.0, self.key.1);
        // An answer that was read slowly, or by a reader that hangs, may count as delivered.
        let unsure =
            matches!(fault, Fault::Hang(..) | Fault::Slow(..)) || !world.plan.jumps.is_empty() || world.plan.is_tight();
        let may_fail = !matches!(self.call.script.form, Form::Stream(..)) || world.plan.refuses.is_some();
        let may_run_again = unsure || may_fail;
        if may_run_again {
            world.model().call(self.key).may_repeat = true;
        }
        let mut connection = match self.idle.take() {
            Some(idle) => idle.under(name),
            None => match Connection::open(&world, &self.dialer, name) {
                Some(connection) => connection,
                None => {
                    self.note_gone(has_cut);
                    return None;
                }
            },
        };
        let begun = world.now();
        let errand = Errand { request: &request, cursor, is_post, number, fault: &fault };
        let ended = self.converse(&mut connection, &errand).await;
        connection.log(&world);
        // An incomplete request proves to no peer that the client is there.
        if !matches!(fault, Fault::CutRequest(_)) {
            world.model().leave(self.key, begun);
        }
        match ended {
            ExchangeOutcome::Whole(ended) => {
                self.idle = self.call.keeps_connection.then_some(connection);
                Some(ended)
            }
            ExchangeOutcome::Cut(progress) => {
                let cut = matches!(fault, Fault::CutRequest(_));
                world.reach(if cut { "a request cut by the client" } else { "a response cut by the client" });
                Some(match self.is_lost || (self.is_answered && !self.call.thorough) {
                    true => Ended::Over,
                    false => Ended::Early { progress },
                })
            }
            ExchangeOutcome::Hung(progress, reading, events, hold) => {
                tokio::spawn(hang(world, connection, self.key, reading, events, hold));
                Some(Ended::Early { progress })
            }
            ExchangeOutcome::Wrong => None,
        }
    }
}

/// Outcome of one use of a connection.
pub(super) enum ExchangeOutcome {
    /// The response came to its end.
    Whole(Ended),
    Cut(bool),
    Hung(bool, Option<Reading>, Events, Duration),
    Wrong,
}
