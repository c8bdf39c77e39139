//! The server: answers each call as its script says, and tells the model what it sends.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::model::{Key, Kind, id_of};
use super::network::{Listener, Pipe};
use super::plan::{Ending, Form, Script, Step};
use super::sessions::client_of;
use super::wire::{Head, Parser, Part};
use super::world::World;

/// An event comes in so many pieces at most.
const PIECES_MAX: usize = 200;

const FOR_EVER: Duration = Duration::from_secs(1_000_000);
const SSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

const FORGOTTEN: &str = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;

/// The proxy closed the connection, or the server was restarted.
struct Closed;

/// Serves until the run is over; then all its connections are gone.
pub(crate) async fn serve(world: Arc<World>, mut listener: Listener) {
    let mut connections = tokio::task::JoinSet::new();
    let mut count = 0;
    while let Some(pipe) = listener.next().await {
        count += 1;
        let restarts = world.restarts();
        let name = format!("up{count}");
        let connection =
            Connection { world: world.clone(), pipe, parser: Parser::default(), name, restarts, session: None };
        connections.spawn(connection.run());
    }
}

struct Connection {
    world: Arc<World>,
    pipe: Pipe,
    parser: Parser,
    name: String,
    /// Number of restarts before the connection.
    restarts: usize,
    /// Session of the present request.
    session: Option<String>,
}

/// A run of a call that may be cut short by a restart.
struct Running {
    world: Arc<World>,
    key: Key,
    run: usize,
    restarts: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.world.restarts() != self.restarts {
            self.world.model().fail(self.key, self.run);
        }
    }
}

/// An upstream response under way.
struct Open {
    world: Arc<World>,
    key: Key,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.world.model().call(self.key).open -= 1;
    }
}

impl Connection {
    async fn run(mut self) {
        while let Ok((head, body)) = self.request().await {
            if self.answer(&head, &body).await.is_err() {
                return;
            }
        }
    }

    async fn request(&mut self) -> Result<(Head, String), Closed> {
        let mut head = None;
        let mut body = Vec::new();
        loop {
            match self.parser.next() {
                Some(Part::Head(found)) => head = Some(found),
                Some(Part::Data(data)) => body.extend(data),
                Some(Part::End) => {
                    let body = String::from_utf8(body).expect("JSON");
                    let head = head.expect("a head before its end");
                    self.world.trace(&self.name, format!("{} {head:?}\n{body}", head.line).as_bytes());
                    return Ok((head, body));
                }
                None => self.read().await?,
            }
        }
    }

    async fn read(&mut self) -> Result<(), Closed> {
        let mut bytes = [0; 4096];
        let world = self.world.clone();
        let restarted = world.restarted.notified();
        if world.restarts() != self.restarts {
            return Err(Closed);
        }
        let read = tokio::select! {
            biased;
            () = restarted => return Err(Closed),
            read = self.pipe.read(&mut bytes) => read,
        };
        match read {
            Ok(0) | Err(_) => Err(Closed),
            Ok(read) => {
                self.parser.feed(&bytes[..read]);
                Ok(())
            }
        }
    }

