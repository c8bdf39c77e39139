//! All kinds of client traffic, at a steady rate, for long; the proxy's memory is observed from
//! outside meanwhile.
//!
//! The order is fixed: the same clients in the same turn, again and again. Some have a session and
//! a connection for the whole run, the others come and go. All bytes are checked as in every other
//! load, and so are the errors of calls that the client has lost by its own action.

use clap::Args as ClapArgs;
use memchr::memmem;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use super::client::{Client, Gone};
use super::json::expect_answer;
use super::{Target, join_all};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Mode, Script};

const READ_SIZE: usize = 4 * 1024;
/// Sessions for the whole run, each with a connection.
const KEPT: usize = 16;
/// A proxy closes a connection that is idle for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Events of a call, and the milliseconds between them.
const EVENTS: u64 = 20;
const INTERVAL_MS: u64 = 100;
/// Bytes of an event, in turn.
const BYTES: [usize; 4] = [100, 500, 2_000, 16_000];
/// Time that a client stays away after a cut.
const AWAY: Duration = Duration::from_millis(300);
/// The longest time of any client, beyond the time for which it holds an idle stream.
const PATIENCE: Duration = Duration::from_secs(60);
/// Limit of active clients: there are far fewer while the rate is kept.
const MOST: usize = 5_000;

/// The proxy's errors for a call that ended before its response, and for a stream that is gone.
const OVER: &[u8] = br#""code":-32011"#;
const GONE: &[u8] = br#""code":-32012"#;

#[derive(Clone, ClapArgs)]
pub(super) struct Args {
    /// Seconds in which clients begin
    #[arg(long, default_value_t = 60.0)]
    secs: f64,
    /// Clients that begin in a second
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    /// Milliseconds for which an idle stream is held
    #[arg(long, default_value_t = 12_000)]
    idle_ms: u64,
    /// Milliseconds after which an abandoned call is certainly forgotten
    #[arg(long, default_value_t = 60_000)]
    gone_ms: u64,
}

/// The behaviour of one client.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Ask for JSON, on a kept connection.
    Ask,
    /// Read an event stream to its end, on a kept connection.
    Watch,
    /// Open a session, ask for JSON, delete the session and leave.
    Visit,
    /// Open a session, be cut twice in a call, resume it twice, and read it to its end.
    Cut,
    /// Leave a call that goes on to its end, and never return.
    Leave,
    /// Return to such a call too late.
    Late,
    /// Leave a call that does not end by itself.
    Outstay,
    /// Delete the session while a call runs in it.
    Delete,
    /// Hold an idle stream.
    Idle,
}

/// The order of the clients.
#[rustfmt::skip]
const TURN: [Act; 20] = [
    Act::Ask, Act::Visit, Act::Cut, Act::Watch, Act::Leave, Act::Ask, Act::Idle, Act::Cut, Act::Ask, Act::Late,
    Act::Ask, Act::Visit, Act::Cut, Act::Watch, Act::Delete, Act::Ask, Act::Visit, Act::Cut, Act::Ask, Act::Outstay,
];

pub(super) async fn run(target: Target, args: Args) -> Result<Value> {
    let world = Arc::new(World::open(target, args.clone()).await?);
    let mut ticks = interval(Duration::from_secs_f64(1.0 / args.rate));
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    // The first id is that of `initialize`, the next ones those of the kept sessions' clients.
    for id in 1.. {
        ticks.tick().await;
        if start.elapsed().as_secs_f64() >= args.secs {
            break;
        }
        while let Some(ended) = tasks.try_join_next() {
            ended??;
        }
        if tasks.len() == MOST {
            return Err(format!("{MOST} clients are at it at once: the rate is not kept").into());
        }
        tasks.spawn(Arc::clone(&world).client(id));
    }
    join_all(tasks).await?;
    world.close().await
}

/// State shared by all clients.
struct World {
    target: Target,
    args: Args,
    /// Kept connections that are idle, each with the time of its last use.
    kept: Mutex<VecDeque<(Client, Instant)>>,
    /// The kept sessions, for further connections.
    sessions: Vec<Gone>,
    /// Calls whose client has left: the time, the session, and the last event ID.
    left: Mutex<VecDeque<(Instant, usize, String)>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    clients: AtomicU64,
    answers: AtomicU64,
    events: AtomicU64,
    resumes: AtomicU64,
    left: AtomicU64,
    late: AtomicU64,
    deleted: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn figures(&self) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "load": "soak", "clients": of(&self.clients), "answers": of(&self.answers), "events": of(&self.events),
            "resumes": of(&self.resumes), "left": of(&self.left), "late": of(&self.late), "deleted": of(&self.deleted),
        })
    }
}

