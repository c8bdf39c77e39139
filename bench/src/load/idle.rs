//! Idle connections, sessions or streams, held while the runner measures the proxy's memory.

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::Client;
use super::{Target, join_all, pause};
use crate::Result;
use crate::script::{Mode, Script};

/// Small, so that the tool itself can hold ten thousand.
const READ_SIZE: usize = 512;
/// Connections opened at the same time.
const OPENING: usize = 64;
/// Bytes of padding in the response before a connection is idle.
const RESPONSE: usize = 300;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Number of them to hold
    #[arg(long, default_value_t = 2000)]
    streams: usize,
    /// The form of what is held
    #[arg(long, value_enum, default_value = "stream")]
    what: What,
    /// Seconds of silence before the mark `open`, and between two waves
    #[arg(long, default_value_t = 0.0)]
    after_secs: f64,
    /// Waves of new connections. With several waves the second half is measured,
    /// from the mark `start` on: malloc then has the memory that earlier ones gave back
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    waves: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// A connection with a session and a call whose event stream is silent
    Stream,
    /// A connection that has carried one JSON call without a session
    Connection,
    /// A session; all share 64 connections
    Session,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let in_wave = args.streams / usize::try_from(args.waves)?;
    let (mut held, mut measured) = (Vec::new(), 0);
    for wave in 0..args.waves {
        if args.waves > 1 && wave == args.waves / 2 {
            pause("start").await?;
            measured = 0;
        }
        held.extend(match args.what {
            What::Session => open_sessions(&target, in_wave).await?,
            What::Stream | What::Connection => open_connections(&target, in_wave, args.what).await?,
        });
        measured += in_wave;
        sleep(Duration::from_secs_f64(args.after_secs)).await;
    }
    pause("open").await?;
    Ok(json!({ "load": "idle", "streams": measured, "connections": held.len() }))
}

/// Opens `number` connections, with a stream each if that is `what` is held.
async fn open_connections(target: &Target, number: usize, what: What) -> Result<Vec<Client>> {
    let opening = Arc::new(Semaphore::new(OPENING));
    let mut tasks = JoinSet::new();
    for _ in 0..number {
        let (target, opening) = (target.clone(), Arc::clone(&opening));
        tasks.spawn(async move {
            let _permit = opening.acquire().await?;
            match what {
                What::Connection => {
                    let mut client = Client::without_session(&target, READ_SIZE).await?;
                    let script = Script { mode: Mode::Json, bytes: RESPONSE, ..Script::default() };
                    client.json(1, &script, &mut Vec::new()).await?;
                    Ok(client)
                }
                What::Stream | What::Session => {
                    let script = Script { mode: Mode::Idle, duration_ms: 600_000, ..Script::default() };
                    let mut client = Client::open(&target, READ_SIZE).await?;
                    client.stream(1, &script).await?;
                    Ok(client)
                }
            }
        });
    }
    join_all(tasks).await
}

/// Opens `number` sessions on a few connections, which are returned.
async fn open_sessions(target: &Target, number: usize) -> Result<Vec<Client>> {
    let left = Arc::new(Mutex::new(number));
    let mut tasks = JoinSet::new();
    for _ in 0..OPENING {
        let (target, left) = (target.clone(), Arc::clone(&left));
        tasks.spawn(async move {
            let mut client = Client::without_session(&target, READ_SIZE).await?;
            loop {
                let mut left = left.lock().await;
                let Some(fewer) = left.checked_sub(1) else { return Ok(client) };
                *left = fewer;
                drop(left);
                client.initialize().await?;
            }
        });
    }
    join_all(tasks).await
}
