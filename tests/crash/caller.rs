//! A client that calls, is cut off by the faults of the run, and resumes until its call has ended.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::checker::{Call, Ending, is_lost, shown};
use crate::http::{Failed, Next, Request, Response};
use crate::rng::Rng;
use crate::sse::Frame;
use crate::world::{LIMIT, World, count};

/// After a port was closed, or a proxy would not.
const BACK_OFF: Duration = Duration::from_millis(20);
/// A tool is waited for by a client that has left, no longer.
const AWAY: Duration = Duration::from_secs(2);

/// Credentials and session of a client.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    authorization: String,
    session: Option<String>,
}

impl Keeper {
    fn post(&self, body: &Value) -> Request {
        self.own(Request::post(body))
    }

    fn resume(&self, id: &str) -> Request {
        self.own(Request::resume(id))
    }

    fn own(&self, request: Request) -> Request {
        let request = request.with("Authorization", &self.authorization).with("MCP-Protocol-Version", "2025-11-25");
        match &self.session {
            Some(id) => request.with("Mcp-Session-Id", id),
            None => request,
        }
    }

    /// Returns another principal in the same session.
    fn stranger(&self) -> Keeper {
        Keeper { authorization: "Bearer stranger".to_owned(), session: self.session.clone() }
    }
}

/// End of a response, as its reader saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// As a response ends.
    Gracefully,
    /// Cut, or given up by the client itself.
    Cut,
}

/// A client.
pub(crate) struct Caller {
    world: Arc<World>,
    rng: Rng,
    keeper: Keeper,
    /// True if the call asked for resumption policies.
    wants_policy: bool,
    next_id: u64,
}

/// Calls until the run is over.
pub(crate) async fn run(world: Arc<World>, number: usize, rng: Rng) {
    let keeper = Keeper { authorization: format!("Bearer p-{}", number % 5), session: None };
    let mut caller = Caller { world, rng, keeper, wants_policy: false, next_id: 0 };
    while !caller.world.is_stopping() {
        let told = async {
            caller.open(number % 4).await?;
            for _ in 0..1 + caller.rng.below(6) {
                if !caller.world.is_stopping() {
                    caller.call().await?;
                }
            }
            Ok::<_, String>(())
        };
        if let Err(problem) = told.await {
            let problem = format!("caller {number}: {problem}{}", caller.world.streams().await);
            caller.world.fail(problem);
        }
    }
}

impl Caller {
    // ── sessions ─────────────────────────────────────────────────────────────────────────────────

    /// None, one of the server's, one of the server's with a dialect, or one of the proxy's own.
    async fn open(&mut self, kind: usize) -> Result<(), String> {
        self.keeper.session = None;
        self.wants_policy = kind >= 2;
        if kind == 0 {
            return Ok(());
        }
        let name = if kind == 3 { "none".to_owned() } else { format!("s-{}", self.rng.next()) };
        let capabilities = if self.wants_policy { json!({"resumableRequests": {}}) } else { json!({}) };
        let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": name, "version": "1"}}});
        let response = self.until_answered(&initialize).await?;
        let id = response.head.get("mcp-session-id").map(str::to_owned);
        if id.is_none() || (kind != 3 && id.as_deref() != Some(&name)) {
            return Err(format!("the session is {id:?} and not {name}"));
        }
        self.keeper.session = id;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.until_answered(&initialized).await.map(drop)
    }

    /// Sends a message that may be repeated to one proxy after another until it is answered 2xx.
    async fn until_answered(&mut self, message: &Value) -> Result<Response, String> {
        let mut last = String::from("nothing");
        let sending = async {
            loop {
                let to = self.world.somewhere(&mut self.rng);
                match self.keeper.post(message).send(to, LIMIT).await {
                    Ok(response) if response.status < 300 => return Ok(response),
                    Ok(response) if matches!(response.status, 502..=504) => {
                        let (from, status) = (response.from, response.status);
                        let body = response.whole(LIMIT).await.unwrap_or_default();
                        last = format!("{from}: {status} {}", String::from_utf8_lossy(&body));
                    }
                    Ok(response) => {
                        return Err(format!("{} is answered {}", message["method"], response.head.first));
                    }
                    Err(Failed::Refused | Failed::Broken | Failed::Silent) => {}
                }
                tokio::time::sleep(BACK_OFF).await;
            }
        };
        let sent = tokio::time::timeout(LIMIT, sending).await;
        sent.unwrap_or_else(|_| Err(format!("no proxy accepts {message}; the last one answered {last}")))
    }

