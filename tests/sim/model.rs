//! The slow model: what the upstream sent for each call, and what a client may see of it.
//!
//! It knows no states and no timers of the proxy. An event's number says which of the upstream's
//! events it has to be; an error that the proxy made has to have a reason in what happened; a
//! response that ends before the answer has to have been allowed to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::plan::{Form, Plan};
use super::wire::Event;

/// A client and a request id of it.
pub(crate) type Key = (usize, usize);

/// Kind of an upstream event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Notice,
    Ask(String),
    /// To these requests of the call.
    Answer(Vec<usize>),
}

/// The id of a request of a call. Those of a batch have ids of both types.
pub(crate) fn id_of(key: Key, request: usize) -> Value {
    if request == 0 { key.1.into() } else { format!("{}.{request}", key.1).into() }
}

struct Sent {
    data: String,
    /// ID with which the client has seen a question.
    seen: Option<Value>,
    kind: Kind,
    at: Instant,
}

impl Sent {
    /// Returns true if a client may see the event as `data`: as it was sent, and a question under
    /// an ID of the proxy's own, the same each time.
    fn is_seen_as(&self, data: &str) -> bool {
        let Kind::Ask(_) = &self.kind else { return self.data == data };
        let (Ok(mut sent), Ok(seen)) = (serde_json::from_str::<Value>(&self.data), serde_json::from_str::<Value>(data))
        else {
            return false;
        };
        let id = &seen["id"];
        let is_own = id.as_str().is_some_and(|id| id.starts_with("mr-"));
        let may_be = self.seen.as_ref().map_or(is_own || *id == sent["id"], |before| before == id);
        sent["id"] = id.clone();
        may_be && sent == seen
    }
}

/// One time that the upstream was asked to run a call.
#[derive(Default)]
struct Run {
    sent: Vec<Sent>,
    /// The upstream has failed it: no answer comes.
    failed: bool,
}

/// One call.
#[derive(Default)]
pub(crate) struct Call {
    runs: Vec<Run>,
    /// Run of each handle's stream.
    handles: BTreeMap<String, usize>,
    /// Number of client responses that reached the upstream, by question.
    arrived: BTreeMap<String, usize>,
    /// Since when the client knows that its answer was taken.
    acknowledged: BTreeMap<String, Instant>,
    begun: Option<Instant>,
    /// Time, since the beginning of the run, at which the first whole POST was sent.
    pub(crate) posted: Option<Duration>,
    pub(crate) cancelled: bool,
    /// Of a session's own stream: the steps that are done.
    pub(crate) steps: usize,
    /// The upstream may be asked to run it more than once.
    pub(crate) may_repeat: bool,
    /// Upstream responses that are under way.
    pub(crate) open: usize,
    /// Number of connections that the client has made.
    pub(crate) connections: usize,
    /// The newest connection that reads a handle's stream, and since when.
    readers: BTreeMap<String, (usize, Instant)>,
    /// Time at which the client was last known to be connected, and its longest possible absence
    /// before.
    last_there: Option<Instant>,
    longest_away: Duration,
}

/// Progress of one response.
pub(crate) struct Reading {
    pub(crate) connection: usize,
    /// The number it goes on from.
    cursor: Option<u64>,
    handle: Option<String>,
    /// Times of the request and of its response.
    asked: Instant,
    begun: Instant,
    /// Read as fast as it comes.
    pub(crate) prompt: bool,
    events: usize,
    /// The last `retry`.
    retry: Option<u64>,
    over: bool,
}

/// Meaning of an event for the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Nothing,
    Notice,
    /// A question, with its ID and its text as the client has them.
    Ask(String, Value, String),
    /// To these requests, by the upstream or by the proxy.
    Answer(Vec<usize>),
    Lost,
    Farewell,
}

impl Call {
    /// Returns the longest time that the client may have been away by now.
    fn away(&self, now: Instant) -> Duration {
        self.last_there.map_or(Duration::ZERO, |then| now.saturating_duration_since(then))
    }
}

