//! Short calls answered with event streams: on every connection one after another, as fast as
//! possible.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::client::Client;
use super::{Target, USUAL, join_all, pause, percentiles};
use crate::Result;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 4 * 1024;
/// Calls of each connection before the counted ones.
const WARM_UP_CALLS: u64 = 50;

#[derive(ClapArgs)]
pub(super) struct Args {
    /// Connections, each with one call at a time
    #[arg(long, default_value_t = 64)]
    concurrency: u64,
    /// Events of a call: progress notifications, and the response as the last
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 225)]
    bytes: usize,
    /// Open a session for each connection before its first call
    #[arg(long)]
    session: bool,
    /// Send a credential of its own on each connection
    #[arg(long)]
    credential: bool,
    /// Calls of all connections between the marks `before` and `after`, not timed; 0 = none, and no
    /// marks
    #[arg(long, default_value_t = 0)]
    calls: u64,
    /// Seconds to measure; 0 = nothing is timed
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Seconds before that, not measured
    #[arg(long, default_value_t = 0.5)]
    warm_up_secs: f64,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let mut callers = open(&target, &args).await?;
    let counted = args.calls / args.concurrency.max(1);
    if counted > 0 {
        callers = repeat(callers, WARM_UP_CALLS).await?;
        pause("before").await?;
        callers = repeat(callers, counted).await?;
        pause("after").await?;
    }
    let is_timed = args.secs > 0.0;
    let (callers, mut latencies) = if is_timed { measure(callers, &args).await? } else { (callers, Vec::new()) };
    let latency = if is_timed { percentiles(&mut latencies, USUAL)? } else { Value::Null };
    Ok(json!({
        "load": "short", "concurrency": args.concurrency, "events": args.events,
        "calls": counted * args.concurrency, "total": callers.iter().map(|caller| caller.made).sum::<u64>(),
        "per_sec": is_timed.then(|| latencies.len() as f64 / args.secs),
        "latency_us": latency,
    }))
}

/// A client, and its number of calls.
struct Caller {
    client: Client,
    script: Script,
    made: u64,
}

impl Caller {
    /// Makes one call and checks all of its events.
    async fn call(&mut self) -> Result<()> {
        self.made += 1;
        let mut reader = self.client.reader(self.made);
        self.client.stream(self.made, &self.script).await?;
        while self.client.read(&mut reader).await?.is_some() {}
        reader.finish()?;
        if reader.events != self.script.events {
            return Err(format!("{} events where {} were due", reader.events, self.script.events).into());
        }
        Ok(())
    }

    /// Makes calls until `end`; the nanoseconds of those answered from `start` on.
    async fn until(&mut self, start: Instant, end: Instant) -> Result<Vec<u64>> {
        let mut latencies = Vec::new();
        loop {
            let sent = Instant::now();
            self.call().await?;
            let done = Instant::now();
            if done >= end {
                return Ok(latencies);
            }
            if done >= start {
                latencies.push(u64::try_from((done - sent).as_nanos())?);
            }
        }
    }
}

async fn open(target: &Target, args: &Args) -> Result<Vec<Caller>> {
    let script = Script { mode: Mode::Short, events: args.events - 1, bytes: args.bytes, ..Script::default() };
    let mut callers = Vec::new();
    for n in 0..args.concurrency {
        let mut target = target.clone();
        if args.credential {
            target.credential = format!("Authorization: Bearer bench-{n}\r\n");
        }
        let client = match args.session {
            true => Client::open(&target, READ_SIZE).await?,
            false => Client::without_session(&target, READ_SIZE).await?,
        };
        callers.push(Caller { client, script: script.clone(), made: 0 });
    }
    Ok(callers)
}

/// Makes `calls` calls with every caller.
async fn repeat(callers: Vec<Caller>, calls: u64) -> Result<Vec<Caller>> {
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        tasks.spawn(async move {
            for _ in 0..calls {
                caller.call().await?;
            }
            Ok(caller)
        });
    }
    join_all(tasks).await
}

/// Makes calls with every caller for the measured time; the callers, and the nanoseconds of the
/// measured calls.
async fn measure(callers: Vec<Caller>, args: &Args) -> Result<(Vec<Caller>, Vec<u64>)> {
    let ready = Arc::new(Barrier::new(callers.len()));
    let (warm_up, measured) = (Duration::from_secs_f64(args.warm_up_secs), Duration::from_secs_f64(args.secs));
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        let ready = Arc::clone(&ready);
        tasks.spawn(async move {
            ready.wait().await;
            let start = Instant::now() + warm_up;
            let latencies = caller.until(start, start + measured).await?;
            Ok((caller, latencies))
        });
    }
    let (callers, latencies): (Vec<_>, Vec<_>) = join_all(tasks).await?.into_iter().unzip();
    Ok((callers, latencies.concat()))
}