    // ── calls ────────────────────────────────────────────────────────────────────────────────────

    /// One call, from its POST to its end, and what can be asked of it then.
    async fn call(&mut self) -> Result<(), String> {
        let seed = self.rng.next() >> 12;
        self.next_id += 1;
        let id = if self.rng.percent(50) { json!(self.next_id) } else { json!(format!("c-{}", self.next_id)) };
        let deaths = self.world.deaths();
        let mut call = Call::new(seed, id, self.wants_policy);
        count(&self.world.tally.calls);
        // Where a POST may stay without a response, some can be sent again.
        let has_key = self.world.allowed.unanswered && self.rng.percent(40);
        let key = has_key.then(|| format!("k-{seed}"));
        let Some(response) = self.begin(&call, key.as_deref()).await? else { return Ok(()) };
        let told = self.follow(&mut call, response).await;
        told.map_err(|problem| self.describe(&call, &problem))?;
        if call.ended == Some(Ending::OwnerDied) && deaths == self.world.deaths() {
            return Err(self.describe(&call, "an owner is reported dead though none has died"));
        }
        let told = self.ask_afterwards(&mut call).await;
        told.map_err(|problem| self.describe(&call, &problem))?;
        self.world.keep(call, self.keeper.clone());
        Ok(())
    }

    fn describe(&self, call: &Call, problem: &str) -> String {
        let run = self.world.upstream.run(call.script.seed);
        let handle = call.id_of(call.last());
        let stream = handle.as_deref().map(stream_of).unwrap_or_default();
        format!(
            "call {} (id {}, stream {stream}): {problem}\n  seen up to {}, {} steps, ended {:?}, let go {}, {:?}, {run:?}",
            call.script.seed,
            call.id,
            call.last(),
            call.script.steps.len(),
            call.ended,
            call.let_go(),
            self.keeper,
        )
    }

    /// The POST. `None` where there is no stream to be had: nothing can be known of the call then
    /// but that it did not run twice. With a key it is sent again, anywhere, until its outcome is
    /// known.
    async fn begin(&mut self, call: &Call, key: Option<&str>) -> Result<Option<Response>, String> {
        let seed = call.script.seed;
        let mut broke_at = None;
        let message = json!({"jsonrpc": "2.0", "id": call.id, "method": "tools/call", "params": {
            "name": "tool", "arguments": {"seed": seed}, "_meta": {"progressToken": seed}}});
        let post = self.keeper.post(&message);
        let post = match key {
            Some(key) => post.with("Idempotency-Key", key),
            None => post,
        };
        loop {
            let to = self.world.somewhere(&mut self.rng);
            match post.send(to, LIMIT).await {
                Ok(response) if response.status == 200 && response.is_sse() => {
                    if broke_at.is_some() {
                        count(&self.world.tally.by_key);
                    }
                    return Ok(Some(response));
                }
                Ok(response) => {
                    let status = response.status;
                    let body = response.whole(LIMIT).await.unwrap_or_default();
                    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
                    if !matches!(status, 502..=504) || error["id"] != call.id {
                        return Err(format!("a call is answered {status}: {}", shown(&body)));
                    }
                    count(&self.world.tally.refused_calls);
                    match broke_at {
                        // The first POST may have run, or Redis is away.
                        Some(since) if status == 503 => {
                            if mcp_resume::clock::now() - since > LIMIT {
                                return Err(format!("the outcome of a call with a key stays unknown: {error}"));
                            }
                        }
                        _ if error["error"]["data"]["mayHaveRun"] == false => {
                            self.world.note_never_ran(seed);
                            return Ok(None);
                        }
                        _ if self.world.allowed.unanswered => return Ok(None),
                        _ => return Err(format!("a call is lost: {error}")),
                    }
                    tokio::time::sleep(BACK_OFF).await;
                }
                Err(Failed::Refused) => tokio::time::sleep(BACK_OFF).await,
                Err(Failed::Broken) if key.is_some() => {
                    broke_at.get_or_insert_with(mcp_resume::clock::now);
                    tokio::time::sleep(BACK_OFF).await;
                }
                Err(Failed::Broken) => {
                    count(&self.world.tally.unanswered);
                    if self.world.allowed.unanswered {
                        return Ok(None);
                    }
                    if self.world.upstream.run(seed).times > 0 {
                        return Err(format!("call {seed} ran and was not answered"));
                    }
                    // Never taken: it may be made again.
                }
                Err(Failed::Silent) => return Err(format!("call {seed} is not answered at all")),
            }
            if self.world.is_stopping() {
                return Ok(None);
            }
        }
    }