impl World {
    async fn open(target: Target, args: Args) -> Result<Self> {
        let (mut kept, mut sessions) = (VecDeque::new(), Vec::new());
        for _ in 0..KEPT {
            let client = Client::open(&target, READ_SIZE).await?;
            sessions.push(client.another(READ_SIZE).await?.cut()?);
            kept.push_back((client, Instant::now()));
        }
        let (kept, left) = (Mutex::new(kept), Mutex::default());
        Ok(Self { target, args, kept, sessions, left, counts: Counts::default() })
    }

    /// Deletes the kept sessions; returns the run's figures.
    async fn close(&self) -> Result<Value> {
        for session in &self.sessions {
            session.come_back(READ_SIZE).await?.delete().await?;
        }
        lock(&self.kept).clear();
        Ok(self.counts.figures())
    }

    /// The next client; `id` is that of its call, and unique.
    async fn client(self: Arc<Self>, id: u64) -> Result<()> {
        let act = TURN[usize::try_from(id)? % TURN.len()];
        let patience = PATIENCE + Duration::from_millis(self.args.idle_ms);
        let outcome = match timeout(patience, self.act(act, id)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("not done after {} s", patience.as_secs()).into()),
        };
        Counts::add(&self.counts.clients, 1);
        outcome.map_err(|error| format!("{act:?}, client {id}: {error}").into())
    }

    async fn act(&self, act: Act, id: u64) -> Result<()> {
        match act {
            Act::Ask => self.ask(id).await,
            Act::Watch => self.watch(id).await,
            Act::Visit => self.visit(id).await,
            Act::Cut => self.cut(id).await,
            Act::Leave => self.leave(id).await,
            Act::Late => self.late().await,
            Act::Outstay => self.outstay(id).await,
            Act::Delete => self.delete(id).await,
            Act::Idle => self.idle(id).await,
        }
    }

    async fn ask(&self, id: u64) -> Result<()> {
        let mut client = self.take_kept().await?;
        self.answer(&mut client, id).await?;
        self.give_back(client);
        Ok(())
    }

    async fn watch(&self, id: u64) -> Result<()> {
        let (mut client, mut reader) = (self.take_kept().await?, Reader::new(id));
        client.stream(id, &call(id)).await?;
        self.read_to_the_end(&mut client, &mut reader).await?;
        self.give_back(client);
        Ok(())
    }

    async fn visit(&self, id: u64) -> Result<()> {
        let mut client = Client::open(&self.target, READ_SIZE).await?;
        self.answer(&mut client, id).await?;
        client.delete().await
    }

    async fn cut(&self, id: u64) -> Result<()> {
        let (mut client, mut reader) = (Client::open(&self.target, READ_SIZE).await?, Reader::new(id));
        client.stream(id, &call(id)).await?;
        for seen in [3, 8] {
            read_on(&mut client, &mut reader, seen).await?;
            // After a busy moment of two seconds all of it arrives at once.
            if reader.answered {
                break;
            }
            let gone = client.cut()?;
            sleep(AWAY).await;
            client = gone.come_back(READ_SIZE).await?;
            client.resume(&reader.cursor).await?;
            reader.forget_partial();
            Counts::add(&self.counts.resumes, 1);
        }
        self.read_to_the_end(&mut client, &mut reader).await?;
        client.delete().await
    }

    async fn leave(&self, id: u64) -> Result<()> {
        let (session, gone) = self.session(id);
        let (mut client, mut reader) = (gone.come_back(READ_SIZE).await?, Reader::new(id));
        client.stream(id, &call(id)).await?;
        read_on(&mut client, &mut reader, 2).await?;
        client.cut()?;
        Counts::add(&self.counts.left, 1);
        lock(&self.left).push_back((Instant::now(), session, reader.cursor));
        Ok(())
    }

    async fn late(&self) -> Result<()> {
        let after = Duration::from_millis(self.args.gone_ms);
        let gone = lock(&self.left).pop_front_if(|(since, ..)| since.elapsed() >= after);
        let Some((_, session, cursor)) = gone else { return Ok(()) };
        let mut client = self.sessions[session].come_back(READ_SIZE).await?;
        client.resume(&cursor).await?;
        Counts::add(&self.counts.late, 1);
        expect_error(&mut client, GONE).await
    }

    async fn outstay(&self, id: u64) -> Result<()> {
        let (_, gone) = self.session(id);
        let mut client = gone.come_back(READ_SIZE).await?;
        let script = Script { mode: Mode::Idle, filled: 1, bytes: 200, duration_ms: 3_600_000, ..Script::default() };
        client.stream(id, &script).await?;
        read_on(&mut client, &mut Reader::new(id), 1).await?;
        client.cut()?;
        Counts::add(&self.counts.left, 1);
        Ok(())
    }

    async fn delete(&self, id: u64) -> Result<()> {
        let (mut client, mut reader) = (Client::open(&self.target, READ_SIZE).await?, Reader::new(id));
        client.stream(id, &Script { events: 10 * EVENTS, ..call(id) }).await?;
        read_on(&mut client, &mut reader, 2).await?;
        client.another(READ_SIZE).await?.delete().await?;
        Counts::add(&self.counts.deleted, 1);
        expect_error(&mut client, OVER).await
    }

    async fn idle(&self, id: u64) -> Result<()> {
        let (_, gone) = self.session(id);
        let (mut client, mut reader) = (gone.come_back(READ_SIZE).await?, Reader::new(id));
        client.stream(id, &Script { mode: Mode::Idle, duration_ms: self.args.idle_ms, ..Script::default() }).await?;
        self.read_to_the_end(&mut client, &mut reader).await
    }

    async fn answer(&self, client: &mut Client, id: u64) -> Result<()> {
        let (bytes, mut got) = (bytes(id), Vec::new());
        client.json(id, &Script { mode: Mode::Json, bytes, ..Script::default() }, &mut got).await?;
        Counts::add(&self.counts.answers, 1);
        expect_answer(&got, id, bytes, false)
    }

    async fn read_to_the_end(&self, client: &mut Client, reader: &mut Reader) -> Result<()> {
        while client.read(reader).await?.is_some() {}
        Counts::add(&self.counts.events, reader.events);
        reader.finish()
    }

    /// One of the kept sessions, by its number.
    fn session(&self, id: u64) -> (usize, &Gone) {
        // Not by the remainder alone, which correlates with the kind of client.
        let number = usize::try_from(id / TURN.len() as u64).unwrap_or_default() % self.sessions.len();
        (number, &self.sessions[number])
    }

    /// The least recently used idle connection, or a new one if all are in use.
    async fn take_kept(&self) -> Result<Client> {
        let kept = lock(&self.kept).pop_front();
        match kept {
            Some((client, used)) if used.elapsed() < KEEP_ALIVE => Ok(client),
            Some((client, _)) => client.another(READ_SIZE).await,
            None => self.sessions[0].come_back(READ_SIZE).await,
        }
    }

    fn give_back(&self, client: Client) {
        lock(&self.kept).push_back((client, Instant::now()));
    }
}

/// A call of some events, one after the other.
fn call(id: u64) -> Script {
    Script { mode: Mode::Events, events: EVENTS, interval_ms: INTERVAL_MS, bytes: bytes(id), ..Script::default() }
}

/// Each kind of client has each size in turn.
fn bytes(id: u64) -> usize {
    let turn = id / TURN.len() as u64 + id;
    BYTES[usize::try_from(turn % BYTES.len() as u64).unwrap_or_default()]
}

/// Reads until the given number of events was read, or all.
async fn read_on(client: &mut Client, reader: &mut Reader, events: u64) -> Result<()> {
    while reader.events < events && !reader.answered {
        client.read(reader).await?.ok_or("a call ended without its answer")?;
    }
    Ok(())
}

/// Reads the rest of a response, which must have an error with this code in it.
async fn expect_error(client: &mut Client, code: &[u8]) -> Result<()> {
    let mut rest = Vec::new();
    client.rest(&mut rest).await?;
    let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(300)]).into_owned();
    if memmem::find(&rest, code).is_some() {
        return Ok(());
    }
    Err(format!("answered {:?} where an error with {} was due", shown(&rest), shown(code)).into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
