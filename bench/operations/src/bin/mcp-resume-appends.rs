//! Durable appends alone: streams that each append their next batch once the store has the last
//! one.
//!
//! Two threads with a runtime each call the store, as the workers of `serve` do; nothing is
//! encoded, framed or sent. Prints one line of JSON. A failed append ends the run.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use mcp_resume::protocol::ids::{Owner, Seq, StreamId};
use mcp_resume::protocol::stream::Batch;
use mcp_resume::protocol::tail::Tail;
use mcp_resume::store::disk::{self, Disk, Fsync};
use mcp_resume::store::redis::{self, Redis};
use mcp_resume::store::{Appended, Store};

type Error = Box<dyn std::error::Error + Send + Sync>;

const THREADS: usize = 2;
const EVENT: [u8; 200] = [b'x'; 200];
const KEEP: Duration = Duration::from_secs(3600);

/// Appends to a store for a while.
#[derive(Parser)]
#[command(name = "mcp-resume-appends")]
struct Cli {
    /// The store
    store: Kind,
    /// A new directory, or the URL of a Redis
    at: Option<String>,
    /// Streams, each with one append in flight
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Events of 200 bytes in an append
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Seconds to measure
    #[arg(long, default_value_t = 1.0)]
    secs: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Memory,
    Disk,
    Interval,
    Redis,
}

/// Figures of the appends.
struct Run {
    times: Vec<Duration>,
    elapsed: Duration,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mcp-resume-appends: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    // The store's own connections and tasks, as `serve` has them on its main thread.
    let main = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let store = main.block_on(open(cli))?;
    let length = Duration::from_secs_f64(cli.secs);
    let began = Instant::now();
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            let (store, batch) = (store.clone(), cli.batch);
            let streams: Vec<StreamId> = (index..cli.streams).step_by(THREADS).map(name).collect();
            thread::spawn(move || -> Result<Vec<Duration>, Error> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(append_all(store, streams, batch, began + length))
            })
        })
        .collect();
    let mut run = Run { times: Vec::new(), elapsed: length };
    for thread in threads {
        run.times.extend(thread.join().map_err(|_| "a thread panicked")??);
    }
    run.elapsed = began.elapsed();
    run.print(cli.batch);
    Ok(())
}

fn name(index: usize) -> StreamId {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&(index as u64).to_be_bytes());
    StreamId::from_bytes(bytes)
}

/// `None` is memory, which the event log does not treat as a store.
async fn open(cli: &Cli) -> Result<Option<Arc<dyn Store>>, Error> {
    let at = || cli.at.clone().ok_or("say where");
    let fsync = if matches!(cli.store, Kind::Disk) { Fsync::Always } else { Fsync::Interval };
    Ok(match cli.store {
        Kind::Memory => None,
        Kind::Disk | Kind::Interval => {
            Some(Disk::open(disk::Options { path: at()?.into(), fsync, max_bytes: 1 << 40 }, "appends")?.store)
        }
        Kind::Redis => Some(Redis::connect(redis::Options::new(&at()?), Owner::from_name("appends")).await?.store),
    })
}

async fn append_all(
    store: Option<Arc<dyn Store>>,
    streams: Vec<StreamId>,
    events: usize,
    until: Instant,
) -> Result<Vec<Duration>, Error> {
    let writers: Vec<_> =
        streams.into_iter().map(|stream| tokio::spawn(append_to_one(store.clone(), stream, events, until))).collect();
    let mut times = Vec::new();
    for stream in writers {
        times.extend(stream.await??);
    }
    Ok(times)
}

async fn append_to_one(
    store: Option<Arc<dyn Store>>,
    stream: StreamId,
    events: usize,
    until: Instant,
) -> Result<Vec<Duration>, Error> {
    let epoch = match &store {
        Some(store) => store.create(stream, b"about", Seq(0), KEEP).wait().await?,
        None => Default::default(),
    };
    let (mut tail, mut after, mut times) = (Tail::new(), Seq(0), Vec::new());
    loop {
        let began = Instant::now();
        if began >= until {
            return Ok(times);
        }
        let mut batch = Batch::starting_at(Seq(after.0 + 1));
        (0..events).for_each(|_| batch.push_encoded(&EVENT));
        let appended = match &store {
            Some(store) => store.append(stream, epoch, after, &batch, None).wait().await?,
            None => {
                tokio::task::yield_now().await;
                tail.append(epoch, after, &batch)
            }
        };
        if appended != Appended::Ok {
            return Err(format!("an append behind {after} met {appended:?}").into());
        }
        after.0 += events as u64;
        // Memory alone would soon be full.
        tail.trim(after);
        times.push(began.elapsed());
    }
}

impl Run {
    fn print(mut self, batch: usize) {
        self.times.sort_unstable();
        let at = |share: f64| {
            let index = (self.times.len() as f64 * share) as usize;
            self.times.get(index.min(self.times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        let rate = self.times.len() as f64 / self.elapsed.as_secs_f64();
        println!(
            r#"{{"appends_per_sec":{rate:.0},"events_per_sec":{:.0},"p50_us":{:.1},"p99_us":{:.1}}}"#,
            rate * batch as f64,
            at(0.5),
            at(0.99)
        );
    }
}