    /// Reads and comes back until the call has ended.
    async fn follow(&mut self, call: &mut Call, first: Response) -> Result<(), String> {
        let mut response = Some((first, Some(0)));
        let mut since = mcp_resume::clock::now();
        loop {
            match response.take() {
                Some((response, cursor)) => {
                    let before = call.last();
                    let leaves = self.rng.percent(25).then(|| self.rng.below(12));
                    let ended = self.read(call, response, cursor, leaves).await?;
                    if call.ended.is_some() {
                        return Ok(());
                    }
                    if call.last() > before {
                        since = mcp_resume::clock::now();
                    }
                    match ended {
                        Ended::Gracefully => count(&self.world.tally.sent_away),
                        Ended::Cut if leaves.is_some() && self.rng.percent(40) => {
                            self.world.upstream.ended(call.script.seed, AWAY).await;
                        }
                        Ended::Cut => {}
                    }
                    if call.id_of(0).is_none() {
                        // Cut before the first id: there is nothing to come back with.
                        count(&self.world.tally.unanswered);
                        return if self.world.allowed.unanswered { Ok(()) } else { Err("no id came".to_owned()) };
                    }
                }
                None => {
                    response = self.resume(call).await?;
                    if response.is_none() {
                        tokio::time::sleep(BACK_OFF).await;
                    }
                }
            }
            if mcp_resume::clock::now() - since > LIMIT {
                return Err("the stream is stuck".to_owned());
            }
        }
    }

    /// Reads a response to its end, or, if the call is not over, until the client `leaves` after so
    /// many events.
    async fn read(
        &mut self,
        call: &mut Call,
        mut response: Response,
        cursor: Option<u64>,
        leaves: Option<usize>,
    ) -> Result<Ended, String> {
        let silence = self.patience();
        let mut place = None;
        let mut read = 0;
        loop {
            let limit = if call.ended.is_some() { LIMIT } else { silence };
            let frame = match response.next(limit).await {
                Next::Frame(frame) if is_aside(&frame) => continue,
                Next::Frame(frame) => frame,
                Next::End => return Ok(Ended::Gracefully),
                Next::Silent if call.ended.is_some() => return Err("the response goes on after the end".to_owned()),
                Next::Silent | Next::Broken => return Ok(Ended::Cut),
            };
            let said_by = |problem: String| format!("{problem} (said by {})", response.from);
            let Some(after) = place else {
                place = Some(call.begin(&frame, cursor).map_err(said_by)?);
                continue;
            };
            let before = call.last();
            let number = call.take(&frame, after).map_err(said_by)?;
            place = Some(number);
            if number > before {
                self.world.note_seen();
                let has_policy = call.token.is_some() || self.world.allowed.forgotten_sessions;
                // Of a process that died before the first event there is the end alone.
                let is_dead = call.ended == Some(Ending::OwnerDied);
                if number == 1 && call.wants_policy && !has_policy && !is_dead {
                    return Err("a client that asked for a policy got none".to_owned());
                }
            }
            if call.is_asked() {
                self.answer(call).await?;
            }
            if leaves == Some(read) && call.ended.is_none() {
                return Ok(Ended::Cut);
            }
            read += 1;
        }
    }

    /// Sends the client's response to the tool's question until a proxy accepts it.
    async fn answer(&mut self, call: &mut Call) -> Result<(), String> {
        count(&self.world.tally.questions);
        call.note_answer();
        let answer = json!({"jsonrpc": "2.0", "id": call.script.question(), "result": {}});
        self.until_answered(&answer).await.map(drop)
    }