impl Reading {
    /// Returns the last event that the response has brought, or the one it resumes after.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor.unwrap_or(0)
    }

    pub(crate) fn new(
        connection: usize,
        cursor: Option<u64>,
        prompt: bool,
        (asked, begun): (Instant, Instant),
    ) -> Self {
        Self { connection, cursor, handle: None, asked, begun, prompt, events: 0, retry: None, over: false }
    }
}

/// All calls of a run.
pub(crate) struct Model {
    calls: BTreeMap<Key, Call>,
    /// The upstream is gone for good.
    pub(crate) is_over: bool,
    began: Instant,
    /// The clients that have deleted their sessions.
    pub(crate) deleted: BTreeSet<usize>,
    /// Questions of sessions that the server has forgotten.
    pub(crate) lost: BTreeSet<String>,
    pub(crate) reached: Vec<&'static str>,
}

impl Model {
    pub(crate) fn new(began: Instant) -> Self {
        Self {
            calls: BTreeMap::new(),
            is_over: false,
            began,
            deleted: BTreeSet::new(),
            lost: BTreeSet::new(),
            reached: Vec::new(),
        }
    }

    pub(crate) fn call(&mut self, key: Key) -> &mut Call {
        self.calls.entry(key).or_default()
    }

    /// The calls whose upstream responses are still under way.
    pub(crate) fn open(&self) -> Vec<Key> {
        self.calls.iter().filter(|(_, call)| call.open > 0).map(|(key, _)| *key).collect()
    }

    // ── what the upstream does ───────────────────────────────────────────────────────────────────

    /// The upstream was asked to run a call. The number of the run.
    pub(crate) fn run(&mut self, key: Key) -> Result<usize, String> {
        let call = self.call(key);
        call.runs.push(Run::default());
        if call.runs.len() > 1 && !call.may_repeat && !call.cancelled {
            return Err(format!("{key:?}: the tool ran twice"));
        }
        Ok(call.runs.len() - 1)
    }

    /// The one run of a session's own stream, and how many of its steps are done.
    pub(crate) fn listen(&mut self, key: Key) -> usize {
        let call = self.call(key);
        if call.runs.is_empty() {
            call.runs.push(Run::default());
        }
        call.steps
    }

    /// Returns the number of events that a run has sent.
    pub(crate) fn sent(&mut self, key: Key, run: usize) -> usize {
        self.call(key).runs[run].sent.len()
    }

    /// Notes an event whose last byte is sent now.
    pub(crate) fn send(&mut self, key: Key, run: usize, data: String, kind: Kind, at: Instant) {
        self.call(key).runs[run].sent.push(Sent { data, seen: None, kind, at });
    }

    /// There will be no answer.
    pub(crate) fn fail(&mut self, key: Key, run: usize) {
        self.call(key).runs[run].failed = true;
    }

    /// A client's answer came upstream.
    pub(crate) fn answer(&mut self, key: Key, ask: &str) -> Result<(), String> {
        // With its session goes what was known of it: the server may say what it likes to what
        // comes then.
        let is_known = !self.deleted.contains(&key.0);
        let times = self.call(key).arrived.entry(ask.to_owned()).or_default();
        *times += 1;
        if *times > 1 && is_known { Err(format!("{key:?}: the answer to {ask} came upstream twice")) } else { Ok(()) }
    }

    pub(crate) fn is_answered(&self, key: Key, ask: &str) -> bool {
        self.calls.get(&key).is_some_and(|call| call.arrived.contains_key(ask))
    }

    // ── what the client does ─────────────────────────────────────────────────────────────────────

    /// The client connects for a call: the connection's number.
    pub(crate) fn connect(&mut self, key: Key, now: Instant) -> usize {
        let call = self.call(key);
        call.begun.get_or_insert(now);
        call.longest_away = call.longest_away.max(call.away(now));
        call.connections += 1;
        call.connections
    }

