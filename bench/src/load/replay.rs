//! Finished streams, read again from before their first event.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::JoinSet;

use super::client::Client;
use super::{Target, join_all, pause};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 64 * 1024;
const GATHER: usize = 16 * 1024;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Streams, each on a connection of its own
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Events in each
    #[arg(long, default_value_t = 50_000)]
    events: u64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Number of replays of all streams
    #[arg(long, default_value_t = 3)]
    times: u32,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    pause("empty").await?;
    let start = Instant::now();
    let mut streams = fill(&target, &args).await?;
    let fill_took = start.elapsed();
    pause("filled").await?;
    let bytes: u64 = streams.iter().map(|s| s.bytes).sum();
    let events = args.events * args.streams as u64;
    let mut rates = Vec::new();
    for _ in 0..args.times {
        let start = Instant::now();
        streams = replay(streams, args.events).await?;
        rates.push(events as f64 / start.elapsed().as_secs_f64());
    }
    rates.sort_unstable_by(f64::total_cmp);
    Ok(json!({
        "load": "replay", "streams": args.streams, "events": events, "total": events * u64::from(args.times), "bytes": bytes,
        "fill_per_sec": events as f64 / fill_took.as_secs_f64(),
        "per_sec": rates.get(rates.len() / 2),
    }))
}

/// A finished stream and its client.
struct Finished {
    client: Client,
    /// The event ID before the first event.
    first_id: String,
    bytes: u64,
}

async fn fill(target: &Target, args: &Args) -> Result<Vec<Finished>> {
    let script =
        Script { mode: Mode::Events, events: args.events, bytes: args.bytes, gather: GATHER, ..Script::default() };
    let mut tasks = JoinSet::new();
    for _ in 0..args.streams {
        let (target, script) = (target.clone(), script.clone());
        tasks.spawn(async move {
            let mut client = Client::open(&target, READ_SIZE).await?;
            let mut reader = Reader::new(1);
            client.stream(1, &script).await?;
            while client.read(&mut reader).await?.is_some() {}
            reader.finish()?;
            if !reader.first_id.ends_with(".0") {
                return Err(format!("the stream began with the id {:?}, not <handle>.0", reader.first_id).into());
            }
            Ok(Finished { client, first_id: reader.first_id, bytes: reader.bytes })
        });
    }
    join_all(tasks).await
}

async fn replay(streams: Vec<Finished>, events: u64) -> Result<Vec<Finished>> {
    let mut tasks = JoinSet::new();
    for mut stream in streams {
        tasks.spawn(async move {
            let mut reader = Reader::resuming(1, &stream.first_id)?;
            stream.client.resume(&stream.first_id).await?;
            while stream.client.read(&mut reader).await?.is_some() {}
            reader.finish()?;
            if reader.events != events {
                return Err(format!("{} of {events} events were replayed", reader.events).into());
            }
            Ok(stream)
        });
    }
    join_all(tasks).await
}
