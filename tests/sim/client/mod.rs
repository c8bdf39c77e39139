//! The clients: they POST, read, lose their connection, and come back as SDKs do.

mod beside;
mod caller;
mod connection;
mod exchange;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::network::Dialer;
use super::plan::Client;
use super::rng::Rng;
use super::sessions::client_of;
use super::world::World;
use caller::Caller;
use connection::{Sender, ask};

/// Deletes the session of a client.
async fn delete(world: Arc<World>, dialer: Dialer, client: usize) {
    world.model().deleted.insert(client);
    let request = Sender::of(&world, client).head("DELETE", "\r\n");
    loop {
        let Some((head, _)) = ask(&world, &dialer, format!("c{client}.close"), &request).await else { return };
        match head.status() {
            200 => return world.sessions().note_end(client),
            500.. => world.sleep(Duration::from_secs(1)).await,
            _ if world.plan.restarts.is_empty() => return,
            _ => return world.blame(format!("client {client}: the end of its session was answered {}", head.line)),
        }
    }
}

/// Deletes the session of a client while its calls may run.
async fn delete_at(world: Arc<World>, dialer: Dialer, client: usize, at: Duration) {
    world.sleep(at.saturating_sub(world.elapsed())).await;
    if world.sessions().is_being_opened_again(client) {
        world.reach("the end of a session that was being opened again");
    }
    delete(world, dialer, client).await;
}

/// One client, from its `initialize` on.
pub(crate) async fn run(world: Arc<World>, dialer: Dialer, client: usize, mut rng: Rng) {
    let sender = Sender::of(&world, client);
    if !world.plan.is_modern((client, 0)) {
        let version = world.plan.clients[client].version;
        let info = json!({ "name": client.to_string(), "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": info });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string();
        loop {
            let Some((head, _)) = ask(&world, &dialer, format!("c{client}.open"), &sender.post(&body)).await else {
                return;
            };
            if head.status() == 200 {
                let name = head.header("mcp-session-id").unwrap_or_default();
                if client_of(name) != Some(client) {
                    world.blame(format!("client {client} got another's session: {head:?}"));
                }
                world.sessions().show(client, name);
                if !world.plan.restarts.is_empty() {
                    world.sessions().note_initialized(client);
                    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
                    ask(&world, &dialer, format!("c{client}.opened"), &sender.post(initialized)).await;
                }
                break;
            }
            if !world.refuses() && world.plan.restarts.is_empty() {
                world.blame(format!("client {client} got no session: {head:?}"));
                return;
            }
            world.sleep(Duration::from_millis(500)).await;
        }
    }
    let mut calls = tokio::task::JoinSet::new();
    if let Some(listening) = &world.plan.clients[client].listens {
        let listener = Caller::new(&world, &dialer, (client, 0), listening.as_call(), rng.fork());
        calls.spawn(listener.listen(listening.lasts));
    }
    for (index, call) in world.plan.clients[client].calls.iter().enumerate() {
        let caller = Caller::new(&world, &dialer, (client, index + 1), call.clone(), rng.fork());
        calls.spawn(caller.run());
    }
    if let Some(at) = world.plan.clients[client].ends {
        calls.spawn(delete_at(world.clone(), dialer.clone(), client, at));
    }
    calls.join_all().await;
    let Client { deletes, ends, .. } = &world.plan.clients[client];
    if *deletes && ends.is_none() && !world.plan.is_modern((client, 0)) {
        delete(world.clone(), dialer, client).await;
    }
}
