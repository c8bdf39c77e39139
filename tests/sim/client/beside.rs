//! Actions beside a call's responses: client responses, cancels, thieves, connections left hanging.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::caller::Caller;
use super::connection::{Connection, Sender, ask};
use crate::model::{Key, Model, Reading};
use crate::network::Dialer;
use crate::wire::{Events, Part};
use crate::world::World;

impl Caller {
    /// Answers a question, once or twice.
    pub(super) fn answer(&mut self, question: String, id: Value, text: String) {
        let (world, dialer, key) = (self.world.clone(), self.dialer.clone(), self.key);
        let after = self.call.answers_after;
        let times = if self.call.answers_twice { 2 } else { 1 };
        tokio::spawn(async move {
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": { "ask": text } }).to_string();
            let request = Sender::of(&world, key.0).post(&body);
            world.sleep(after).await;
            if world.model().lost.contains(&question) {
                world.reach("a late answer");
            }
            for time in 0..times {
                let name = format!("c{}.{}.answer{time}", key.0, key.1);
                if let Some((head, _)) = ask(&world, &dialer, name, &request).await {
                    world.trace("answered", head.line.as_bytes());
                    if head.status() == 202 {
                        world.reach("a question answered");
                        world.model().acknowledge(key, &question, world.now());
                    }
                }
            }
        });
    }

    /// Another client comes with this one's event ID.
    pub(super) fn spy(&mut self) {
        if std::mem::replace(&mut self.spied, true) {
            return;
        }
        let (world, dialer, key) = (self.world.clone(), self.dialer.clone(), self.key);
        let id = self.ids.last().expect("an id was seen").clone();
        let client = (key.0 + 1) % world.plan.clients.len();
        tokio::spawn(async move {
            if client == key.0 {
                return;
            }
            let request = Sender::of(&world, client).get(&id);
            let name = format!("c{client}.spy");
            let Some((_, body)) = ask(&world, &dialer, name, &request).await else { return };
            let mut events = Events::default();
            events.feed(body.as_bytes());
            let seen: Vec<_> = std::iter::from_fn(|| events.next()).collect();
            match seen.as_slice() {
                [only] => {
                    world.check(Model::spied(key, only));
                    world.reach("another session");
                }
                _ => world.blame(format!("{key:?}: another session was given {seen:?}")),
            }
        });
    }
}

/// Opens a connection and leaves it unread for a while. A late reader finds nothing that was sent
/// after the connection was replaced.
pub(super) async fn hang(
    world: Arc<World>,
    mut connection: Connection,
    key: Key,
    reading: Option<Reading>,
    mut events: Events,
    hold: Duration,
) {
    world.sleep(hold).await;
    let Some(mut reading) = reading else { return };
    reading.prompt = false;
    loop {
        while let Some(part) = connection.parser.next() {
            match part {
                Part::Data(data) => events.feed(&data),
                Part::Head(_) | Part::End => return connection.log(&world),
            }
            while let Some(event) = events.next() {
                let taken = world.model().take(&world.plan, key, &mut reading, &event, world.now());
                if world.check(taken).is_none() {
                    return;
                }
            }
        }
        let overtaken = world.model().is_overtaken(key, &reading);
        if overtaken {
            world.reach("a takeover");
        }
        let patience = if overtaken { Duration::from_secs(60) + world.jumped() } else { Duration::from_millis(1) };
        match timeout(patience, connection.read(&world, usize::MAX)).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return connection.log(&world),
        }
    }
}

/// Cancels a call after a while.
pub(super) async fn cancel(world: Arc<World>, dialer: Dialer, key: Key, after: Duration) {
    world.sleep(after).await;
    let params = json!({ "requestId": key.1, "reason": "simulated" });
    let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string();
    world.model().call(key).cancelled = true;
    let request = Sender::of(&world, key.0).post(&body);
    ask(&world, &dialer, format!("c{}.{}.cancel", key.0, key.1), &request).await;
    world.reach("a cancel");
}
