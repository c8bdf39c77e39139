//! The clients: they POST, read, lose their connection, and come back as SDKs do.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::model::{Key, Model, Reading, Taken};
use super::network::Dialer;
use super::plan::{Call, Fault, Form};
use super::rng::Rng;
use super::wire::{Events, Head, Parser, Part};
use super::world::World;

/// Longer than any script runs with a client that reads.
const LONGEST: Duration = Duration::from_secs(600);
/// A slow reader loses its slowness after so many reads: no run waits for the last byte of a long response.
const SLOW_READS: usize = 200;

/// A client's connection to the proxy.
struct Connection {
    pipe: DuplexStream,
    parser: Parser,
    name: String,
    /// What it has read of the present response: logged when that is over, without the date, which is the machine's.
    raw: Vec<u8>,
    reads: String,
}

impl Connection {
    fn open(world: &World, dialer: &Dialer, name: String) -> Option<Self> {
        let pipe = world.check(dialer.connect().map_err(|_| "the proxy is gone".to_owned()))?;
        Some(Self { pipe, parser: Parser::default(), name, raw: Vec::new(), reads: String::new() })
    }

    /// Reads at most `most` bytes. `None`: the end.
    async fn read(&mut self, world: &World, most: usize) -> Option<usize> {
        let mut bytes = vec![0; most.min(16 * 1024)];
        let read = self.pipe.read(&mut bytes).await.unwrap_or(0);
        if read == 0 {
            return None;
        }
        self.raw.extend_from_slice(&bytes[..read]);
        self.reads.push_str(&format!("{}@{} ", read, world.elapsed().as_micros()));
        self.parser.feed(&bytes[..read]);
        Some(read)
    }

    fn log(&mut self, world: &World) {
        let name = format!("{} {}", self.name, std::mem::take(&mut self.reads));
        let raw = std::mem::take(&mut self.raw);
        world.trace(&name, &undated(raw));
    }
}

/// The bytes without the value of `date`, however much of it there is.
fn undated(mut raw: Vec<u8>) -> Vec<u8> {
    const NAME: &[u8] = b"\r\ndate: ";
    if let Some(at) = memchr::memmem::find(&raw, NAME) {
        let value = at + NAME.len();
        let end = raw[value..].iter().position(|byte| *byte == b'\r').map_or(raw.len(), |end| value + end);
        raw[value..end].fill(b'-');
    }
    raw
}

/// Who sends a request.
#[derive(Clone, Copy)]
struct Sender<'a> {
    world: &'a World,
    client: usize,
    json_only: bool,
}

impl<'a> Sender<'a> {
    fn of(world: &'a World, client: usize) -> Self {
        Self { world, client, json_only: false }
    }

    fn head(&self, method: &str, more: &str) -> String {
        let client = self.client;
        let accept = if self.json_only { "application/json" } else { "application/json, text/event-stream" };
        let version = self.world.plan.clients[client].version;
        let session = match self.world.plan.is_modern((client, 0)) {
            true => String::new(),
            false => format!("Mcp-Session-Id: s{client}\r\n"),
        };
        let speaks =
            if version == "2025-03-26" { String::new() } else { format!("MCP-Protocol-Version: {version}\r\n") };
        format!(
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer c{client}\r\n\
             Accept: {accept}\r\n{session}{speaks}{more}"
        )
    }

    fn post(&self, body: &str) -> String {
        self.post_with("", body)
    }

    fn post_with(&self, header: &str, body: &str) -> String {
        let more = format!("Content-Type: application/json\r\n{header}Content-Length: {}\r\n\r\n{body}", body.len());
        self.head("POST", &more)
    }

    fn get(&self, id: &str) -> String {
        self.head("GET", &format!("Last-Event-ID: {id}\r\n\r\n"))
    }
}

/// Sends one request whose answer is short, on a connection of its own.
async fn ask(world: &World, dialer: &Dialer, name: String, request: &str) -> Option<(Head, String)> {
    let mut connection = Connection::open(world, dialer, name)?;
    let exchange = async {
        connection.pipe.write_all(request.as_bytes()).await.ok()?;
        let (mut head, mut body) = (None, Vec::new());
        loop {
            match connection.parser.next() {
                Some(Part::Head(found)) => head = Some(found),
                Some(Part::Data(data)) => body.extend(data),
                Some(Part::End) => return head.map(|head| (head, String::from_utf8_lossy(&body).into_owned())),
                None => _ = connection.read(world, usize::MAX).await?,
            }
        }
    };
    let answer = timeout(LONGEST + world.jumped(), exchange).await;
    connection.log(world);
    let told = |()| format!("{}: no answer", connection.name);
    world.check(answer.ok().flatten().ok_or(()).map_err(told))
}