    /// Comes back once, in one of the ways there are. `None` where that led to nothing yet. With
    /// the response comes the place that was asked for, if one was.
    async fn resume(&mut self, call: &mut Call) -> Result<Option<(Response, Option<u64>)>, String> {
        let to = self.world.somewhere(&mut self.rng);
        let from = if self.rng.percent(15) { self.rng.pick(&call.places()) } else { call.last() };
        let Some(id) = call.id_of(from) else { return Err("there is nothing to come back with".to_owned()) };
        let token = call.token.clone().filter(|_| self.rng.percent(50));
        let names_place = token.is_none() || self.rng.percent(50);
        if names_place {
            call.note_confirmed(from);
        }
        let (request, cursor) = match &token {
            None => (self.keeper.resume(&id), Some(from)),
            Some(token) => {
                let resume = json!({"jsonrpc": "2.0", "id": call.id, "method": "requests/resume",
                    "params": {"resumeToken": token}});
                // It goes on after the last event that was confirmed in any way, and lets go of
                // what precedes that.
                call.note_let_go();
                let request = self.keeper.post(&resume);
                (if names_place { request.with("Last-Event-ID", &id) } else { request }, None)
            }
        };
        let Ok(response) = request.send(to, self.patience()).await else { return Ok(None) };
        match response.status {
            200 if response.is_sse() => {
                count(if token.is_some() { &self.world.tally.by_token } else { &self.world.tally.resumed });
                Ok(Some((response, cursor)))
            }
            503 if self.world.allowed.refusals => {
                count(&self.world.tally.refused_resumes);
                Ok(None)
            }
            status => {
                let body = response.whole(LIMIT).await.unwrap_or_default();
                let by = if token.is_some() { "token" } else { "event id" };
                Err(format!("a resume by {by} from {from} is answered {status} by {to}: {}", shown(&body)))
            }
        }
    }

    /// Draws the time that a client waits on a silent connection.
    fn patience(&mut self) -> Duration {
        Duration::from_millis(500) + self.rng.millis(3500)
    }

    // ── afterwards ───────────────────────────────────────────────────────────────────────────────

    async fn ask_afterwards(&mut self, call: &mut Call) -> Result<(), String> {
        if call.ended.is_none() {
            return Ok(());
        }
        if self.rng.percent(60) {
            let from = self.rng.pick(&call.places());
            replay(&self.world, &mut self.rng, &self.keeper, call, from).await?;
        }
        if self.rng.percent(40) {
            let last = call.last();
            replay(&self.world, &mut self.rng, &self.keeper, call, last).await?;
        }
        if self.rng.percent(15) {
            self.try_as_stranger(call).await?;
        }
        Ok(())
    }

    /// Another caller's id opens nothing, and says nothing: neither does one that was never given
    /// out.
    async fn try_as_stranger(&mut self, call: &Call) -> Result<(), String> {
        let places = call.places();
        let Some(id) = call.id_of(self.rng.pick(&places)) else { return Ok(()) };
        let forged = forged(&id);
        let stranger = self.keeper.stranger();
        let foreign = self.refusal(&stranger, &id, call).await?;
        let unknown = self.refusal(&stranger, &forged, call).await?;
        let own_unknown = self.refusal(&self.keeper.clone(), &forged, call).await?;
        if foreign != unknown || unknown != own_unknown {
            return Err(format!("a stranger is told:\n{foreign}\nan unknown id:\n{unknown}\n{own_unknown}"));
        }
        count(&self.world.tally.strangers);
        Ok(())
    }

    /// Returns the refusal that an id receives which opens no stream, with the id itself taken out.
    async fn refusal(&mut self, keeper: &Keeper, id: &str, call: &Call) -> Result<String, String> {
        let asking = async {
            loop {
                let to = self.world.somewhere(&mut self.rng);
                if let Ok(response) = keeper.resume(id).send(to, LIMIT).await
                    && (response.status != 503 || !self.world.allowed.refusals)
                    && let Some(said) = refusal_of(response, id, call).await?
                {
                    return Ok(said);
                }
                tokio::time::sleep(BACK_OFF).await;
            }
        };
        tokio::time::timeout(LIMIT, asking).await.unwrap_or_else(|_| Err("an id is not refused at all".to_owned()))
    }
}

