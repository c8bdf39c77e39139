//! Two callers, and every combination of credentials and identifiers that one of them may hold of
//! the other's.
//!
//! A slow, obvious rule states the result of each combination, and the proxy must agree. Every
//! refusal has equal bytes and costs equal work, for any reason. The server behind is lax on
//! purpose: it accepts every call, and examines tokens only when it is asked about one. The proxy
//! alone keeps the two callers apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::*;

/// Possession of one kind of secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Own,
    Stolen,
    Absent,
    Forged,
    /// One's own that is over: of an event, with the process that made it.
    Expired,
    /// An event of one's own that the process itself has forgotten, its retention being over.
    Forgotten,
}

const ALL: [Held; 5] = [Held::Own, Held::Stolen, Held::Absent, Held::Forged, Held::Expired];
const EVENTS: [Held; 6] = [Held::Own, Held::Stolen, Held::Absent, Held::Forged, Held::Expired, Held::Forgotten];

/// Action of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    Resume,
    Retry,
    RetryByKey,
    Cancel,
    Answer,
    Delete,
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    deed: Deed,
    event: Held,
    session: Held,
    token: Held,
    key: Held,
}

/// The two callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    Thief,
    Victim,
}

/// Rightful result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Data of this caller.
    Theirs(Caller),
    /// The server's refusal of a token that claims to be the owner's.
    Refusal,
    /// Nothing: the one answer of a stream that is not there.
    Gone,
    /// Nothing kept: the server answers, as it would without a proxy.
    Passed,
}

impl Attempt {
    /// Returns true if a stream begun by the attempt can be resumed. It belongs to the session and
    /// credential that the attempt names.
    fn is_kept(self) -> bool {
        let has_session = self.session != Held::Absent;
        let has_key = self.key != Held::Absent && self.token != Held::Absent;
        match self.deed {
            Deed::Resume => has_session || has_key,
            // Without a key the response is kept until its client has closed the connection.
            Deed::Retry | Deed::RetryByKey => self.key != Held::Absent && (has_session || self.token != Held::Absent),
            Deed::Cancel | Deed::Answer | Deed::Delete => false,
        }
    }

    /// Every attempt, as far as the deed looks at what is held.
    fn all(deed: Deed) -> Vec<Attempt> {
        let events: &[Held] = if matches!(deed, Deed::Resume | Deed::Retry) { &EVENTS } else { &[Held::Stolen] };
        let keys: &[Held] = if deed == Deed::RetryByKey { &ALL } else { &[Held::Absent] };
        let mut all = Vec::new();
        for &event in events {
            for session in ALL {
                for token in ALL {
                    all.extend(keys.iter().map(|&key| Attempt { deed, event, session, token, key }));
                }
            }
        }
        all
    }

    /// The rule: a thing is its owner's, who shows the session and the token it was begun with. Who
    /// shows the session and a token that only claims to be the owner's is told what the server
    /// thinks of that.
    fn worth(self) -> Worth {
        let names = |held, caller| held == if caller == Caller::Thief { Held::Own } else { Held::Stolen };
        let claims = |caller| self.token == if caller == Caller::Thief { Held::Expired } else { Held::Forged };
        for owner in [Caller::Thief, Caller::Victim] {
            let is_named = match self.deed {
                Deed::Resume => names(self.event, owner),
                Deed::RetryByKey => names(self.key, owner),
                Deed::Retry | Deed::Cancel | Deed::Answer | Deed::Delete => true,
            };
            if is_named && names(self.session, owner) {
                if names(self.token, owner) {
                    return Worth::Theirs(owner);
                }
                if claims(owner) {
                    return Worth::Refusal;
                }
            }
        }
        if self.deed == Deed::Resume && self.event != Held::Absent { Worth::Gone } else { Worth::Passed }
    }
}

/// Secrets of a caller.
#[derive(Clone, Debug)]
struct Things {
    token: String,
    session: String,
    key: String,
    /// The place before the first event of its call without a key.
    event: String,
    /// Identifier of a forgotten call.
    forgotten: String,
}