/// One client, from its `initialize` on.
pub(crate) async fn run(world: Arc<World>, dialer: Dialer, client: usize, mut rng: Rng) {
    let sender = Sender::of(&world, client);
    if !world.plan.is_modern((client, 0)) {
        let version = world.plan.clients[client].version;
        let info = json!({ "name": client.to_string(), "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": info });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string();
        loop {
            let Some((head, _)) = ask(&world, &dialer, format!("c{client}.open"), &sender.post(&body)).await else {
                return;
            };
            if head.status() == 200 {
                if head.header("mcp-session-id") != Some(&format!("s{client}")) {
                    world.blame(format!("client {client} got another's session: {head:?}"));
                }
                break;
            }
            if !world.refuses() {
                world.blame(format!("client {client} got no session: {head:?}"));
                return;
            }
            world.sleep(Duration::from_millis(500)).await;
        }
    }
    let mut calls = tokio::task::JoinSet::new();
    if let Some(listening) = &world.plan.clients[client].listens {
        let listener = Caller::new(&world, &dialer, (client, 0), listening.as_call(), rng.fork());
        calls.spawn(listener.listen(listening.lasts));
    }
    for (index, call) in world.plan.clients[client].calls.iter().enumerate() {
        let caller = Caller::new(&world, &dialer, (client, index + 1), call.clone(), rng.fork());
        calls.spawn(caller.run());
    }
    calls.join_all().await;
    if world.plan.clients[client].deletes && !world.plan.is_modern((client, 0)) {
        world.model().deleted.insert(client);
        while let Some((head, _)) =
            ask(&world, &dialer, format!("c{client}.close"), &sender.head("DELETE", "\r\n")).await
            && head.status() >= 500
        {
            world.sleep(Duration::from_secs(1)).await;
        }
    }
}

/// One call of a client.
struct Caller {
    world: Arc<World>,
    dialer: Dialer,
    key: Key,
    call: Call,
    rng: Rng,
    /// A connection that can be used again.
    idle: Option<Connection>,
    /// The event IDs it has seen, the last of which is its cursor.
    ids: Vec<String>,
    /// The highest number it has seen.
    highest: u64,
    retry: Duration,
    is_answered: bool,
    /// It was told that there is nothing to come back to.
    is_lost: bool,
    spied: bool,
}

/// How an exchange ended.
enum Ended {
    /// There is no more to come.
    Over,
    /// Something is left; something new came.
    Early { progress: bool },
}

impl Caller {
    fn new(world: &Arc<World>, dialer: &Dialer, key: Key, call: Call, rng: Rng) -> Self {
        Caller {
            world: world.clone(),
            dialer: dialer.clone(),
            key,
            rng,
            idle: None,
            ids: Vec::new(),
            highest: 0,
            retry: world.plan.config.delivery.retry,
            is_answered: false,
            is_lost: false,
            spied: !call.is_spied_on,
            call,
        }
    }

    /// Listens to the session's own stream for a while.
    async fn listen(mut self, lasts: Duration) {
        let world = self.world.clone();
        // Whatever it is doing then, it is gone.
        let _ = timeout(lasts, self.talk()).await;
        world.reach("the session's own stream");
    }

    async fn run(mut self) {
        self.world.sleep(self.call.starts).await;
        if let Some(after) = self.call.cancels {
            tokio::spawn(cancel(self.world.clone(), self.dialer.clone(), self.key, after));
        }
        let patience = self.call.patience.unwrap_or(LONGEST * 3 + self.world.jumped());
        let talked = timeout(patience, self.talk()).await;
        match talked {
            Ok(()) => self.revisit().await,
            Err(_) if self.call.patience.is_none() => self.world.blame(format!("{:?} never ended", self.key)),
            Err(_) => {}
        }
    }

    async fn talk(&mut self) {
        let mut left = self.call.tries;
        let mut faults = self.call.faults.clone().into_iter();
        loop {
            let fault = faults.next().unwrap_or(Fault::None);
            match self.exchange(fault).await {
                Some(Ended::Over) | None => return,
                Some(Ended::Early { progress: true }) => left = self.call.tries,
                Some(Ended::Early { progress: false }) => {}
            }
            let cancelled = self.world.model().call(self.key).cancelled;
            let is_lost = self.ids.is_empty() && self.key.1 > 0 && (!self.call.reposts || cancelled);
            if left == 0 || is_lost || self.world.is_blamed() {
                return;
            }
            left -= 1;
            let pause = self.retry * self.call.haste / 1000;
            self.world.sleep(pause.max(Duration::from_millis(10))).await;
        }
    }

