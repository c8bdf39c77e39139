//! Many clients with running calls, all reset at one time, all back at once with their last event ID.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use super::client::{Client, Gone};
use super::{Target, USUAL, join_all, percentiles};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 2 * 1024;
/// Clients that begin at the same time; the cut spares nobody.
const BEGINNING: usize = 128;
/// What a stock client does: a second try, a second later, then it gives up.
const TRIES: usize = 2;
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, ClapArgs)]
pub(super) struct Args {
    /// Clients, each with one running call
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Events in each call
    #[arg(long, default_value_t = 10)]
    events: u64,
    /// Milliseconds between two of them
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 200)]
    bytes: usize,
}

/// What all clients wait for together.
struct Meeting {
    beginning: Semaphore,
    initialized: Barrier,
    reading: Barrier,
    cut: OnceLock<Instant>,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let meeting = Arc::new(Meeting {
        beginning: Semaphore::new(BEGINNING),
        initialized: Barrier::new(args.clients),
        reading: Barrier::new(args.clients),
        cut: OnceLock::new(),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..args.clients {
        tasks.spawn(client(target.clone(), args.clone(), Arc::clone(&meeting)));
    }
    let results = join_all(tasks).await?;
    let retried = results.iter().filter(|r| r.tries > 1).count();
    let missed: u64 = results.iter().map(|r| r.replayed).sum();
    let mut times: Vec<u64> = results.iter().map(|r| r.back_after).collect();
    Ok(json!({
        "load": "resume", "clients": args.clients, "total": args.events * args.clients as u64,
        "retried": retried, "in_first_read": missed,
        "back_us": percentiles(&mut times, USUAL)?,
    }))
}

struct Back {
    /// Nanoseconds from the cut to the first event of the resumed connection.
    back_after: u64,
    tries: usize,
    /// Progress notifications the first read of the resumed connection brought.
    replayed: u64,
}

async fn client(target: Target, args: Args, meeting: Arc<Meeting>) -> Result<Back> {
    let script = Script {
        mode: Mode::Events,
        events: args.events,
        interval_ms: args.interval_ms,
        bytes: args.bytes,
        ..Script::default()
    };
    let mut client = {
        let _permit = meeting.beginning.acquire().await?;
        Client::open(&target, READ_SIZE).await?
    };
    meeting.initialized.wait().await;
    let mut reader = Reader::new(1);
    {
        let _permit = meeting.beginning.acquire().await?;
        client.stream(1, &script).await?;
    }
    while reader.events == 0 {
        if client.read(&mut reader).await?.is_none() {
            return Err("a call ended before the cut: give it more events".into());
        }
    }
    meeting.reading.wait().await;
    let cut = *meeting.cut.get_or_init(Instant::now);
    let gone = client.cut()?;
    reader.forget_partial();
    let (mut client, tries) = come_back(&gone, &reader.cursor).await?;
    let before = reader.ids;
    let mut replayed = 0;
    while reader.ids == before {
        replayed += client.read(&mut reader).await?.ok_or("a resumed connection ended without an event")?;
    }
    let back_after = u64::try_from(cut.elapsed().as_nanos())?;
    while client.read(&mut reader).await?.is_some() {}
    reader.finish()?;
    Ok(Back { back_after, tries, replayed })
}

/// The resumed connection, its head read, and how many tries it took.
async fn come_back(gone: &Gone, cursor: &str) -> Result<(Client, usize)> {
    let mut tries = 1;
    loop {
        let attempt = async {
            let mut client = gone.come_back(READ_SIZE).await?;
            client.resume(cursor).await?;
            Ok(client)
        };
        match attempt.await {
            Ok(client) => return Ok((client, tries)),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => {
                tries += 1;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