/// `None` where the connection broke.
async fn refusal_of(mut response: Response, id: &str, call: &Call) -> Result<Option<String>, String> {
    let mut said = response.head.first.clone();
    // A drain that begins between two of them says so in the second.
    let says = |name: &str| !["date", "connection"].iter().any(|other| name.eq_ignore_ascii_case(other));
    for (name, value) in response.head.headers.iter().filter(|(name, _)| says(name)) {
        said += &format!("\n{name}: {value}");
    }
    if response.status != 200 {
        return Err(format!("an id that opens nothing is answered {said}"));
    }
    let mut events = 0;
    loop {
        match response.next(LIMIT).await {
            Next::Frame(frame) => {
                events += 1;
                if events > 1 || !is_lost(&frame, &call.id) {
                    return Err(format!("an id that opens nothing is answered {}", shown(&frame.raw)));
                }
                said += &String::from_utf8_lossy(&frame.raw).replace(stream_of(id), "HANDLE");
            }
            Next::End if events == 1 => return Ok(Some(said)),
            Next::End => return Err("an id that opens nothing is answered with nothing".to_owned()),
            Next::Broken | Next::Silent => return Ok(None),
        }
    }
}

/// Reads the rest of an ended call after `from`, which has to be what it was.
pub(crate) async fn replay(
    world: &World,
    rng: &mut Rng,
    keeper: &Keeper,
    call: &mut Call,
    mut from: u64,
) -> Result<(), String> {
    let since = mcp_resume::clock::now();
    while mcp_resume::clock::now() - since < LIMIT {
        let id = call.id_of(from).expect("a call that ended has a handle");
        let to = world.somewhere(rng);
        let said_by = |problem: String| format!("replayed by {to} after {from}: {problem}");
        let Ok(mut response) = keeper.resume(&id).send(to, LIMIT).await else {
            tokio::time::sleep(BACK_OFF).await;
            continue;
        };
        match response.status {
            200 if response.is_sse() => {}
            204 if from == call.last() => {
                count(&world.tally.replays);
                return Ok(());
            }
            503 if world.allowed.refusals => {
                count(&world.tally.refused_resumes);
                tokio::time::sleep(BACK_OFF).await;
                continue;
            }
            _ => return Err(said_by(format!("answered {}, the last is {}", response.head.first, call.last()))),
        }
        let mut place = None;
        loop {
            match response.next(LIMIT).await {
                Next::Frame(frame) if is_aside(&frame) => {}
                Next::Frame(frame) => {
                    place = Some(match place {
                        None => call.begin(&frame, Some(from)).map_err(said_by)?,
                        Some(after) => call.take(&frame, after).map_err(said_by)?,
                    });
                }
                Next::End | Next::Broken => break,
                Next::Silent => return Err(said_by("a stream that has ended is held open".to_owned())),
            }
        }
        let is_whole = from < call.last() && place == Some(call.last());
        if is_whole {
            count(&world.tally.replays);
            return Ok(());
        }
        // Cut; or sent away, where the seal was still to come.
        from = place.unwrap_or(from);
        tokio::time::sleep(BACK_OFF).await;
    }
    Err(format!("a replay after {from} does not come to its end"))
}

/// A comment, or when to come back: nothing of the stream.
fn is_aside(frame: &Frame) -> bool {
    frame.is_comment() || (frame.id.is_none() && frame.retry.is_some() && !frame.is_event())
}

/// The part of an event ID that names its stream.
fn stream_of(id: &str) -> &str {
    id.split('.').next().unwrap_or_default()
}

/// An id of the right form that no key has signed.
fn forged(id: &str) -> String {
    let (handle, place) = id.split_once('.').expect("an event ID");
    // Not the last character: it may carry padding bits alone.
    let at = handle.len() - 3;
    let other = if handle.as_bytes()[at] == b'A' { "B" } else { "A" };
    format!("{}{other}{}.{place}", &handle[..at], &handle[at + 1..])
}