    /// Asks for what is left of the finished stream, later and later.
    async fn revisit(&mut self) {
        if self.ids.is_empty() || self.world.plan.is_tight() || !self.is_answered {
            return;
        }
        self.call.keeps_connection = false;
        self.idle = None;
        for pause in self.call.revisits.clone() {
            self.world.sleep(pause).await;
            let keep = 1 + self.rng.below(self.ids.len());
            self.ids.truncate(keep);
            let ended = self.exchange(Fault::None).await;
            self.world.reach("a visit to a finished stream");
            if !matches!(ended, Some(Ended::Over)) || self.is_lost {
                return;
            }
        }
    }

    fn request(&mut self) -> (String, Option<u64>) {
        let sender = Sender { json_only: self.call.json_only, ..Sender::of(&self.world, self.key.0) };
        if self.key.1 > 0 && self.rng.percent(self.call.forgets) && self.ids.len() > 1 {
            let keep = 1 + self.rng.below(self.ids.len());
            self.ids.truncate(keep);
        }
        if self.key.1 == 0 && (self.ids.is_empty() || self.rng.percent(self.call.forgets)) {
            return (sender.head("GET", "\r\n"), None);
        }
        if let Some(id) = self.ids.last() {
            let seq = id.split('.').nth(1).and_then(|seq| seq.parse().ok());
            return (sender.get(id), seq);
        }
        let arguments = json!({ "client": self.key.0 });
        let mut params = json!({ "name": "slow", "arguments": arguments });
        if self.world.plan.is_modern(self.key) {
            params["_meta"] = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
        }
        let body = json!({ "jsonrpc": "2.0", "id": self.key.1, "method": "tools/call", "params": params });
        let posted_before = self.world.model().call(self.key).connections > 0;
        let cursor = if posted_before { None } else { Some(0) };
        let key = match self.call.has_key {
            true => format!("Idempotency-Key: k{}\r\n", self.key.1),
            false => String::new(),
        };
        if posted_before {
            self.world.reach("the same POST again");
        }
        (sender.post_with(&key, &body.to_string()), cursor)
    }

    async fn exchange(&mut self, fault: Fault) -> Option<Ended> {
        let world = self.world.clone();
        let (request, cursor) = self.request();
        let is_post = self.ids.is_empty() && self.key.1 > 0;
        let number = world.model().connect(self.key, world.now());
        let name = format!("c{}.{}.{number}", self.key.0, self.key.1);
        // An answer that was read slowly counts as delivered, and a call whose reader still hangs there is none to return to.
        let unsure =
            matches!(fault, Fault::Hang(..) | Fault::Slow(..)) || !world.plan.jumps.is_empty() || world.plan.is_tight();
        let may_fail = !matches!(self.call.script.form, Form::Stream(..)) || world.plan.refuses.is_some();
        let may_run_again = unsure || may_fail;
        if may_run_again {
            world.model().call(self.key).may_repeat = true;
        }
        let mut connection = match self.idle.take() {
            Some(idle) => Connection { name, ..idle },
            None => Connection::open(&world, &self.dialer, name)?,
        };
        let begun = world.now();
        let ended = self.converse(&mut connection, &request, cursor, is_post, number, &fault).await;
        connection.log(&world);
        // A request that was not whole has told nobody that the client is there.
        if !matches!(fault, Fault::CutRequest(_)) {
            world.model().leave(self.key, begun);
        }
        match ended {
            Told::Whole(ended) => {
                self.idle = self.call.keeps_connection.then_some(connection);
                Some(ended)
            }
            Told::Cut(progress) => {
                let cut = matches!(fault, Fault::CutRequest(_));
                world.reach(if cut { "a request cut by the client" } else { "a response cut by the client" });
                Some(match self.is_lost || (self.is_answered && !self.call.thorough) {
                    true => Ended::Over,
                    false => Ended::Early { progress },
                })
            }
            Told::Hung(progress, reading, events, hold) => {
                tokio::spawn(hang(world, connection, self.key, reading, events, hold));
                Some(Ended::Early { progress })
            }
            Told::Wrong => None,
        }
    }
}

/// How a connection was used.
enum Told {
    /// The response came to its end.
    Whole(Ended),
    Cut(bool),
    Hung(bool, Option<Reading>, Events, Duration),
    Wrong,
}