    /// Returns true if a newer connection reads the stream of `reading`.
    pub(crate) fn is_overtaken(&mut self, key: Key, reading: &Reading) -> bool {
        let readers = &self.call(key).readers;
        let newest = reading.handle.as_ref().and_then(|handle| readers.get(handle));
        newest.is_some_and(|(newest, _)| *newest > reading.connection)
    }

    /// The client was last there when the connection that is over now had begun; the proxy may have
    /// lost it at any time since.
    pub(crate) fn leave(&mut self, key: Key, begun: Instant) {
        self.call(key).last_there = Some(begun);
    }

    /// The client knows that its answer was taken.
    pub(crate) fn acknowledge(&mut self, key: Key, ask: &str, now: Instant) {
        self.call(key).acknowledged.entry(ask.to_owned()).or_insert(now);
    }

    /// An event came on a response.
    pub(crate) fn take(
        &mut self,
        plan: &Plan,
        key: Key,
        reading: &mut Reading,
        event: &Event,
        now: Instant,
    ) -> Result<Taken, String> {
        let told = |what: &str| Err(format!("{key:?} connection {}: {what}: {event:?}", reading.connection));
        if event.is_comment {
            return Ok(Taken::Nothing);
        }
        if reading.over {
            return told("an event behind the end");
        }
        reading.events += 1;
        let retry_before = reading.retry;
        reading.retry = event.retry.or(retry_before);
        let parts: Vec<&str> = event.id.as_deref().map(|id| id.split('.').collect()).unwrap_or_default();
        let (handle, seq) = match parts.as_slice() {
            [] if event.data.is_empty() && event.retry.is_some() => {
                // A `retry` is the first event only where a newer connection takes the stream over
                // from a response that is not primed.
                let is_taken_over = !plan.primes(key) && self.call(key).connections > reading.connection;
                if reading.events == 1 && !is_taken_over {
                    return told("an event without an id");
                }
                let delivery = &plan.config.delivery;
                let is_long = self.call(key).begun.is_some_and(|begun| now >= begun + delivery.retry_long_after);
                let grows = retry_before < event.retry && event.retry == Some(millis(delivery.retry_long));
                if is_long && grows {
                    return Ok(Taken::Nothing);
                }
                reading.over = true;
                return Ok(Taken::Farewell);
            }
            [] => return told("an event without an id"),
            [_, "end"] => {
                let alone = reading.events == 1 || plan.is_tight();
                reading.over = true;
                if !alone {
                    return told("a lost stream's event behind others");
                }
                return self.error(plan, key, &event.data, None, now).map(|_| Taken::Lost);
            }
            [handle, seq] => (*handle, seq.parse::<u64>()),
            [handle, seq, _attach] if event.data.is_empty() => (*handle, seq.parse::<u64>()),
            _ => return told("a strange id"),
        };
        let Ok(seq) = seq else { return told("a strange number") };
        if reading.handle.is_none() {
            let readers = &mut self.call(key).readers;
            let newest = readers.entry(handle.to_owned()).or_insert((reading.connection, reading.begun));
            if newest.0 < reading.connection {
                *newest = (reading.connection, reading.begun);
            }
        }
        if reading.handle.get_or_insert(handle.to_owned()) != handle {
            return told("another stream's event");
        }
        if event.data.is_empty() {
            if reading.events > 1 || event.retry.is_none() {
                return told("an empty event in a wrong place");
            }
            if reading.cursor.is_some_and(|cursor| cursor != seq) && !(key.1 == 0 && plan.is_tight()) {
                return told("a response that begins at another place");
            }
            reading.cursor = Some(seq);
            return Ok(Taken::Nothing);
        }
        if reading.events == 1 && plan.primes(key) {
            return told("a response that is not primed");
        }
        // The same POST again, by a client that is not primed: where bounds are tight it is told of
        // a gap by a comment.
        let first = if plan.is_tight() { seq.saturating_sub(1) } else { 0 };
        let cursor = reading.cursor.unwrap_or(first);
        reading.cursor = Some(seq);
        self.take_data(plan, key, reading, (handle, cursor, seq), &event.data, now)
    }

