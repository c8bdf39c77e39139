//! Events of one run, drawn from its seed before it begins.

use std::time::Duration;

use mcp_resume::config::{Config, Mode, Prime};

use super::rng::Rng;

/// One run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) config: Config,
    pub(crate) clients: Vec<Client>,
    /// The clock is moved by so much at these times, as if the machine had slept.
    pub(crate) jumps: Vec<(Duration, Duration)>,
    /// Times at which the server restarts: it closes all connections, and forgets all sessions.
    pub(crate) restarts: Vec<Duration>,
    /// Time at which the proxy is asked to drain.
    pub(crate) drains: Option<Duration>,
    /// Delays of the server's refusals of sessions and of its handshakes, one after another and
    /// over again.
    pub(crate) delays: Vec<Duration>,
    /// The upstream refuses connections from the first time to the second.
    pub(crate) refuses: Option<(Duration, Duration)>,
    /// Capacity of the pipes to the clients and to the upstream.
    pub(crate) pipes: (usize, usize),
}

/// One client with a session of its own (or none, in the modern era).
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) version: &'static str,
    pub(crate) calls: Vec<Call>,
    /// The answer to `initialize` is a stream.
    pub(crate) opens_by_stream: bool,
    /// Standalone stream of the session, if the client opens it.
    pub(crate) listens: Option<Listening>,
    /// True if the client deletes its session at the end.
    pub(crate) deletes: bool,
    /// Time at which the client deletes its session while its calls may run.
    pub(crate) ends: Option<Duration>,
}

/// Use of a session's standalone stream.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    /// Faults of its connections.
    pub(crate) faults: Vec<Fault>,
    /// Events that the server sends.
    pub(crate) script: Script,
    /// Probability, in per cent, that the client reconnects without its last event ID.
    pub(crate) forgets: usize,
    pub(crate) lasts: Duration,
    pub(crate) answers_after: Duration,
}

/// One call: what the upstream does and what the client does.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) starts: Duration,
    pub(crate) script: Script,
    /// Faults of its connections, in order; later connections are sound.
    pub(crate) faults: Vec<Fault>,
    /// Number of reconnects without an event in between.
    pub(crate) tries: usize,
    /// Delay of a reconnect, in thousandths of the `retry` received.
    pub(crate) haste: u32,
    /// True if the client sends the POST again when it has no event ID.
    pub(crate) reposts: bool,
    /// Probability, in per cent, that the client resumes from an id before its last.
    pub(crate) forgets: usize,
    /// True if the client reads on after the response, until the proxy says that there is no more.
    pub(crate) thorough: bool,
    /// True if the client reuses its connection.
    pub(crate) keeps_connection: bool,
    /// Time after which the client cancels the call.
    pub(crate) cancels: Option<Duration>,
    /// Time after which the client gives up. Always set if the call may never end.
    pub(crate) patience: Option<Duration>,
    /// Pauses after which the client resumes the finished stream.
    pub(crate) revisits: Vec<Duration>,
    /// Another client tries its event ID.
    pub(crate) is_spied_on: bool,
    /// True if the client accepts no event stream.
    pub(crate) json_only: bool,
    /// True if the call has an `Idempotency-Key`.
    pub(crate) has_key: bool,
    pub(crate) answers_after: Duration,
    pub(crate) answers_twice: bool,
}

/// Fault of one connection of a client.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    None,
    /// Gone after so many bytes of the request.
    CutRequest(usize),
    /// Gone after so many bytes of the response.
    Cut(usize),
    /// Gone after so many events, in the moment the last was complete.
    CutAfterEvents(usize),
    /// Nothing is read after so many bytes; the pipe stays for so long and is read to its end then.
    Hang(usize, Duration),
    /// Reads of so many bytes, with a pause after each.
    Slow(usize, Duration),
}

