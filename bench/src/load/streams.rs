//! Event streams, all at once: one event in flight each, one event per tick each, or as fast as
//! they can be written.

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use super::client::Client;
use super::{Target, USUAL, join_all, percentiles};
use crate::acks::Acks;
use crate::payload::now_nanos;
use crate::reader::Reader;
use crate::script::{Mode, Script};
use crate::{Error, Result};

const READ_SIZE: usize = 64 * 1024;
/// Bytes of one write of an upstream that buffers naturally.
const GATHER: usize = 16 * 1024;
/// Connections opened at the same time.
const OPENING: usize = 64;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Condition for the next event
    #[arg(long, value_enum, default_value_t = Pace::Ack)]
    pace: Pace,
    /// Streams, each on a connection of its own
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Seconds for which events are sent
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Milliseconds between two events of a stream, for `tick`
    #[arg(long, default_value_t = 10)]
    interval_ms: u64,
    /// Events of each stream before the pace begins, without latencies
    #[arg(long, default_value_t = 0)]
    filled: u64,
    /// The upstream's port for acknowledgements, for `ack`
    #[arg(long)]
    acks: Option<SocketAddr>,
}

/// The upstream's pace of a stream's events.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Pace {
    /// After the last one was read: one event of each stream is in flight, each flushed on its own
    Ack,
    /// Every `interval-ms`
    Tick,
    /// At once, each a write of its own
    Burst,
    /// At once, gathered into writes of 16 KiB
    Gathered,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let acks = match (args.pace, args.acks) {
        (Pace::Ack, Some(addr)) => Some(Acks::connect(addr).await?),
        (Pace::Ack, None) => return Err("--pace ack needs --acks".into()),
        _ => None,
    };
    let (opening, ready) = (Arc::new(Semaphore::new(OPENING)), Arc::new(Barrier::new(args.streams)));
    let first_key = now_nanos();
    let mut tasks = JoinSet::new();
    for n in 0..args.streams as u64 {
        let (target, acks) = (target.clone(), acks.clone());
        let (opening, ready) = (Arc::clone(&opening), Arc::clone(&ready));
        let script = script(&args, first_key + n)?;
        // Spread over one tick, so that the events of all streams do not coincide.
        let offset = Duration::from_millis(script.interval_ms) * u32::try_from(n)? / u32::try_from(args.streams)?;
        tasks.spawn(async move {
            let client = {
                let _permit = opening.acquire().await?;
                Client::open(&target, READ_SIZE).await?
            };
            ready.wait().await;
            tokio::time::sleep(offset).await;
            read_stream(client, &script, acks).await
        });
    }
    figures(&args, join_all(tasks).await?)
}

fn script(args: &Args, key: u64) -> Result<Script> {
    let duration_ms = Duration::from_secs_f64(args.secs).as_millis();
    Ok(Script {
        mode: Mode::Events,
        bytes: args.bytes,
        duration_ms: u64::try_from(duration_ms)?,
        interval_ms: if args.pace == Pace::Tick { args.interval_ms } else { 0 },
        ack: if args.pace == Pace::Ack { key } else { 0 },
        gather: if args.pace == Pace::Gathered { GATHER } else { 0 },
        filled: args.filled,
        ..Script::default()
    })
}

struct Read {
    reader: Reader,
    reads: u64,
    took: Duration,
}

async fn read_stream(mut client: Client, script: &Script, acks: Option<Acks>) -> Result<Read> {
    let mut reader = client.reader(1);
    if script.gather == 0 {
        reader = reader.with_latencies_after(script.filled);
    }
    let start = Instant::now();
    let reads = client.reads();
    client.stream(1, script).await?;
    while let Some(events) = client.read(&mut reader).await? {
        if let Some(acks) = &acks {
            acks.send(script.ack, events);
        }
    }
    reader.finish()?;
    Ok(Read { reader, reads: client.reads() - reads, took: start.elapsed() })
}

fn figures(args: &Args, streams: Vec<Read>) -> Result<Value> {
    let events: u64 = streams.iter().map(|s| s.reader.events).sum();
    let sum = |of: fn(&Reader) -> u64| streams.iter().map(|s| of(&s.reader)).sum::<u64>();
    let (missing, repeated) = (sum(|r| r.missing), sum(|r| r.repeated));
    let reads: u64 = streams.iter().map(|s| s.reads).sum();
    let bytes: u64 = streams.iter().map(|s| s.reader.bytes).sum();
    let took = streams.iter().map(|s| s.took).max().unwrap_or_default();
    let numbered = streams.iter().filter(|s| s.reader.ids > 0).count();
    let mut latencies: Vec<u64> = streams.into_iter().flat_map(|s| s.reader.latencies.unwrap_or_default()).collect();
    let latency = if latencies.is_empty() { Value::Null } else { percentiles(&mut latencies, USUAL)? };
    let pace = args.pace.to_possible_value().ok_or_else(|| Error::from("a pace without a name"))?;
    Ok(json!({
        "load": pace.get_name(), "streams": args.streams, "numbered": numbered, "total": events - missing, "bytes": bytes,
        "missing": missing, "repeated": repeated,
        "per_sec": (events - missing) as f64 / took.as_secs_f64(),
        "events_per_read": events as f64 / reads.max(1) as f64,
        "latency_us": latency,
    }))
}