    fn take_data(
        &mut self,
        plan: &Plan,
        key: Key,
        reading: &Reading,
        (handle, cursor, seq): (&str, u64, u64),
        data: &str,
        now: Instant,
    ) -> Result<Taken, String> {
        let tell = |what: &str| {
            Err(format!("{key:?} connection {}: {what}: after {cursor} came {seq}: {data:.200}", reading.connection))
        };
        if seq <= cursor {
            return tell("an event once more");
        }
        let call = self.calls.entry(key).or_default();
        let known = call.handles.get(handle).copied();
        let is_at = |run: &Run| run.sent.get(seq as usize - 1).is_some_and(|sent| sent.is_seen_as(data));
        let Some(run) = known.or_else(|| call.runs.iter().position(is_at)).or(call.runs.len().checked_sub(1)) else {
            // Its session was deleted before the server took it.
            return self.error(plan, key, data, Some((0, seq)), now).map(Taken::Answer);
        };
        call.handles.insert(handle.to_owned(), run);
        let sent = &mut call.runs[run].sent;
        let is_passed_over = |passed: u64| match sent.get(passed as usize - 1) {
            Some(Sent { kind: Kind::Ask(ask), .. }) => call.arrived.contains_key(ask) || self.lost.contains(ask),
            _ => false,
        };
        let may_lose = key.1 == 0 && plan.is_tight();
        if !may_lose && !(cursor + 1..seq).all(is_passed_over) {
            return tell("events are missing");
        }
        if cursor + 1 < seq {
            self.reached.push("an answer passed over");
        }
        // A JSON array becomes an event for each of its messages.
        if let [only] = &sent[..]
            && only.data != data
            && let parts = messages(&only.data)
            && parts.len() > 1
            && parts.get(seq as usize - 1) == serde_json::from_str(data).ok().as_ref()
        {
            return Ok(Taken::Answer(named(plan, key, data)));
        }
        let count = sent.len();
        let Some(event) = sent.get_mut(seq as usize - 1).filter(|event| event.is_seen_as(data)) else {
            let last = count + plan.requests(key);
            if seq > last as u64 {
                return tell("a number that cannot be");
            }
            return self.error(plan, key, data, Some((run, seq)), now).map(Taken::Answer);
        };
        if let Some((newest, since)) = call.readers.get(handle)
            && *newest > reading.connection
            && event.at > *since
        {
            return tell("an overtaken connection goes on reading");
        }
        let is_late = now.saturating_duration_since(event.at.max(reading.begun)) > Duration::from_millis(1);
        if is_late && reading.prompt && plan.jumps.is_empty() && !plan.is_tight() {
            return tell(&format!("an event is late by {:?}", now - event.at.max(reading.begun)));
        }
        match &event.kind {
            Kind::Notice => Ok(Taken::Notice),
            Kind::Ask(ask) if call.acknowledged.get(ask).is_some_and(|at| *at < reading.asked) => {
                tell("a question that was answered is asked again")
            }
            Kind::Ask(ask) => {
                let message: Value = serde_json::from_str(data).unwrap_or_default();
                if event.data != data {
                    self.reached.push("a question with another ID");
                }
                event.seen = Some(message["id"].clone());
                let text = message["params"]["message"].as_str().unwrap_or_default();
                Ok(Taken::Ask(ask.clone(), message["id"].clone(), text.to_owned()))
            }
            Kind::Answer(requests) => Ok(Taken::Answer(requests.clone())),
        }
    }

