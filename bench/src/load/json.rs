//! Requests answered with JSON: on every connection one after another, as fast as possible.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::client::Client;
use super::{Target, USUAL, join_all, percentiles};
use crate::Result;
use crate::payload::{same_answer, write_answer};
use crate::script::{Mode, Script};

const READ_SIZE: usize = 4 * 1024;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Seconds to measure
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Seconds before that, not measured
    #[arg(long, default_value_t = 0.5)]
    warm_up_secs: f64,
    /// Bytes of padding in a response
    #[arg(long, default_value_t = 200)]
    bytes: usize,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let ready = Arc::new(Barrier::new(args.concurrency));
    let warm_up = Duration::from_secs_f64(args.warm_up_secs);
    let measured = Duration::from_secs_f64(args.secs);
    let mut tasks = JoinSet::new();
    for _ in 0..args.concurrency {
        let (target, ready, bytes) = (target.clone(), Arc::clone(&ready), args.bytes);
        tasks.spawn(async move {
            let client = Client::open(&target, READ_SIZE).await?;
            ready.wait().await;
            let start = Instant::now() + warm_up;
            requests(client, bytes, start, start + measured).await
        });
    }
    let results = join_all(tasks).await?;
    let total: u64 = results.iter().map(|r| r.0).sum();
    let mut latencies: Vec<u64> = results.into_iter().flat_map(|r| r.1).collect();
    Ok(json!({
        "load": "json", "concurrency": args.concurrency, "total": total,
        "per_sec": latencies.len() as f64 / args.secs,
        "latency_us": percentiles(&mut latencies, USUAL)?,
    }))
}

/// All requests made until `end`, and the nanoseconds of those answered from `start` on.
async fn requests(mut client: Client, bytes: usize, start: Instant, end: Instant) -> Result<(u64, Vec<u64>)> {
    let script = Script { mode: Mode::Json, bytes, ..Script::default() };
    let foreign = client.foreign();
    let (mut got, mut latencies) = (Vec::new(), Vec::new());
    for id in 1.. {
        let sent = Instant::now();
        client.json(id, &script, &mut got).await?;
        let done = Instant::now();
        expect_answer(&got, id, bytes, foreign)?;
        if done >= end {
            return Ok((id, latencies));
        }
        if done >= start {
            latencies.push(u64::try_from((done - sent).as_nanos())?);
        }
        got.clear();
    }
    Ok((0, latencies))
}

/// `Err` for anything but the answer to call `id`, with `bytes` of padding; a foreign server's JSON
/// may be written otherwise.
pub(super) fn expect_answer(got: &[u8], id: u64, bytes: usize, foreign: bool) -> Result<()> {
    let mut due = Vec::with_capacity(got.len());
    write_answer(&mut due, id, 0, bytes);
    if got == due || (foreign && same_answer(got, &due)) {
        return Ok(());
    }
    let (got, due) = (String::from_utf8_lossy(got), String::from_utf8_lossy(&due));
    Err(format!("answered {got:?} where {due:?} was due").into())
}