fn retried() -> String {
    call("plain")
}

fn retried_by_key() -> String {
    call("keyed")
}

/// Of the same id, and answered at once.
fn soon_over() -> String {
    call_tool("plain", "soon over")
}

fn cancel() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "plain"}}).to_string()
}

fn answer() -> String {
    json!({"jsonrpc": "2.0", "id": "q", "result": {"role": "assistant"}}).to_string()
}

fn question() -> String {
    json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {"messages": []}}).to_string()
}

/// Returns the text that only the caller with this token may read.
fn secret(authorization: &str) -> String {
    let token: String = authorization.chars().rev().filter(char::is_ascii_alphanumeric).collect();
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": token}}).to_string()
}

/// The lax server: what reached it since it was last asked.
struct Server {
    seen: Arc<Mutex<Vec<String>>>,
    is_ready: Arc<AtomicBool>,
}

impl Server {
    /// `good` are the tokens it takes when it is asked about one. Until it is ready, calls begin
    /// streams that go on.
    fn start(mut upstream: Upstream, good: [String; 2]) -> Server {
        let server = Server { seen: Arc::default(), is_ready: Arc::default() };
        let (seen, is_ready) = (server.seen.clone(), server.is_ready.clone());
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Some(call) = upstream.try_next().await {
                if call.target == "/settle" {
                    call.status(204).await;
                    continue;
                }
                let rpc = call.rpc_method();
                seen.lock().unwrap().push(rpc.clone());
                let token = call.header("authorization").unwrap_or("unknown").to_owned();
                match rpc.as_str() {
                    "tools/call" if call.body == soon_over().as_bytes() => {
                        call.sse().await.finish(result("plain")).await
                    }
                    "tools/call" if !is_ready.load(Ordering::SeqCst) => {
                        let call_id = call.json_body()["id"].clone();
                        let sse = call.sse().await;
                        sse.event(secret(&token)).await;
                        // One question for one answer.
                        if call_id == "plain" {
                            sse.event(question()).await;
                        }
                        open.push(sse);
                    }
                    "tools/call" => call.json(200, secret(&token)).await,
                    "ping" if good.contains(&token) => call.json(200, "{}").await,
                    "ping" => call.json(401, "{}").await,
                    "GET" => call.json(405, "{}").await,
                    "DELETE" => call.status(200).await,
                    _ => call.status(202).await,
                }
            }
        });
        server
    }

    fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

/// Both callers with all that is theirs, left alone by their clients.
struct Stage {
    proxy: Proxy,
    server: Server,
    thief: Things,
    victim: Things,
    /// An event ID of the thief's whose stream is gone.
    expired: String,
}

impl Stage {
    async fn start(expired: &str) -> Stage {
        let upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
        let things = |name: &str| Things {
            token: bearer(name, 1),
            session: format!("session-of-{name}"),
            key: format!("key-of-{name}"),
            event: String::new(),
            forgotten: String::new(),
        };
        let (mut thief, mut victim) = (things("thief"), things("victim"));
        let server = Server::start(upstream, [thief.token.clone(), victim.token.clone()]);
        thief.forgotten = thief.event_of_a_forgotten_call(&proxy).await;
        for caller in [&mut thief, &mut victim] {
            let keyed = caller.ask(Request::post(retried_by_key())).with("Idempotency-Key", &caller.key);
            for request in [keyed, caller.ask(Request::post(retried()))] {
                let mut response = request.send(proxy.addr).await.sse();
                caller.event = response.prime().await.id().to_owned();
                assert_eq!(response.event().await.bytes(), secret(&caller.token).as_bytes());
                if request.rpc_id() == "plain" {
                    assert_eq!(response.event().await.bytes(), question().as_bytes());
                }
                response.reset();
            }
        }
        // A reset reaches the proxy in its own time, and moves counters.
        until("both clients have left both calls", async || metric(&proxy, "mcp_resume_calls_detached").await == 4.0)
            .await;
        let expired = expired.to_owned();
        let stage = Stage { proxy, server, thief, victim, expired };
        stage.server.is_ready.store(true, Ordering::SeqCst);
        stage.server.take_seen();
        stage
    }