/// Behaviour of the upstream in a call.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) before_head: Duration,
    pub(crate) form: Form,
    /// Events are written in pieces of at most this many bytes.
    pub(crate) piece: usize,
    pub(crate) between_pieces: Duration,
    /// Events carry ids of the upstream's own.
    pub(crate) has_ids: bool,
    /// The requests in the POST: more than one are a batch.
    pub(crate) requests: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// A JSON answer with so many bytes to spare.
    Json(usize),
    /// An HTTP status, with a JSON-RPC error in the body or with text.
    Status(u16, bool),
    /// The connection ends before a head.
    Dies,
    Stream(Vec<Step>, Ending),
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An event with so many bytes to spare.
    Event(Duration, usize),
    /// A question; the upstream waits for the answer.
    Ask(Duration),
    /// The response ends on purpose; the rest is had by a GET with the last id.
    Leave(Duration),
    /// The answers to these requests of the call, in one event.
    Answer(Duration, Vec<usize>),
}

/// End of the upstream's response after its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    End,
    /// In the middle of an event.
    Cut,
    /// Not at all.
    Stall,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let config = config(rng);
        let mut clients: Vec<Client> = (0..1 + rng.below(3)).map(|_| client(rng, &config)).collect();
        let jumps: Vec<_> = match rng.percent(20) {
            true => (0..1 + rng.below(2)).map(|_| (rng.millis(20_000), rng.millis(30_000))).collect(),
            false => Vec::new(),
        };
        // A session's own stream that is given up while the clock jumps begins anew: the model does
        // not follow it there.
        if !jumps.is_empty() && config.streams.max_wait.is_some_and(|wait| wait < Duration::from_secs(100)) {
            clients.iter_mut().for_each(|client| client.listens = None);
        }
        let pipes = (rng.pick(&[64, 1024, 65_536, 65_536]), rng.pick(&[256, 65_536, 65_536]));
        let refuses = rng.percent(15).then(|| {
            let from = rng.millis(5000);
            (from, from + rng.millis(6000))
        });
        let (restarts, drains, delays) = (Vec::new(), None, vec![Duration::ZERO]);
        let mut plan = Self { seed, config, clients, jumps, restarts, drains, delays, refuses, pipes };
        // Drawn apart, so that all other draws of a seed stay.
        let rng = &mut Rng::new(seed ^ 0x5e55_1045);
        if rng.percent(25) && !plan.is_tight() {
            plan.draw_restarts(rng);
        }
        plan
    }

    /// Draws a server that forgets its sessions.
    fn draw_restarts(&mut self, rng: &mut Rng) {
        // A handshake ends with its time, and a clock that jumps ends it.
        self.jumps.clear();
        self.refuses = None;
        // Each session may be opened again three times a minute.
        self.restarts = (0..1 + rng.below(2)).map(|_| Duration::from_millis(200) + rng.millis(6000)).collect();
        self.restarts.sort_unstable();
        let delays = [Duration::ZERO, Duration::from_millis(3), Duration::from_millis(40), Duration::from_millis(700)];
        self.delays = (0..1 + rng.below(4)).map(|_| rng.pick(&delays)).collect();
        let is_late = |rng: &mut Rng| rng.percent(50);
        for client in &mut self.clients {
            for call in &mut client.calls {
                // A second answer may come when the ID of its question is in use again.
                call.answers_twice = false;
                if is_late(rng) {
                    call.answers_after = rng.millis(8000);
                }
                if is_late(rng) {
                    call.starts += rng.millis(8000);
                }
                if let Form::Stream(steps, _) = &mut call.script.form
                    && client.version != "2026-07-28"
                {
                    // The first question of each session has the same ID.
                    steps.insert(0, Step::Ask(rng.millis(300)));
                }
            }
            let Some(listening) = &mut client.listens else { continue };
            listening.answers_after = if is_late(rng) { rng.millis(8000) } else { Duration::ZERO };
            let Form::Stream(steps, _) = &mut listening.script.form else { continue };
            for _ in 0..rng.below(4) {
                steps.insert(rng.below(steps.len() + 1), Step::Ask(rng.millis(2000)));
            }
        }
        for client in self.clients.iter_mut().filter(|client| client.version != "2026-07-28") {
            // While the session is opened again, if a call comes by then.
            client.ends = rng.percent(30).then(|| rng.pick(&self.restarts) + rng.millis(1500));
        }
        if rng.percent(30) {
            self.drains = Some(rng.pick(&self.restarts) + rng.millis(1500));
            self.config.replica.drain_delay = Some(Duration::ZERO);
            self.config.replica.drain_timeout = Duration::from_secs(100);
        }
    }

    /// Returns true if the upstream may fail a request before it has begun to answer.
    pub(crate) fn may_be_down(&self) -> bool {
        self.refuses.is_some() || !self.restarts.is_empty()
    }

    /// Returns the time at which the proxy ends the calls that still run.
    pub(crate) fn drained(&self) -> Option<Duration> {
        Some(self.drains? + self.config.replica.drain_timeout)
    }

    /// Bounds so small that a call may be held up or lose what was written.
    pub(crate) fn is_tight(&self) -> bool {
        is_tight(&self.config)
    }

    pub(crate) fn is_short_of_bytes(&self) -> bool {
        is_short_of_bytes(&self.config)
    }
}