    /// Waits; fails if the reader of the response leaves meanwhile.
    async fn wait(&mut self, time: Duration) -> Result<(), Closed> {
        if time.is_zero() {
            return Ok(());
        }
        let world = self.world.clone();
        let mut sleep = std::pin::pin!(world.sleep(time));
        loop {
            tokio::select! {
                biased;
                read = self.read() => read?,
                () = &mut sleep => return Ok(()),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        self.pipe.write_all(bytes).await.map_err(|_| Closed)
    }

    async fn plain(&mut self, status: u16, kind: &str, more: &str, body: &str) -> Result<(), Closed> {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}\r\n");
        self.write(format!("{head}{body}").as_bytes()).await
    }

    async fn answer(&mut self, head: &Head, body: &str) -> Result<(), Closed> {
        self.session = head.header("mcp-session-id").map(str::to_owned);
        if let Some(name) = self.session.clone()
            && !self.world.sessions().is_living(&name)
        {
            return self.refuse(&name, head).await;
        }
        let session = self.session.as_deref().and_then(client_of);
        match (head.line.split(' ').next(), session, head.header("last-event-id")) {
            (Some("GET"), Some(client), last) if last.is_none_or(|last| last.starts_with("own")) => {
                return self.listen(client).await;
            }
            (Some("GET"), _, Some(last)) => return self.go_on(head, last).await,
            (Some("DELETE"), ..) => {
                self.world.sessions().end(self.session.as_deref().unwrap_or_default());
                return self.plain(200, "text/plain", "", "").await;
            }
            _ => {}
        }
        let Ok(message) = serde_json::from_str::<Value>(body) else {
            return self.plain(405, "text/plain", "", "no such thing").await;
        };
        if message.is_array() {
            return self.call(head, &message[0]).await;
        }
        match message["method"].as_str() {
            Some("initialize") => self.initialize(&message).await,
            Some("tools/call") => self.call(head, &message).await,
            Some("notifications/initialized") => {
                let delay = self.delay();
                self.wait(delay).await?;
                self.world.sessions().initialize(self.session.as_deref().unwrap_or_default());
                self.plain(202, "text/plain", "", "").await
            }
            Some(_) => self.plain(202, "text/plain", "", "").await,
            None => {
                self.take_answer(&message);
                self.plain(202, "text/plain", "", "").await
            }
        }
    }

    fn delay(&self) -> Duration {
        let world = &self.world;
        world.sessions().next_delay(&world.plan.delays)
    }

    /// Refuses a request in a session that the server has forgotten.
    async fn refuse(&mut self, name: &str, head: &Head) -> Result<(), Closed> {
        let is_anothers = client_of(name).is_none_or(|client| {
            head.header("authorization").is_some_and(|bearer| bearer != format!("Bearer c{client}"))
        });
        if is_anothers {
            self.world.blame(format!("a request in a session that never was: {head:?}"));
        }
        // The rest of a response goes with its session.
        let last = head.header("last-event-id").unwrap_or_default();
        if let [client, call, run, _] = numbers(last)[..] {
            self.world.model().fail((client, call), run);
        }
        let delay = self.delay();
        self.wait(delay).await?;
        if client_of(name).is_some_and(|client| self.world.sessions().shown(client).is_none_or(|shown| shown != name)) {
            self.world.reach("a late refusal");
        }
        self.plain(404, "application/json", "", FORGOTTEN).await
    }

    async fn initialize(&mut self, message: &Value) -> Result<(), Closed> {
        let client = message["params"]["clientInfo"]["name"].as_str().and_then(|name| name.parse().ok());
        let client: usize = client.expect("a client with a number");
        let version = &message["params"]["protocolVersion"];
        let result =
            json!({ "protocolVersion": version, "capabilities": {}, "serverInfo": { "name": "s", "version": "1" } });
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string();
        let delay = self.delay();
        self.wait(delay).await?;
        let name = self.world.sessions().open(client);
        if self.world.sessions().opened(client) > 1 {
            self.world.reach("a session that was opened again");
        }
        let session = format!("mcp-session-id: {name}\r\n");
        if self.world.plan.clients[client].opens_by_stream {
            let body = format!("event: message\ndata: {answer}\n\n");
            return self.plain(200, "text/event-stream", &session, &body).await;
        }
        self.plain(200, "application/json", &session, &answer).await
    }

    fn take_answer(&mut self, message: &Value) {
        let name = self.session.as_deref().unwrap_or_default();
        let Some((key, ask)) = self.world.sessions().asked(name, &message["id"]) else {
            return self.world.blame(format!("an answer to nothing in {name}: {message}"));
        };
        if message.get("error").is_none() && message["result"]["ask"] != ask {
            return self.world.blame(format!("the answer to {ask} in {name} is that of another question: {message}"));
        }
        if self.world.sessions().is_older(name) {
            self.world.reach("an answer in an older session");
        }
        let known = self.world.model().answer(key, &ask);
        self.world.check(known);
        self.world.answered.notify_waiters();
    }

    async fn call(&mut self, head: &Head, message: &Value) -> Result<(), Closed> {
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let key = (number(&message["params"]["arguments"]["client"]), number(&message["id"]));
        self.check_sender(head, key);
        let run = self.world.model().run(key);
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                self.world.blame(error);
                return Err(Closed);
            }
        };
        let world = self.world.clone();
        let script = &world.plan.clients[key.0].calls[key.1 - 1].script;
        let _running = self.running(key, run);
        let _open = self.open(key);
        let waited = self.wait(script.before_head).await;
        if waited.is_err() {
            return Err(Closed);
        }
        match &script.form {
            Form::Dies => {
                world.model().fail(key, run);
                Err(Closed)
            }
            Form::Json(spare) => {
                let kind = Kind::Answer((0..script.requests).collect());
                let answer = self.make(key, run, &kind, *spare / script.requests);
                world.model().send(key, run, answer.clone(), kind, world.now());
                self.plain(200, "application/json", "", &answer).await
            }
            Form::Status(status, true) => {
                let error = json!({ "code": -32001, "message": "scripted" });
                let requests: Vec<usize> = (0..script.requests).collect();
                let answer = answers(key, &requests, "error", &error);
                world.model().send(key, run, answer.clone(), Kind::Answer(requests), world.now());
                self.plain(*status, "application/json", "", &answer).await
            }
            Form::Status(status, false) => {
                world.model().fail(key, run);
                self.plain(*status, "text/plain", "", "refused").await
            }
            Form::Stream(..) => self.stream(script, key, run, 0).await,
        }
    }

    fn running(&self, key: Key, run: usize) -> Running {
        Running { world: self.world.clone(), key, run, restarts: self.restarts }
    }

    fn open(&self, key: Key) -> Open {
        self.world.model().call(key).open += 1;
        Open { world: self.world.clone(), key }
    }

    fn check_sender(&self, head: &Head, key: Key) {
        let client = (!self.world.plan.is_modern(key)).then_some(key.0);
        let right = head.header("authorization") == Some(&format!("Bearer c{}", key.0));
        if !right || self.session.as_deref().map(client_of) != client.map(Some) {
            self.world.blame(format!("{key:?}: sent in another's name: {head:?}"));
        }
        if self.session.as_deref().is_some_and(|name| self.world.sessions().is_premature(name)) {
            self.world.blame(format!("{key:?}: sent before the handshake is complete: {head:?}"));
        }
    }

    /// The session's own stream: it goes on where it was whenever it is asked for, and nothing is
    /// sent meanwhile.
    async fn listen(&mut self, client: usize) -> Result<(), Closed> {
        let world = self.world.clone();
        let key = (client, 0);
        let Some(listening) = &world.plan.clients[client].listens else {
            return self.plain(405, "text/plain", "", "no such thing").await;
        };
        let Form::Stream(steps, _) = &listening.script.form else { return Err(Closed) };
        let _open = self.open(key);
        self.wait(listening.script.before_head).await?;
        self.write(SSE_HEAD).await?;
        loop {
            let number = world.model().listen(key);
            let id = (listening.script.has_ids).then(|| format!("own.{number}"));
            match steps.get(number) {
                Some(Step::Event(pause, spare)) => {
                    self.wait(*pause).await?;
                    world.model().call(key).steps += 1;
                    self.event(&listening.script, (key, 0), &Kind::Notice, *spare, id).await?;
                }
                Some(Step::Ask(pause)) => {
                    self.wait(*pause).await?;
                    world.model().call(key).steps += 1;
                    let kind = Kind::Ask(format!("q.{client}.0.0.{number}"));
                    self.event(&listening.script, (key, 0), &kind, 0, id).await?;
                }
                Some(Step::Leave(pause) | Step::Answer(pause, _)) => {
                    self.wait(*pause).await?;
                    world.model().call(key).steps += 1;
                    // Every other time in the middle of things.
                    return if number.is_multiple_of(2) { Err(Closed) } else { self.write(b"0\r\n\r\n").await };
                }
                None => self.wait(FOR_EVER).await?,
            }
        }
    }

    /// The proxy comes for the rest of a response that ended on purpose.
    async fn go_on(&mut self, head: &Head, last: &str) -> Result<(), Closed> {
        let [client, call, run, step] = numbers(last)[..] else {
            self.world.blame(format!("a strange id came upstream: {last}"));
            return Err(Closed);
        };
        let key = (client, call);
        self.check_sender(head, key);
        let world = self.world.clone();
        let script = &world.plan.clients[client].calls[call - 1].script;
        let Form::Stream(steps, _) = &script.form else { return Err(Closed) };
        match steps.get(step + 1) {
            Some(Step::Leave(_)) => {
                let _running = self.running(key, run);
                let _open = self.open(key);
                self.stream(script, key, run, step + 2).await
            }
            _ => self.plain(404, "text/plain", "", "no more").await,
        }
    }

    async fn stream(&mut self, script: &Script, key: Key, run: usize, from: usize) -> Result<(), Closed> {
        let Form::Stream(steps, ending) = &script.form else { return Err(Closed) };
        self.write(SSE_HEAD).await?;
        for (number, step) in steps.iter().enumerate().skip(from) {
            let id = (script.has_ids).then(|| format!("u.{}.{}.{run}.{number}", key.0, key.1));
            let (pause, kind, spare) = match step {
                Step::Event(pause, spare) => (*pause, Kind::Notice, *spare),
                Step::Ask(pause) => (*pause, Kind::Ask(format!("q.{}.{}.{run}.{number}", key.0, key.1)), 0),
                Step::Answer(pause, requests) => (*pause, Kind::Answer(requests.clone()), 0),
                Step::Leave(pause) => {
                    self.wait(*pause).await?;
                    return self.write(b"0\r\n\r\n").await;
                }
            };
            self.wait(pause).await?;
            self.event(script, (key, run), &kind, spare, id).await?;
            if let Kind::Ask(ask) = kind {
                self.wait_for_answer(key, &ask).await?;
            }
        }
        let has_answer = script.has_answer();
        if !has_answer && *ending != Ending::Stall {
            self.world.model().fail(key, run);
        }
        match ending {
            Ending::End => self.write(b"0\r\n\r\n").await,
            Ending::Cut => {
                let _ = self.write(b"20\r\ndata: {\"jsonrpc\"").await;
                Err(Closed)
            }
            Ending::Stall => self.wait(FOR_EVER).await,
        }
    }

    async fn event(
        &mut self,
        script: &Script,
        (key, run): (Key, usize),
        kind: &Kind,
        spare: usize,
        id: Option<String>,
    ) -> Result<(), Closed> {
        let data = self.make(key, run, kind, spare);
        let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
        let event = format!("{id}event: message\ndata: {data}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        // The line end that completes the event, and the chunk's.
        let (before, last) = chunk.as_bytes().split_at(chunk.len() - 3);
        for piece in before.chunks(script.piece.max(before.len() / PIECES_MAX)) {
            self.write(piece).await?;
            self.wait(script.between_pieces.min(Duration::from_millis(piece.len() as u64))).await?;
        }
        self.world.model().send(key, run, data, kind.clone(), self.world.now());
        self.write(last).await
    }

    async fn wait_for_answer(&mut self, key: Key, ask: &str) -> Result<(), Closed> {
        let world = self.world.clone();
        loop {
            let answered = world.answered.notified();
            if world.model().is_answered(key, ask) {
                return Ok(());
            }
            tokio::select! {
                biased;
                read = self.read() => read?,
                () = answered => {}
            }
        }
    }

    fn make(&self, key: Key, run: usize, kind: &Kind, spare: usize) -> String {
        let number = self.world.model().sent(key, run);
        let tag = format!("c{}.{}.r{run}.e{number}{}", key.0, key.1, "x".repeat(spare));
        match kind {
            Kind::Notice => {
                let params = json!({ "level": "info", "data": tag });
                json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string()
            }
            Kind::Ask(ask) => {
                let id = self.world.sessions().ask(self.session.as_deref().unwrap_or_default(), key, ask);
                let params = json!({ "message": ask });
                json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params }).to_string()
            }
            Kind::Answer(requests) => answers(key, requests, "result", &json!({ "tag": tag })),
        }
    }
}

/// Returns the numbers in an ID of the server's own.
fn numbers(id: &str) -> Vec<usize> {
    id.split('.').skip(1).filter_map(|number| number.parse().ok()).collect()
}

/// Returns the responses to these requests of a call; several make an array.
fn answers(key: Key, requests: &[usize], member: &str, value: &Value) -> String {
    let answer = |request: &usize| json!({ "jsonrpc": "2.0", "id": id_of(key, *request), member: value });
    match requests {
        [only] => answer(only).to_string(),
        all => all.iter().map(answer).collect::<Value>().to_string(),
    }
}