    /// A response that is no stream: the upstream's as it was, or an error of the proxy.
    pub(crate) fn take_plain(
        &mut self,
        plan: &Plan,
        key: Key,
        status: u16,
        body: &str,
        now: Instant,
    ) -> Result<(), String> {
        // A call that its client has cancelled is not sent again, and a session that its client has
        // ended is not opened again.
        let may_be_refused = self.deleted.contains(&key.0) || self.call(key).cancelled;
        if status == 404 && may_be_refused && code(body) == Some(-32001) {
            return Ok(());
        }
        let call = self.call(key);
        let json_only = plan.clients[key.0].calls[key.1 - 1].json_only;
        let scripted = &plan.clients[key.0].calls[key.1 - 1].script.form;
        let as_sent = call.runs.iter().any(|run| run.sent.first().is_some_and(|sent| sent.data == body));
        let passes = match scripted {
            Form::Json(_) => status == 200 && as_sent,
            Form::Status(sent, true) => status == *sent && as_sent,
            Form::Status(sent, false) => status == *sent && body == "refused",
            Form::Dies => false,
            Form::Stream(..) => status == 200 && json_only && is_answer(call, body),
        };
        if passes || (status == 202 && call.cancelled) {
            return Ok(());
        }
        if status < 500 && !(json_only && status == 200) {
            return Err(format!("{key:?}: {status} out of nowhere: {body:.200}"));
        }
        self.error(plan, key, body, None, now).map(|_| ())
    }

    /// A response ended well, and no answer was in it.
    pub(crate) fn end_early(&mut self, plan: &Plan, key: Key, reading: &Reading, now: Instant) -> Result<(), String> {
        let delivery = &plan.config.delivery;
        let polls = delivery.mode == mcp_resume::config::Mode::Poll;
        let is_old = delivery.max_connection.is_some_and(|most| now.saturating_duration_since(reading.asked) >= most);
        let is_deleted = self.deleted.contains(&key.0);
        let is_draining = plan.drains.is_some_and(|drains| now.saturating_duration_since(self.began) >= drains);
        let call = self.call(key);
        let overtaken = call.connections > reading.connection;
        if key.1 == 0 && (overtaken || is_old || is_deleted || is_draining) {
            return Ok(());
        }
        if key.1 == 0 {
            return Err(format!("{key:?} connection {}: the session's own stream ended", reading.connection));
        }
        if reading.events == 0 && !overtaken && !call.cancelled {
            return Err(format!("{key:?} connection {}: nothing in a response", reading.connection));
        }
        if polls || is_old || overtaken || call.cancelled {
            return Ok(());
        }
        Err(format!("{key:?} connection {}: a response ended without an answer", reading.connection))
    }

    /// Checks the response to a client of another session that resumes with an event ID of this
    /// call.
    pub(crate) fn spied(key: Key, event: &Event) -> Result<(), String> {
        let is_end = event.id.as_deref().is_some_and(|id| id.ends_with(".end"));
        match is_end && code(&event.data) == Some(-32012) {
            true => Ok(()),
            false => Err(format!("{key:?}: another session was given {event:?}")),
        }
    }