impl Listening {
    /// Returns the behaviour of the client, as for a call that is never answered.
    pub(crate) fn as_call(&self) -> Call {
        Call {
            starts: Duration::ZERO,
            script: self.script.clone(),
            faults: self.faults.clone(),
            tries: 1000,
            haste: 1000,
            reposts: false,
            forgets: self.forgets,
            thorough: true,
            keeps_connection: false,
            cancels: None,
            patience: None,
            revisits: Vec::new(),
            is_spied_on: false,
            json_only: false,
            has_key: false,
            answers_after: self.answers_after,
            answers_twice: false,
        }
    }
}

impl Script {
    /// Returns true if every request is answered.
    pub(crate) fn has_answer(&self) -> bool {
        match &self.form {
            Form::Json(_) | Form::Status(_, true) => true,
            Form::Status(_, false) | Form::Dies => false,
            Form::Stream(steps, _) => {
                let answered = steps.iter().map(|step| match step {
                    Step::Answer(_, requests) => requests.len(),
                    Step::Event(..) | Step::Ask(_) | Step::Leave(_) => 0,
                });
                answered.sum::<usize>() == self.requests
            }
        }
    }
}

fn is_tight(config: &Config) -> bool {
    config.streams.max_events < 100 || is_short_of_bytes(config)
}

fn is_short_of_bytes(config: &Config) -> bool {
    config.streams.max_bytes < 100 * 1024
}

fn config(rng: &mut Rng) -> Config {
    let mut config = Config::for_upstream("http://upstream.test:9/mcp").expect("a usable URL");
    config.replica.name = Some("simulated".to_owned());
    let secs = Duration::from_secs;
    let delivery = &mut config.delivery;
    delivery.prime = rng.pick(&[Prime::All, Prime::All, Prime::All, Prime::Since20251125]);
    delivery.commit_after = rng.pick(&[None, Some(Duration::from_millis(10)), Some(Duration::from_millis(500))]);
    delivery.retry = Duration::from_millis(rng.pick(&[50, 1000, 1000]));
    delivery.heartbeat = secs(rng.pick(&[1, 15]));
    delivery.retry_long = delivery.retry * 5;
    delivery.max_connection = rng.pick(&[None, None, Some(secs(1)), Some(secs(5))]);
    delivery.mode = rng.pick(&[Mode::Stream, Mode::Stream, Mode::Stream, Mode::Poll]);
    delivery.poll_retry = Duration::from_millis(rng.pick(&[200, 5000]));
    let streams = &mut config.streams;
    streams.max_wait = rng.pick(&[Some(secs(8)), Some(secs(600)), Some(secs(600)), None]);
    streams.retention = rng.pick(&[secs(20), secs(600)]).max(streams.max_wait.unwrap_or_default());
    streams.call_timeout = rng.pick(&[None, None, None, Some(secs(30))]);
    streams.linger = Duration::from_millis(rng.pick(&[0, 100, 1000]));
    streams.full_wait = secs(rng.pick(&[2, 30]));
    if rng.percent(15) {
        streams.max_events = 2 + rng.below(5);
    }
    if rng.percent(12) {
        // An event always fits.
        streams.max_event_bytes = 8 * 1024;
        streams.max_bytes = rng.pick(&[8, 12, 20]) * 1024;
    }
    config
}

