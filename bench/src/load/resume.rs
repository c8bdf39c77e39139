//! Many clients with running calls, all reset at one time, all reconnecting at once.
//!
//! Each acts like a stock client. A client with an event ID requests the events after it. A client
//! without one has lost its call: its user makes the call again, here at once, and the tool runs
//! once more from its beginning.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use super::client::{Client, Gone};
use super::{Target, USUAL, join_all, percentiles_if_any};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 2 * 1024;
/// Clients that begin at the same time; the cut hits all of them.
const BEGINNING: usize = 128;
/// The retries of a stock client: a second try, a second later, then it gives up.
const TRIES: usize = 2;
const RETRY: Duration = Duration::from_secs(1);
/// Time that a foreign server may take beyond that of two calls.
const PATIENCE: Duration = Duration::from_secs(5);
/// The request ids of a call and of its repetition.
const FIRST: u64 = 1;
const AGAIN: u64 = 2;

#[derive(Clone, ClapArgs)]
pub(super) struct Args {
    /// Clients, each with one running call
    #[arg(long, default_value_t = 2000)]
    clients: usize,
    /// Events in each call
    #[arg(long, default_value_t = 10)]
    events: u64,
    /// Events that every client has read before the cut
    #[arg(long, default_value_t = 3)]
    seen: u64,
    /// Milliseconds between two of them
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// Bytes of JSON in an event
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Do not cut: the cost of the same calls without it
    #[arg(long)]
    uncut: bool,
    /// Another proxy's URL; may be repeated. Clients are spread over all of them
    #[arg(long, value_parser = Target::parse)]
    also: Vec<Target>,
}

impl Args {
    fn script(&self) -> Script {
        Script {
            mode: Mode::Events,
            events: self.events,
            interval_ms: self.interval_ms,
            bytes: self.bytes,
            ..Script::default()
        }
    }
}

/// The barriers of all clients.
struct Barriers {
    beginning: Semaphore,
    initialized: Barrier,
    reading: Barrier,
    cut: OnceLock<Instant>,
}

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let barriers = Arc::new(Barriers {
        beginning: Semaphore::new(BEGINNING),
        initialized: Barrier::new(args.clients),
        reading: Barrier::new(args.clients),
        cut: OnceLock::new(),
    });
    let mut tasks = JoinSet::new();
    let targets = std::iter::once(&target).chain(&args.also).cycle();
    for each in targets.take(args.clients) {
        let each = Target { foreign: target.foreign, http_sse: target.http_sse, ..each.clone() };
        tasks.spawn(client(each, args.clone(), Arc::clone(&barriers)));
    }
    figures(&args, join_all(tasks).await?)
}

fn figures(args: &Args, clients: Vec<Outcome>) -> Result<Value> {
    let failures: Vec<String> = clients.iter().filter_map(|c| c.as_ref().err().cloned()).collect();
    let clients: Vec<Back> = clients.into_iter().filter_map(std::result::Result::ok).collect();
    let count = |which: fn(&&Back) -> bool| clients.iter().filter(which).count();
    let sum = |of: fn(&Back) -> u64| clients.iter().map(of).sum::<u64>();
    let times = |of: fn(&Back) -> u64| percentiles_if_any(&mut clients.iter().map(of).collect::<Vec<_>>(), USUAL);
    Ok(json!({
        "load": "resume", "clients": args.clients, "total": args.events * args.clients as u64,
        "resumed": count(|c| !c.lost_call), "lost_calls": count(|c| c.lost_call),
        "failed": failures.len(), "failure": failures.first(),
        "lost_events": sum(|c| c.lost_events), "lost_again": sum(|c| c.lost_again), "repeated_events": sum(|c| c.repeated_events),
        "retried": count(|c| c.tries > 1), "in_first_read": sum(|c| c.in_first_read),
        "first_byte_us": times(|c| c.first_byte)?, "back_us": times(|c| c.back)?, "caught_up_us": times(|c| c.caught_up)?,
    }))
}

/// Outcome of a client, or the reason that a foreign one did not resume.
type Outcome = std::result::Result<Back, String>;

/// Outcome of one client, empty without a cut. Times are nanoseconds from the cut, which is one
/// instant for all.
#[derive(Default)]
struct Back {
    /// True if it had no event ID: its call was lost, and was made again.
    lost_call: bool,
    /// Events of the call running at the cut that no connection delivered.
    lost_events: u64,
    /// Events of the second run that its client did not get either; only for a foreign server.
    lost_again: u64,
    /// Events that came a second time, from a second run of the tool.
    repeated_events: u64,
    tries: usize,
    /// Progress notifications of the new connection's first read.
    in_first_read: u64,
    /// Time until the head of the new connection's response.
    first_byte: u64,
    /// Time until the first event of the new connection.
    back: u64,
    /// Time until a running call has delivered all events that the client had at the cut: for a
    /// resumed call its first event, for a repeated one as many events as before.
    caught_up: u64,
}

async fn client(target: Target, args: Args, barriers: Arc<Barriers>) -> Result<Outcome> {
    let (mut client, mut reader) = reading(&target, &args, &barriers).await?;
    barriers.reading.wait().await;
    if args.uncut {
        while client.read(&mut reader).await?.is_some() {}
        reader.finish()?;
        return Ok(Ok(Back::default()));
    }
    let cut = *barriers.cut.get_or_init(Instant::now);
    let foreign = target.foreign;
    let back = cut_and_back(client, reader, &args, cut);
    if !foreign {
        return Ok(Ok(back.await?));
    }
    let enough = Duration::from_millis(2 * args.events * args.interval_ms) + PATIENCE;
    Ok(match tokio::time::timeout(enough, back).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(format!("not back, or not at the end of its call, after {} s", enough.as_secs())),
    })
}

