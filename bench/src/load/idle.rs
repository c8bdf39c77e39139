//! Idle streams, held while the runner measures the proxy's memory.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::Client;
use super::{Target, join_all, pause};
use crate::Result;
use crate::script::{Mode, Script};

/// Small, so that the tool itself can hold ten thousand.
const READ_SIZE: usize = 512;
/// Connections opened at the same time.
const OPENING: usize = 64;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Streams to open
    #[arg(long, default_value_t = 2000)]
    streams: usize,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let opening = Arc::new(Semaphore::new(OPENING));
    let script = Script { mode: Mode::Idle, duration_ms: 600_000, ..Script::default() };
    let mut tasks = JoinSet::new();
    for _ in 0..args.streams {
        let (target, opening, script) = (target.clone(), Arc::clone(&opening), script.clone());
        tasks.spawn(async move {
            let _permit = opening.acquire().await?;
            let mut client = Client::open(&target, READ_SIZE).await?;
            client.stream(1, &script).await?;
            Ok(client)
        });
    }
    let held = join_all(tasks).await?;
    pause("open").await?;
    Ok(json!({ "load": "idle", "streams": held.len() }))
}