fn client(rng: &mut Rng, config: &Config) -> Client {
    let version = rng.pick(&["2025-03-26", "2025-06-18", "2025-11-25", "2025-11-25", "2025-11-25", "2026-07-28"]);
    let calls = (0..1 + rng.below(3)).map(|_| call(rng, config, version)).collect();
    let listens = (version != "2026-07-28" && rng.percent(35)).then(|| listening(rng));
    let deletes = rng.percent(30) || (listens.is_some() && config.streams.max_wait.is_none());
    Client { version, calls, opens_by_stream: rng.percent(30), listens, deletes, ends: None }
}

fn listening(rng: &mut Rng) -> Listening {
    let mut steps = Vec::new();
    for _ in 0..rng.below(12) {
        steps.push(Step::Event(rng.millis(2000), rng.pick(&[0, 0, 500])));
        if rng.percent(15) {
            steps.push(Step::Leave(rng.millis(500)));
        }
    }
    Listening {
        faults: (0..rng.below(5)).map(|_| fault(rng, 1500)).collect(),
        script: Script {
            before_head: rng.pick(&[Duration::ZERO, Duration::from_secs(1)]),
            form: Form::Stream(steps, Ending::Stall),
            piece: rng.pick(&[30, 100_000]),
            between_pieces: Duration::ZERO,
            has_ids: rng.percent(50),
            requests: 0,
        },
        forgets: rng.pick(&[0, 30]),
        lasts: Duration::from_secs(5) + rng.millis(20_000),
        answers_after: Duration::ZERO,
    }
}

fn call(rng: &mut Rng, config: &Config, version: &str) -> Call {
    let is_modern = version == "2026-07-28";
    // Only the first revision has batches.
    let requests = if version == "2025-03-26" && rng.percent(50) { 2 + rng.below(3) } else { 1 };
    let script = script(rng, is_modern, requests, is_tight(config));
    let is_endless = match &script.form {
        Form::Stream(_, Ending::Stall) => true,
        Form::Stream(steps, _) => steps.iter().any(|step| matches!(step, Step::Ask(_))),
        Form::Json(_) | Form::Status(..) | Form::Dies => false,
    };
    let cancels = (!is_modern && requests == 1 && rng.percent(10)).then(|| rng.millis(4000));
    let gives_up = (is_endless && !script.has_answer()) || rng.percent(5);
    let length = 700 + 160 * steps(&script);
    let has_key = rng.percent(12);
    Call {
        starts: rng.millis(1500),
        faults: (0..rng.below(5)).map(|_| fault(rng, length)).collect(),
        tries: rng.pick(&[3, 1000, 1000, 1000]),
        haste: match is_tight(config) {
            // Long enough for the upstream to be kept waiting in vain.
            true => rng.pick(&[0, 1000, 4000, 7000]),
            false => rng.pick(&[0, 500, 1000, 1000, 1500]),
        },
        reposts: (!is_modern || has_key) && rng.percent(80),
        forgets: rng.pick(&[0, 0, 30]),
        thorough: rng.percent(50),
        keeps_connection: rng.percent(40),
        cancels,
        patience: gives_up.then(|| Duration::from_secs(3) + rng.millis(20_000)),
        revisits: match rng.percent(30) {
            true => (0..1 + rng.below(3))
                .map(|_| config.streams.retention.mul_f64(rng.pick(&[0.4, 0.7, 0.9, 1.5])))
                .collect(),
            false => Vec::new(),
        },
        is_spied_on: rng.percent(20),
        json_only: requests == 1 && rng.percent(8),
        has_key,
        answers_after: rng.millis(300),
        answers_twice: rng.percent(30),
        script,
    }
}