    /// Waits until the proxy has handled the requests of other connections.
    async fn settle(&self) {
        assert_eq!(Request::new("GET", "/settle").send(self.proxy.addr).await.status, 204);
    }

    fn of(&self, caller: Caller) -> &Things {
        match caller {
            Caller::Thief => &self.thief,
            Caller::Victim => &self.victim,
        }
    }

    fn request(&self, attempt: Attempt) -> Request {
        let pick = |held, kind: fn(&Things) -> &String, forged: &str, expired: &str| match held {
            Held::Own => Some(kind(&self.thief).clone()),
            Held::Stolen => Some(kind(&self.victim).clone()),
            Held::Absent => None,
            Held::Forged => Some(forged.to_owned()),
            Held::Expired => Some(expired.to_owned()),
            Held::Forgotten => Some(self.thief.forgotten.clone()),
        };
        let mut request = match attempt.deed {
            Deed::Resume => Request::get(),
            Deed::Retry => Request::post(retried()),
            Deed::RetryByKey => Request::post(retried_by_key()),
            Deed::Cancel => Request::post(cancel()),
            Deed::Answer => Request::post(answer()),
            Deed::Delete => Request::new("DELETE", "/mcp"),
        };
        // The claim is the victim's and the signature is invalid; and an expired token of the
        // thief's.
        let (forged, expired) = (bearer("victim", 666), bearer("thief", 0));
        let forged_event = EventId::of(&self.victim.event).forged().at(0);
        for (name, value) in [
            ("MCP-Protocol-Version", Some(V2025_11.to_owned())),
            ("Last-Event-ID", pick(attempt.event, |things| &things.event, &forged_event, &self.expired)),
            ("Mcp-Session-Id", pick(attempt.session, |things| &things.session, "no-session", "an-old-session")),
            ("Authorization", pick(attempt.token, |things| &things.token, &forged, &expired)),
            ("Idempotency-Key", pick(attempt.key, |things| &things.key, "no-key", "an-old-key")),
        ] {
            if let Some(value) = value {
                request = request.with(name, &value);
            }
        }
        request
    }

