//! A few clients that are cut and reconnect at once, again and again, each to an idle stream.
//!
//! This isolates the cost of a resume, beside many other streams or at the end of a long one.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::JoinSet;

use super::client::{Client, Gone};
use super::{Target, USUAL, join_all, pause, percentiles};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 64 * 1024;

#[derive(Clone, ClapArgs)]
pub(super) struct Args {
    /// Clients, each with a stream of its own
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Number of cuts of each client
    #[arg(long, default_value_t = 50)]
    times: u64,
    /// Events of each stream
    #[arg(long, default_value_t = 0)]
    events: u64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Resume from the beginning, not from the client's cursor: all events are read again
    #[arg(long)]
    from_start: bool,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let mut opening = JoinSet::new();
    for _ in 0..args.clients {
        opening.spawn(open(target.clone(), args.clone()));
    }
    let open = join_all(opening).await?;
    pause("ready").await?;
    let start = Instant::now();
    let mut coming = JoinSet::new();
    for (client, reader) in open {
        coming.spawn(come_back(client, reader, args.clone()));
    }
    let mut times: Vec<u64> = join_all(coming).await?.into_iter().flatten().collect();
    let took = start.elapsed();
    pause("done").await?;
    let resumes = args.times * args.clients as u64;
    Ok(json!({
        "load": "back", "clients": args.clients, "total": resumes, "events": if args.from_start { args.events } else { 0 },
        "per_sec": resumes as f64 / took.as_secs_f64(),
        "first_byte_us": percentiles(&mut times, USUAL)?,
    }))
}

/// A client that has read all events of its stream, and has an event ID.
async fn open(target: Target, args: Args) -> Result<(Client, Reader)> {
    let script =
        Script { mode: Mode::Idle, filled: args.events, bytes: args.bytes, duration_ms: 600_000, ..Script::default() };
    let mut client = Client::open(&target, READ_SIZE).await?;
    let mut reader = Reader::new(1);
    client.stream(1, &script).await?;
    read_to(&mut client, &mut reader, args.events).await?;
    Ok((client, reader))
}

/// The nanoseconds from the start of each new connection to the head of its response.
async fn come_back(mut client: Client, mut reader: Reader, args: Args) -> Result<Vec<u64>> {
    let mut times = Vec::new();
    for _ in 0..args.times {
        let gone: Gone = client.cut()?;
        if args.from_start {
            reader = Reader::resuming(1, &reader.first_id)?;
        }
        reader.forget_partial();
        let start = Instant::now();
        client = gone.come_back(READ_SIZE).await?;
        client.resume(&reader.cursor).await?;
        times.push(u64::try_from(start.elapsed().as_nanos())?);
        reader.ids = 0;
        read_to(&mut client, &mut reader, args.events).await?;
    }
    Ok(times)
}

/// Reads until the given number of events was read, and an id on this connection.
async fn read_to(client: &mut Client, reader: &mut Reader, events: u64) -> Result<()> {
    while reader.events < events || reader.ids == 0 {
        client.read(reader).await?.ok_or("a stream that is held has ended")?;
    }
    Ok(())
}