/// What a response is, once its head is there.
#[derive(Default)]
struct Response {
    status: u16,
    reading: Option<Reading>,
    events: Events,
    body: Vec<u8>,
    progress: bool,
    farewell: bool,
    seen: usize,
}

impl Caller {
    async fn converse(
        &mut self,
        connection: &mut Connection,
        request: &str,
        cursor: Option<u64>,
        is_post: bool,
        number: usize,
        fault: &Fault,
    ) -> Told {
        let world = self.world.clone();
        let request = request.as_bytes();
        if let Fault::CutRequest(at) = fault {
            let _ = connection.pipe.write_all(&request[..request.len().min(*at)]).await;
            return Told::Cut(false);
        }
        if connection.pipe.write_all(request).await.is_err() {
            return Told::Cut(false);
        }
        let prompt = !matches!(fault, Fault::Slow(..));
        let asked = world.now();
        let mut response = Response::default();
        let mut taken = 0;
        let mut reads = 0;
        loop {
            while let Some(part) = connection.parser.next() {
                match part {
                    Part::Head(head) => {
                        let is_stream = head.header("content-type") == Some("text/event-stream");
                        response.status = head.status();
                        let expected = [200, 204].contains(&response.status);
                        let refused = self.key.1 == 0 && response.status >= 500 && world.plan.refuses.is_some();
                        if refused {
                            return Told::Cut(false);
                        }
                        if !is_post && !expected {
                            world.blame(format!("{}: a resume was answered {}", connection.name, head.line));
                            return Told::Wrong;
                        }
                        if is_stream && response.status == 200 {
                            response.reading = Some(Reading::new(number, cursor, prompt, (asked, world.now())));
                        }
                    }
                    Part::Data(data) if response.reading.is_some() => {
                        response.events.feed(&data);
                        if !self.take_events(&mut response) {
                            return Told::Wrong;
                        }
                    }
                    Part::Data(data) => response.body.extend(data),
                    Part::End => return self.finish(response),
                }
            }
            let (most, pause) = match fault {
                Fault::Cut(at) if taken >= *at => return Told::Cut(response.progress),
                Fault::CutAfterEvents(count) if response.seen >= *count => return Told::Cut(response.progress),
                Fault::Hang(at, hold) if taken >= *at => {
                    return Told::Hung(response.progress, response.reading, response.events, *hold);
                }
                Fault::Cut(at) | Fault::Hang(at, _) => (at - taken, Duration::ZERO),
                Fault::Slow(size, pause) if reads < SLOW_READS => (*size, *pause),
                _ => (usize::MAX, Duration::ZERO),
            };
            if !pause.is_zero() {
                world.sleep(pause).await;
            }
            reads += 1;
            let silence = match response.reading {
                Some(_) => world.plan.config.delivery.heartbeat + Duration::from_millis(2) + world.jumped(),
                None if is_post || self.key.1 == 0 => LONGEST + world.jumped(),
                None => Duration::from_millis(2) + world.jumped(),
            };
            match timeout(silence, connection.read(&world, most)).await {
                Ok(Some(read)) => taken += read,
                Ok(None) => return Told::Cut(response.progress),
                Err(_) => {
                    world.blame(format!("{}: silent for {silence:?}", connection.name));
                    return Told::Wrong;
                }
            }
        }
    }

    fn take_events(&mut self, response: &mut Response) -> bool {
        let world = self.world.clone();
        let Some(reading) = &mut response.reading else { return false };
        while let Some(event) = response.events.next() {
            let taken = world.model().take(&world.plan, self.key, reading, &event, world.now());
            let Some(taken) = world.check(taken) else { return false };
            if let Some(retry) = event.retry {
                self.retry = Duration::from_millis(retry);
            }
            if let Some(id) = event.id.filter(|id| !id.ends_with(".end")) {
                self.ids.push(id);
                self.highest = self.highest.max(reading.cursor());
                self.spy();
            }
            match taken {
                Taken::Nothing => continue,
                Taken::Farewell => response.farewell = true,
                Taken::Notice => {}
                Taken::Ask(ask) => self.answer(ask),
                Taken::Answer => self.is_answered = true,
                Taken::Lost => {
                    self.is_lost = true;
                    world.reach("a lost stream");
                }
            }
            response.seen += 1;
            response.progress = true;
        }
        true
    }