    /// An error that the proxy made: its reason has to be there. The requests that it answers.
    fn error(
        &mut self,
        plan: &Plan,
        key: Key,
        data: &str,
        at: Option<(usize, u64)>,
        now: Instant,
    ) -> Result<Vec<usize>, String> {
        let deleted = self.deleted.contains(&key.0);
        let elapsed = now.saturating_duration_since(self.began);
        let is_over = self.is_over || plan.refuses.is_some_and(|(from, _)| elapsed >= from);
        let call = self.call(key);
        let streams = &plan.config.streams;
        let since = |then: Option<Instant>| then.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        let away = call.longest_away.max(call.away(now));
        let wait = if plan.is_modern(key) { Some(plan.grace()) } else { streams.max_wait };
        let timed_out = streams.call_timeout.is_some_and(|most| since(call.begun) >= most);
        let abandoned = wait.is_some_and(|wait| away >= wait);
        let failed = is_over || call.runs.is_empty() || call.runs.iter().any(|run| run.failed);
        let is_new = plan.drains.is_some_and(|drains| call.posted.is_none_or(|posted| posted >= drains));
        let drained = is_new || plan.drained().is_some_and(|drained| elapsed >= drained);
        let named = named(plan, key, data);
        // What the upstream said before it failed comes before the errors: one for each request it
        // left unanswered.
        let are_next = at.is_none_or(|(run, seq)| {
            let sent = call.runs.get(run).map_or(&[][..], |run| &run.sent);
            let place = seq.checked_sub(sent.len() as u64 + 1).map(|place| place as usize);
            let mut left = (0..plan.requests(key)).filter(|request| !is_answered(sent, *request));
            place.and_then(|place| left.nth(place)).is_some_and(|left| named == [left])
        });
        let has_reason = match code(data) {
            Some(-32010) => failed && are_next,
            Some(-32011) => timed_out || abandoned || deleted || drained,
            Some(-32012) => away >= streams.retention || plan.is_tight() || (plan.is_modern(key) && abandoned),
            Some(-32013) => plan.is_tight(),
            Some(-32001) => deleted || call.cancelled,
            Some(_) | None => false,
        };
        self.reached.push(match code(data) {
            Some(-32011) => "the call was given up",
            Some(-32012) => "a lost stream",
            Some(-32013) if plan.is_short_of_bytes() => "bounds of bytes",
            Some(-32013) => "bounds",
            _ => "the upstream failed",
        });
        // In its place a single error; instead of the whole, one for each.
        let wanted = if at.is_some() { 1 } else { plan.requests(key) };
        let names = named.len() == wanted && named.iter().collect::<BTreeSet<_>>().len() == wanted;
        match has_reason && names {
            true => Ok(named),
            false => Err(format!("{key:?}: an error without a reason (away for {away:?}): {data:.300}")),
        }
    }
}

fn is_answer(call: &Call, body: &str) -> bool {
    let mut sent = call.runs.iter().flat_map(|run| &run.sent);
    sent.any(|sent| matches!(sent.kind, Kind::Answer(_)) && sent.data == body)
}

fn is_answered(sent: &[Sent], request: usize) -> bool {
    sent.iter().any(|sent| matches!(&sent.kind, Kind::Answer(requests) if requests.contains(&request)))
}

/// The messages in `data`: one, or the array of a batch.
fn messages(data: &str) -> Vec<Value> {
    match serde_json::from_str(data) {
        Ok(Value::Array(messages)) => messages,
        Ok(message) => vec![message],
        Err(_) => Vec::new(),
    }
}

/// The requests of the call that `data` names, in its order; nothing where it names another.
fn named(plan: &Plan, key: Key, data: &str) -> Vec<usize> {
    let request = |message: Value| (0..plan.requests(key)).find(|request| id_of(key, *request) == message["id"]);
    messages(data).into_iter().map(request).collect::<Option<_>>().unwrap_or_default()
}

/// Returns the error code of the messages in `data`, if all have the same.
fn code(data: &str) -> Option<i64> {
    let mut codes = messages(data).into_iter().map(|message| message["error"]["code"].as_i64());
    let first = codes.next()??;
    codes.all(|code| code == Some(first)).then_some(first)
}

impl Plan {
    pub(crate) fn is_modern(&self, key: Key) -> bool {
        self.clients[key.0].version == "2026-07-28"
    }

    /// Returns the number of requests in a call's POST.
    fn requests(&self, key: Key) -> usize {
        key.1.checked_sub(1).map_or(1, |call| self.clients[key.0].calls[call].script.requests)
    }

    /// Returns true if every response to this client begins with an event ID.
    fn primes(&self, key: Key) -> bool {
        let new = self.clients[key.0].version >= "2025-11-25";
        new || self.config.delivery.prime == mcp_resume::config::Prime::All
    }

    /// Returns the shortest time that a modern call survives its client.
    pub(crate) fn grace(&self) -> Duration {
        self.config.delivery.retry.min(self.config.delivery.poll_retry) * 2 + Duration::from_secs(1)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}