fn steps(script: &Script) -> usize {
    match &script.form {
        Form::Stream(steps, _) => steps.len(),
        Form::Json(_) | Form::Status(..) | Form::Dies => 0,
    }
}

fn fault(rng: &mut Rng, length: usize) -> Fault {
    match rng.below(12) {
        0 => Fault::None,
        1 => Fault::CutRequest(rng.below(600)),
        2..=5 => Fault::Cut(rng.below(length)),
        6 | 7 => Fault::CutAfterEvents(1 + rng.below(4)),
        8 | 9 => Fault::Hang(rng.below(length), Duration::from_millis(100) + rng.millis(6000)),
        _ => Fault::Slow(rng.pick(&[1, 7, 100]), rng.millis(20)),
    }
}

fn script(rng: &mut Rng, is_modern: bool, requests: usize, fills_bounds: bool) -> Script {
    let form = match rng.below(20) {
        0 | 1 => Form::Json(rng.pick(&[0, 10, 5000])),
        2 => Form::Status(rng.pick(&[400, 401, 404, 500, 503]), rng.percent(50)),
        3 => Form::Dies,
        _ => stream(rng, is_modern, requests, fills_bounds),
    };
    Script {
        before_head: rng.pick(&[
            Duration::ZERO,
            Duration::ZERO,
            Duration::from_millis(5),
            Duration::from_millis(700),
            Duration::from_secs(3),
        ]),
        has_ids: matches!(&form, Form::Stream(steps, _) if steps.iter().any(|step| matches!(step, Step::Leave(_))))
            || rng.percent(20),
        form,
        requests,
        piece: if fills_bounds { 1000 } else { rng.pick(&[1, 30, 1000, 100_000, 100_000]) },
        between_pieces: rng.pick(&[Duration::ZERO, Duration::ZERO, Duration::from_millis(1)]),
    }
}

/// The requests, in any order and as they are answered together.
fn answers(rng: &mut Rng, requests: usize) -> Vec<Vec<usize>> {
    let mut answers: Vec<Vec<usize>> = Vec::new();
    for request in 0..requests {
        match answers.last_mut() {
            Some(together) if rng.percent(25) => together.push(request),
            _ => answers.insert(rng.below(answers.len() + 1), vec![request]),
        }
    }
    answers
}

fn stream(rng: &mut Rng, is_modern: bool, requests: usize, fills_bounds: bool) -> Form {
    let pause = |rng: &mut Rng| {
        rng.pick(&[Duration::ZERO, Duration::from_millis(20), Duration::from_millis(400), Duration::from_millis(2500)])
    };
    let (events, sizes) = match fills_bounds {
        true => (5 + rng.below(8), [40, 3000, 3000, 3000]),
        false => (rng.below(10), [0, 0, 40, 3000]),
    };
    let mut steps: Vec<Step> = (0..events).map(|_| Step::Event(pause(rng), rng.pick(&sizes))).collect();
    let mut answers = answers(rng, requests);
    let last = answers.pop().unwrap_or_default();
    for answer in answers {
        steps.insert(rng.below(steps.len() + 1), Step::Answer(pause(rng), answer));
    }
    if !is_modern && rng.percent(25) {
        steps.insert(rng.below(steps.len() + 1), Step::Ask(pause(rng)));
    }
    if !steps.is_empty() && rng.percent(15) {
        steps.insert(1 + rng.below(steps.len()), Step::Leave(pause(rng)));
    }
    let ending = rng.pick(&[Ending::End, Ending::End, Ending::End, Ending::End, Ending::Cut, Ending::Stall]);
    let is_answered = match ending {
        Ending::End => rng.percent(92),
        Ending::Cut | Ending::Stall => rng.percent(30),
    };
    if is_answered {
        steps.push(Step::Answer(pause(rng), last));
        if rng.percent(15) {
            steps.push(Step::Event(pause(rng), 0));
        }
    }
    Form::Stream(steps, ending)
}