    /// The response is complete.
    fn finish(&mut self, response: Response) -> Told {
        let world = self.world.clone();
        let Some(reading) = response.reading else {
            return self.finish_plain(response.status, &response.body);
        };
        if self.is_lost || (self.is_answered && reading.cursor() >= self.highest) {
            return Told::Whole(Ended::Over);
        }
        let allowed = world.model().end_early(&world.plan, self.key, &reading, world.now());
        match world.check(allowed) {
            Some(()) => {
                world.reach("a response closed early");
                Told::Whole(Ended::Early { progress: response.progress })
            }
            None => Told::Wrong,
        }
    }

    fn finish_plain(&mut self, status: u16, body: &[u8]) -> Told {
        let world = self.world.clone();
        if status == 204 {
            if !self.is_answered && !world.model().call(self.key).cancelled {
                world.blame(format!("{:?}: an end without an answer", self.key));
            }
            world.reach("a resume at the end");
            return Told::Whole(Ended::Over);
        }
        let body = String::from_utf8_lossy(body);
        let taken = world.model().take_plain(&world.plan, self.key, status, &body, world.now());
        match world.check(taken) {
            Some(()) => Told::Whole(Ended::Over),
            None => Told::Wrong,
        }
    }

    /// Answers a question, once or twice.
    fn answer(&mut self, ask_id: String) {
        let (world, dialer, key) = (self.world.clone(), self.dialer.clone(), self.key);
        let after = self.call.answers_after;
        let times = if self.call.answers_twice { 2 } else { 1 };
        tokio::spawn(async move {
            let body = json!({ "jsonrpc": "2.0", "id": ask_id, "result": {} }).to_string();
            let request = Sender::of(&world, key.0).post(&body);
            world.sleep(after).await;
            for time in 0..times {
                let name = format!("c{}.{}.answer{time}", key.0, key.1);
                if let Some((head, _)) = ask(&world, &dialer, name, &request).await {
                    world.trace("answered", head.line.as_bytes());
                    if head.status() == 202 {
                        world.reach("a question answered");
                        world.model().acknowledge(key, &ask_id, world.now());
                    }
                }
            }
        });
    }

    /// Another client comes with this one's event ID.
    fn spy(&mut self) {
        if std::mem::replace(&mut self.spied, true) {
            return;
        }
        let (world, dialer, key) = (self.world.clone(), self.dialer.clone(), self.key);
        let id = self.ids.last().expect("an id was seen").clone();
        let client = (key.0 + 1) % world.plan.clients.len();
        tokio::spawn(async move {
            if client == key.0 {
                return;
            }
            let request = Sender::of(&world, client).get(&id);
            let name = format!("c{client}.spy");
            let Some((_, body)) = ask(&world, &dialer, name, &request).await else { return };
            let mut events = Events::default();
            events.feed(body.as_bytes());
            let seen: Vec<_> = std::iter::from_fn(|| events.next()).collect();
            match seen.as_slice() {
                [only] => {
                    world.check(Model::spied(key, only));
                    world.reach("another session");
                }
                _ => world.blame(format!("{key:?}: another session was given {seen:?}")),
            }
        });
    }
}

/// A connection that nobody reads for a while: whoever reads it at last finds nothing of what came after it was replaced.
async fn hang(
    world: Arc<World>,
    mut connection: Connection,
    key: Key,
    reading: Option<Reading>,
    mut events: Events,
    hold: Duration,
) {
    world.sleep(hold).await;
    let Some(mut reading) = reading else { return };
    reading.prompt = false;
    loop {
        while let Some(part) = connection.parser.next() {
            match part {
                Part::Data(data) => events.feed(&data),
                Part::Head(_) | Part::End => return connection.log(&world),
            }
            while let Some(event) = events.next() {
                let taken = world.model().take(&world.plan, key, &mut reading, &event, world.now());
                if world.check(taken).is_none() {
                    return;
                }
            }
        }
        let overtaken = world.model().is_overtaken(key, &reading);
        if overtaken {
            world.reach("a takeover");
        }
        let patience = if overtaken { Duration::from_secs(60) + world.jumped() } else { Duration::from_millis(1) };
        match timeout(patience, connection.read(&world, usize::MAX)).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return connection.log(&world),
        }
    }
}

/// Cancels a call after a while.
async fn cancel(world: Arc<World>, dialer: Dialer, key: Key, after: Duration) {
    world.sleep(after).await;
    let params = json!({ "requestId": key.1, "reason": "simulated" });
    let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string();
    world.model().call(key).cancelled = true;
    let request = Sender::of(&world, key.0).post(&body);
    ask(&world, &dialer, format!("c{}.{}.cancel", key.0, key.1), &request).await;
    world.reach("a cancel");
}