    /// The counters that moved do not depend on how long something took, nor on connections.
    async fn counters(&self) -> BTreeMap<String, String> {
        let admin = self.proxy.admin.unwrap();
        let page = Request::new("GET", "/metrics").send(admin).await.body().await;
        let page = String::from_utf8(page).unwrap();
        // The process' memory and descriptors are not the proxy's counts.
        let samples = page.lines().filter(|line| line.starts_with("mcp_resume_"));
        let steady = samples.filter(|line| !line.contains("_seconds") && !line.contains("_connections"));
        // A session that the caller has not used before has no record yet.
        let steady = steady.filter(|line| !line.contains("sessions_kept"));
        steady
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The body without what the caller has shown itself: what the server makes of its token, and
    /// the ID it came with.
    fn anonymous(&self, mut body: String) -> String {
        let tokens = [&self.thief.token, &self.victim.token, "unknown", &bearer("victim", 666), &bearer("thief", 0)];
        for token in tokens {
            body = body.replace(&secret(token), "SECRET");
        }
        let theirs = EventId::of(&self.victim.event);
        let ours = [&self.thief.event, &self.thief.forgotten, &self.expired].map(|event| EventId::of(event));
        for event in [theirs.forged(), theirs].into_iter().chain(ours) {
            body = body.replace(&event.handle, "HANDLE");
        }
        body
    }

    /// Returns true if `caller` still finds its call by a request of its own: neither ended nor
    /// answered.
    async fn is_untouched(&self, caller: Caller, deed: Deed) -> bool {
        let things = self.of(caller);
        self.settle().await;
        self.server.take_seen();
        match deed {
            Deed::Answer => {
                let answered = things.ask(Request::post(answer())).send(self.proxy.addr).await;
                assert_eq!(answered.status, 202);
                !self.server.take_seen().is_empty()
            }
            Deed::Cancel => {
                let mut again = things.ask(Request::post(retried())).send(self.proxy.addr).await;
                let is_kept = again.is_sse();
                assert!(is_kept || again.body().await == secret(&things.token).as_bytes());
                is_kept
            }
            Deed::Resume | Deed::Retry | Deed::RetryByKey | Deed::Delete => {
                let resume = things.ask(Request::get().resume_from(&things.event));
                let mut response = resume.send(self.proxy.addr).await.sse();
                assert_eq!(response.event().await.bytes(), secret(&things.token).as_bytes());
                // An answered question is not repeated; here none was answered. An ended call has
                // an error. The error comes in the same piece; a running call has nothing more for
                // now.
                assert_eq!(response.event().await.bytes(), question().as_bytes());
                // What has ended has its error in the same piece; what goes on has nothing more for
                // now.
                tokio::select! {
                    biased;
                    error = response.event() => {
                        assert_eq!(error.json()["error"]["code"], ABANDONED);
                        false
                    }
                    () = self.settle() => true,
                }
            }
        }
    }
}

impl Things {
    /// A request with all that shows who it is.
    fn ask(&self, request: Request) -> Request {
        request
            .with("MCP-Protocol-Version", V2025_11)
            .with("Mcp-Session-Id", &self.session)
            .with("Authorization", &self.token)
    }

    /// Of a call that is over, and whose time to be read is over as well.
    async fn event_of_a_forgotten_call(&self, proxy: &Proxy) -> String {
        let mut response = self.ask(Request::post(soon_over())).send(proxy.addr).await.sse();
        let event = response.prime().await.id().to_owned();
        assert_eq!(response.event().await.bytes(), result("plain").as_bytes());
        response.ends().await;
        assert_eq!(metric(proxy, "mcp_resume_streams_kept").await, 1.0);
        pass(Duration::from_secs(3600)).await;
        within("it is forgotten", async { while metric(proxy, "mcp_resume_streams_kept").await > 0.0 {} }).await;
        event
    }
}

/// Outcome of an attempt: everything that a caller can see but time, and everything that was done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    status: u16,
    body: String,
    upstream: Vec<String>,
    moved: Vec<String>,
}

/// Metrics of the state held for callers.
const HELD: [&str; 2] = ["mcp_resume_held_bytes", "mcp_resume_streams_kept"];

/// Returns the values of the metrics of held state.
fn held(counters: &BTreeMap<String, String>) -> [Option<&String>; 2] {
    HELD.map(|name| counters.get(name))
}

/// Makes every attempt of a deed, each before a proxy of its own; asserts its worth.
fn every_attempt(deed: Deed) {
    let alone = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let expired = alone().block_on(event_of_another_proxy());
    let mut nothings: BTreeMap<Worth, BTreeSet<Seen>> = BTreeMap::new();
    let mut worths = BTreeSet::new();
    for attempt in Attempt::all(deed) {
        let worth = attempt.worth();
        let seen = alone().block_on(make(attempt, worth, &expired));
        if matches!(worth, Worth::Gone | Worth::Passed) {
            nothings.entry(worth).or_default().insert(seen);
        }
        worths.insert(worth);
    }
    assert!(worths.contains(&Worth::Theirs(Caller::Victim)) && worths.contains(&Worth::Refusal), "{worths:?}");
    for (worth, seen) in nothings {
        assert_eq!(seen.len(), 1, "{worth:?} differs: {seen:#?}");
    }
}

/// Signed by a key that the proxy under test never had, as after a restart.
async fn event_of_another_proxy() -> String {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &Request::post(retried())).await;
    response.prime().await.id().to_owned()
}