async fn cut_and_back(client: Client, reader: Reader, args: &Args, cut: Instant) -> Result<Back> {
    let since_cut = || u64::try_from(cut.elapsed().as_nanos());
    let gone = client.cut()?;
    let mut way = Way::of(&reader, args);
    let mut came = come_back(&gone, &way).await;
    if came.is_err() && gone.foreign() && matches!(way, Way::Resume(_)) {
        // Its event ID was refused.
        way = Way::CallAgain(args.script());
        came = come_back(&gone, &way).await;
    }
    let (mut client, tries) = came?;
    let first_byte = since_cut()?;
    let (had, lost_call) = (reader.events, matches!(way, Way::CallAgain(_)));
    let mut reader = if lost_call { client.reader(AGAIN) } else { reader };
    reader.forget_partial();
    let (ids, events) = (reader.ids, reader.events);
    let mut in_first_read = 0;
    while (reader.ids, reader.events) == (ids, events) {
        in_first_read += client.read(&mut reader).await?.ok_or("a new connection ended without an event")?;
    }
    let back = since_cut()?;
    while reader.events < had {
        client.read(&mut reader).await?.ok_or("a call made again ended early")?;
    }
    let caught_up = since_cut()?;
    while client.read(&mut reader).await?.is_some() {}
    reader.finish()?;
    let repeated_events = if lost_call { had } else { reader.repeated };
    let (lost_events, lost_again) = if lost_call { (args.events - had, reader.missing) } else { (reader.missing, 0) };
    Ok(Back { lost_call, lost_events, lost_again, repeated_events, tries, in_first_read, first_byte, back, caught_up })
}

/// A client whose call has delivered its first events, once all have begun.
async fn reading(target: &Target, args: &Args, barriers: &Barriers) -> Result<(Client, Reader)> {
    let mut client = {
        let _permit = barriers.beginning.acquire().await?;
        Client::open(target, READ_SIZE).await?
    };
    barriers.initialized.wait().await;
    let mut reader = client.reader(FIRST);
    {
        let _permit = barriers.beginning.acquire().await?;
        client.stream(FIRST, &args.script()).await?;
    }
    while reader.events < args.seen {
        if client.read(&mut reader).await?.is_none() {
            return Err("a call ended before the cut: give it more events".into());
        }
    }
    Ok((client, reader))
}

/// The options of a client without a connection.
enum Way {
    /// Request the events after this event ID.
    Resume(String),
    /// Make the call again.
    CallAgain(Script),
}

impl Way {
    fn of(reader: &Reader, args: &Args) -> Self {
        if reader.cursor.is_empty() { Self::CallAgain(args.script()) } else { Self::Resume(reader.cursor.clone()) }
    }
}

/// The new connection, its head read, and the number of its tries.
async fn come_back(gone: &Gone, way: &Way) -> Result<(Client, usize)> {
    let mut tries = 1;
    loop {
        let attempt = async {
            let mut client = gone.come_back(READ_SIZE).await?;
            match way {
                Way::Resume(cursor) => client.resume(cursor).await?,
                Way::CallAgain(script) => client.stream(AGAIN, script).await?,
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream;
    use crate::wire::Conn;

    const CLIENTS: usize = 8;
    const EVENTS: u64 = 100;

    #[tokio::test(start_paused = true)]
    async fn a_client_without_an_event_id_loses_its_call_and_the_tool_runs_again() -> Result<()> {
        loses_its_call(false).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_a_foreign_server_does_the_same() -> Result<()> {
        loses_its_call(true).await
    }

    async fn loses_its_call(foreign: bool) -> Result<()> {
        let (mcp, acks) = (upstream::listen()?, upstream::listen()?);
        let target = Target { foreign, ..Target::parse(&format!("http://{}/mcp", mcp.local_addr()?))? };
        let server = tokio::spawn(upstream::serve(mcp, acks));
        let args = Args {
            clients: CLIENTS,
            events: EVENTS,
            seen: 2,
            interval_ms: 1000,
            bytes: 100,
            uncut: false,
            also: vec![],
        };
        let figures = run(target.clone(), args).await?;
        assert_eq!((&figures["resumed"], &figures["failed"]), (&json!(0), &json!(0)), "{figures}");
        assert_eq!(figures["lost_calls"], CLIENTS, "{figures}");
        let (lost, repeated) = (figures["lost_events"].as_u64(), figures["repeated_events"].as_u64());
        let all = EVENTS * CLIENTS as u64;
        assert_eq!(lost.zip(repeated).map(|(lost, repeated)| lost + repeated), Some(all), "{figures}");
        assert!(lost > Some(0) && repeated >= Some(2 * CLIENTS as u64), "{figures}");
        let runs = runs(&target).await?;
        assert_eq!((&runs["begun"], &runs["ended"]), (&json!(2 * CLIENTS), &json!(CLIENTS)), "{runs}");
        server.abort();
        Ok(())
    }

    /// The upstream's count of its tool's runs.
    async fn runs(target: &Target) -> Result<Value> {
        let mut conn = Conn::connect(target.addr, READ_SIZE).await?;
        conn.write(b"GET /runs HTTP/1.1\r\nHost: bench\r\n\r\n").await?;
        conn.response().await?;
        let mut json = Vec::new();
        conn.rest(&mut json).await?;
        Ok(serde_json::from_slice(&json)?)
    }
}