async fn make(attempt: Attempt, worth: Worth, expired: &str) -> Seen {
    let stage = Stage::start(expired).await;
    let before = stage.counters().await;
    let begun = Instant::now();
    let mut response = stage.request(attempt).send(stage.proxy.addr).await;
    let status = response.status;
    let body = match worth {
        // Goes on for as long as the server's call does.
        Worth::Theirs(_) if response.is_sse() => response.event().await.bytes().to_vec(),
        Worth::Theirs(_) | Worth::Refusal | Worth::Gone | Worth::Passed => response.body().await,
    };
    let body = String::from_utf8(body).unwrap();
    drop(response);
    stage.settle().await;
    if worth == Worth::Gone || worth == Worth::Passed && !attempt.is_kept() {
        // The end of its connection reaches the proxy in its own time.
        until("nothing is held for the attempt", async || held(&stage.counters().await) == held(&before)).await;
    }
    let upstream = stage.server.take_seen();
    let after = stage.counters().await;
    let what = format!("{attempt:?} is worth {worth:?}: {status} {body:?} {upstream:?}");

    let holds = |caller| attempt.token == if caller == Caller::Thief { Held::Own } else { Held::Stolen };
    for caller in [Caller::Thief, Caller::Victim] {
        let shows = body.contains(&secret(&stage.of(caller).token));
        assert!(!shows || holds(caller), "{what}, and shows what is the {caller:?}'s");
    }
    let asked = upstream.iter().filter(|rpc| *rpc == "ping").count();
    assert_eq!(asked, usize::from(worth == Worth::Refusal), "{what}");
    let passes = matches!(attempt.deed, Deed::Cancel | Deed::Answer | Deed::Delete);
    match worth {
        Worth::Theirs(owner) if !passes => {
            assert_eq!((body.as_str(), upstream.len()), (secret(&stage.of(owner).token).as_str(), 0), "{what}");
        }
        // The end of a session is the end of its calls, which the server is told.
        Worth::Theirs(_) => assert!(!upstream.is_empty(), "{what}"),
        Worth::Refusal => assert_eq!((status, upstream.len()), (401, 1), "{what}"),
        Worth::Gone => {
            assert_eq!((status, upstream.len()), (200, 0), "{what}");
            assert!(body.contains(&GONE.to_string()), "{what}");
        }
        Worth::Passed => assert_eq!(upstream.len(), 1, "{what}"),
    }
    for caller in [Caller::Thief, Caller::Victim] {
        let changes = passes && worth == Worth::Theirs(caller);
        assert_eq!(stage.is_untouched(caller, attempt.deed).await, !changes, "{what}, for the {caller:?}");
    }
    let moved = after.into_iter().filter(|(name, value)| before.get(name) != Some(value)).map(|(name, _)| name);
    let (held, moved): (Vec<_>, Vec<_>) = moved.partition(|name| HELD.contains(&name.as_str()));
    // Without a key, a response that has arrived is kept for two seconds, which a busy machine may
    // need for the exchange.
    let may_be_forgotten = worth == Worth::Passed && begun.elapsed() > Duration::from_secs(1);
    if matches!(worth, Worth::Gone | Worth::Passed) && !may_be_forgotten {
        assert_eq!(!held.is_empty(), worth == Worth::Passed && attempt.is_kept(), "{what}: {held:?}");
    }
    Seen { status, body: stage.anonymous(body), upstream, moved }
}

#[test]
fn resuming() {
    every_attempt(Deed::Resume);
}

#[test]
fn sending_a_post_again() {
    every_attempt(Deed::Retry);
}

#[test]
fn sending_a_post_again_with_its_key() {
    every_attempt(Deed::RetryByKey);
}

#[test]
fn cancelling() {
    every_attempt(Deed::Cancel);
}

#[test]
fn answering() {
    every_attempt(Deed::Answer);
}

#[test]
fn ending_a_session() {
    every_attempt(Deed::Delete);
}
