//! Every metric, registered once and passed down.
//!
//! Call sites speak in verbs; labels are words of fixed sets, never anything a client sent.

mod process;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use process::Process;

use crate::clock;
use crate::log;
use crate::protocol::error::{self, ErrorCode};
use crate::protocol::stream::Outcome;
use crate::sync;
use crate::tls::{Reload, Side};

/// Outcome of a probe of a token, as `token_probes_total` has it.
#[derive(Clone, Copy, Debug)]
pub enum TokenProbe {
    /// The token is good, and the upstream refuses a forged one.
    Genuine,
    /// The upstream takes any token.
    Foreign,
    /// The upstream's response proves nothing.
    Inconclusive,
    /// The upstream refuses the token.
    Refused,
    /// The upstream did not answer in time, or failed.
    Unknown,
}

/// The pause between log lines of refusals that anybody can cause.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(10);

/// All counters of one process.
pub struct Metrics {
    registry: Registry,
    process: Process,
    /// When a refusal was logged last.
    refusal_logged: Mutex<Option<Instant>>,
    ready: IntGauge,
    streams_sealed: IntCounterVec,
    detached_seals: IntCounter,
    abandoned: IntCounter,
    unprotected: IntCounter,
    streams_open: IntGauge,
    attached: IntGauge,
    events_in: IntCounter,
    bytes_in: IntCounter,
    events_out: IntCounter,
    bytes_out: IntCounter,
    resumes: IntCounterVec,
    retries: IntCounter,
    takeovers: IntCounter,
    gaps: IntCounter,
    commits: IntCounter,
    rejects: IntCounterVec,
    upstream_failures: IntCounterVec,
    upstream_head_seconds: Histogram,
    live_event_seconds: Histogram,
    answers_held: IntCounter,
    answers_repeated: IntCounter,
    notifications_withheld: IntCounter,
    disconnects: IntCounterVec,
    connections: IntGauge,
    token_probes: IntCounterVec,
    streams_kept: IntGauge,
    calls_detached: IntGauge,
    held_bytes: IntGauge,
    evictions: IntCounter,
    trimmed: IntCounter,
    pauses: IntCounter,
    resumes_delayed: IntCounter,
    reloads: IntCounterVec,
    sessions_kept: IntGauge,
    session_evictions: IntCounter,
    store_append_seconds: Histogram,
    store_failures: IntCounterVec,
    store_ready: IntGauge,
    upstream_ready: IntGauge,
    streams_adopted: IntCounter,
    streams_fenced: IntCounter,
    streams_restored: IntCounter,
}

/// By what a client comes back to a stream.
#[derive(Clone, Copy, Debug)]
pub enum Dialect {
    /// The header of the specification.
    LastEventId,
    /// The methods of SEP-975.
    ResumableRequests,
    /// The methods of #899.
    ResumableStreams,
    /// The same call with the token of #1003.
    ResumeTokens,
    /// The URL of SEP-1335.
    StreamUrl,
}

impl Dialect {
    /// The way in a word, for metrics and log.
    pub fn label(self) -> &'static str {
        match self {
            Self::LastEventId => "last_event_id",
            Self::ResumableRequests => "resumable_requests",
            Self::ResumableStreams => "resumable_streams",
            Self::ResumeTokens => "resume_tokens",
            Self::StreamUrl => "stream_url",
        }
    }
}

/// How a resume was answered.
#[derive(Clone, Copy, Debug)]
pub enum Resumed {
    /// With the rest of the stream.
    Served,
    /// There was no more: 204.
    AtEnd,
    /// The stream or the place in it is gone.
    Lost,
}

/// Why a store could not take a write.
#[derive(Clone, Copy, Debug)]
pub enum StoreTrouble {
    /// It has no room.
    Full,
    /// It cannot be reached, or fails.
    Unreachable,
}

/// What a client left behind when its connection ended before its response did.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// A stream it can come back to: an id was written.
    Resumable,
    /// Nothing to come back with: its SDK cannot resume this one by its own rules.
    Unresumable,
}

impl Metrics {
    /// A registry with everything at zero.
    ///
    /// # Errors
    /// When two metrics have one name, which a test would show.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("mcp_resume".into()), None)?;
        registry.register(Box::new(log::dropped()))?;
        let add = Registrar(&registry);
        add.info("build_info", "Which version runs: always 1.", "version", env!("CARGO_PKG_VERSION"))?;
        let every_code: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.label()).collect();
        let is_upstreams = |code: &&ErrorCode| code.side() == error::Side::Upstream;
        let upstream_codes: Vec<&str> = ErrorCode::ALL.iter().filter(is_upstreams).map(|code| code.label()).collect();
        Ok(Self {
            process: Process::new()?,
            refusal_logged: Mutex::default(),
            ready: add.gauge("ready", "Whether new calls are taken, as /readyz says: 1 or 0.")?,
            streams_sealed: add.family(
                "streams_sealed_total",
                "Calls with a stream that ended, by outcome.",
                ("outcome", &["completed", "failed", "cancelled", "expired"]),
            )?,
            detached_seals: add.counter(
                "streams_sealed_detached_total",
                "Calls with a stream that ended while no client was there.",
            )?,
            abandoned: add.counter("calls_abandoned_total", "Calls that ended because nobody came back in time.")?,
            streams_open: add.gauge("streams_open", "Streams whose upstream call runs.")?,
            attached: add.gauge("streams_attached", "Streams that a connection reads.")?,
            events_in: add.counter("upstream_events_total", "Events read from the upstream.")?,
            bytes_in: add.counter("upstream_event_bytes_total", "Bytes of their data.")?,
            events_out: add
                .counter("delivered_events_total", "Events written downstream, again or for the first time.")?,
            bytes_out: add
                .counter("delivered_bytes_total", "Bytes of stream written downstream, heartbeats included.")?,
            resumes: add.families(
                "resumes_total",
                "Requests that came back to a stream, by what they named it by and by outcome.",
                [("dialect", &DIALECTS), ("outcome", &["served", "at_end", "lost"])],
            )?,
            unprotected: add.counter(
                "unprotected_requests_total",
                "Requests of MCP on other paths than the endpoint, which pass without protection.",
            )?,
            retries: add.counter("retries_total", "POSTs that were recognised as the retry of a call.")?,
            takeovers: add.counter("takeovers_total", "Connections whose stream a newer one took over.")?,
            gaps: add.counter("gaps_total", "Readers that were told of events they can no longer have.")?,
            commits: add.counter("commits_total", "Responses that the proxy began before the upstream did.")?,
            rejects: add.family(
                "rejects_total",
                "Requests the proxy refused or failed, by reason.",
                ("reason", &every_code),
            )?,
            upstream_failures: add.family(
                "upstream_failures_total",
                "Upstream calls that failed, by reason.",
                ("reason", &upstream_codes),
            )?,
            upstream_head_seconds: add.histogram(
                "upstream_head_seconds",
                "From a call's begin to the head of its answer.",
                // From a local JSON answer to a call that a load balancer would have cut.
                vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0],
            )?,
            live_event_seconds: add.histogram(
                "live_event_seconds",
                "From storing an event to writing it to the client that waits for it.",
                // From an idle machine to one where clients notice.
                vec![0.000_05, 0.000_2, 0.001, 0.005, 0.02, 0.1, 0.5],
            )?,
            answers_held: add
                .counter("answers_held_total", "Client answers held until the upstream could take them.")?,
            answers_repeated: add
                .counter("answers_repeated_total", "Client answers dropped because one was given before.")?,
            notifications_withheld: add
                .counter("notifications_withheld_total", "Events of calls whose client takes JSON only.")?,
            disconnects: add.family(
                "disconnects_total",
                "Clients that left before their response ended, by whether they can come back.",
                ("can_resume", &["yes", "no"]),
            )?,
            connections: add.gauge("connections", "Downstream connections.")?,
            token_probes: add.family(
                "token_probes_total",
                "Questions to the upstream whether a refreshed token is its caller's, by outcome.",
                ("outcome", &["genuine", "foreign", "inconclusive", "refused", "unknown"]),
            )?,
            streams_kept: add.gauge("streams_kept", "Streams, running and over.")?,
            calls_detached: add.gauge("calls_detached", "Calls that run while no client is there.")?,
            held_bytes: add.gauge("held_bytes", "Bytes held for clients: requests, events and answers.")?,
            evictions: add
                .counter("evicted_streams_total", "Streams that had arrived and were forgotten early, to make room.")?,
            trimmed: add.counter("trimmed_events_total", "Events dropped from the front of a stream, to make room.")?,
            pauses: add.counter("upstream_pauses_total", "Streams that kept their upstream waiting for room.")?,
            resumes_delayed: add.counter("resumes_delayed_total", "Resumes that waited because others came before.")?,
            reloads: add.families(
                "certificate_reloads_total",
                "Times that the files of TLS had changed, by whose they are and whether they could be used.",
                [("of", &["listener", "upstream"]), ("outcome", &["taken", "refused"])],
            )?,
            sessions_kept: add.gauge("sessions_kept", "Records of sessions.")?,
            session_evictions: add
                .counter("evicted_sessions_total", "Records of sessions that were forgotten early, to make room.")?,
            store_append_seconds: add.histogram(
                "store_append_seconds",
                "What the store adds to a batch of events: until they may be read.",
                // From a store on the same machine to one that is about to be given up.
                vec![0.000_2, 0.001, 0.003, 0.01, 0.03, 0.1, 0.5, 2.0],
            )?,
            store_failures: add.family(
                "store_failures_total",
                "Writes that the store could not take when they came, by reason.",
                ("reason", &["full", "unreachable"]),
            )?,
            store_ready: add.gauge("store_ready", "Whether the store takes what is new: 1 or 0.")?,
            upstream_ready: add.gauge("upstream_ready", "Whether the upstream accepts connections: 1 or 0.")?,
            streams_adopted: add.counter("streams_adopted_total", "Streams of a writer that is gone, ended here.")?,
            streams_fenced: add.counter("streams_fenced_total", "Streams that another replica took from this one.")?,
            streams_restored: add.counter("streams_restored_total", "Streams taken out of the store for a client.")?,
            registry,
        })
    }

    /// The page that Prometheus reads.
    pub fn render(&self) -> Vec<u8> {
        let mut page = Vec::new();
        // Writing to memory does not fail, and every family was registered with its name and help.
        for families in [self.registry.gather(), self.process.gather()] {
            let _ = TextEncoder::new().encode(&families, &mut page);
        }
        page
    }

    /// Whether new calls are taken.
    pub fn observe_ready(&self, is_ready: bool) {
        self.ready.set(i64::from(is_ready));
    }

    /// Whether another refusal for a host or an origin may be logged: anybody can cause them, so it is one in ten seconds.
    pub fn may_log_refusal(&self) -> bool {
        let now = clock::now();
        let mut last = sync::lock(&self.refusal_logged);
        let may = last.is_none_or(|last| now.saturating_duration_since(last) >= REFUSAL_LOG_PAUSE);
        if may {
            *last = Some(now);
        }
        may
    }

    /// A call began.
    pub fn observe_call(&self) {
        self.streams_open.inc();
    }

    /// Its upstream call is over, whatever came of it.
    pub fn observe_call_end(&self) {
        self.streams_open.dec();
    }

    /// Calls that are under way.
    pub fn open_calls(&self) -> i64 {
        self.streams_open.get()
    }

    /// A stream was sealed, with or without a client there.
    pub fn observe_seal(&self, outcome: Outcome, attached: bool) {
        self.streams_sealed.with_label_values(&[outcome.label()]).inc();
        if !attached {
            self.detached_seals.inc();
        }
    }

    /// Nobody came back in time.
    pub fn observe_abandoned(&self) {
        self.abandoned.inc();
    }

    /// A request of MCP passed without protection.
    pub fn observe_unprotected(&self) {
        self.unprotected.inc();
    }

    /// Events were read from the upstream.
    pub fn observe_upstream_events(&self, events: usize, bytes: usize) {
        self.events_in.inc_by(events as u64);
        self.bytes_in.inc_by(bytes as u64);
    }

    /// The head of an answer came.
    pub fn observe_upstream_head(&self, after: std::time::Duration) {
        self.upstream_head_seconds.observe(after.as_secs_f64());
    }

    /// Events were written to a client that waited for them, so long after the first was stored.
    pub fn observe_live_event(&self, after: std::time::Duration) {
        self.live_event_seconds.observe(after.as_secs_f64());
    }

    /// An upstream call failed.
    pub fn observe_upstream_failure(&self, code: ErrorCode) {
        self.upstream_failures.with_label_values(&[code.label()]).inc();
    }

    /// A piece of a stream was written, with this many events in it: none in a heartbeat, many in a replay.
    pub fn observe_delivery(&self, events: u64, bytes: usize) {
        self.events_out.inc_by(events);
        self.bytes_out.inc_by(bytes as u64);
    }

    /// A connection began to read a stream.
    pub fn observe_attach(&self) {
        self.attached.inc();
    }

    /// It ended.
    pub fn observe_detach(&self) {
        self.attached.dec();
    }

    /// A client came back to a stream.
    pub fn observe_resume(&self, dialect: Dialect, outcome: Resumed) {
        let outcome = match outcome {
            Resumed::Served => "served",
            Resumed::AtEnd => "at_end",
            Resumed::Lost => "lost",
        };
        self.resumes.with_label_values(&[dialect.label(), outcome]).inc();
    }

    /// A client left early.
    pub fn observe_disconnect(&self, left: Left) {
        let can_resume = match left {
            Left::Resumable => "yes",
            Left::Unresumable => "no",
        };
        self.disconnects.with_label_values(&[can_resume]).inc();
    }

    /// A POST was the retry of a call.
    pub fn observe_retry(&self) {
        self.retries.inc();
    }

    /// A connection was taken over.
    pub fn observe_takeover(&self) {
        self.takeovers.inc();
    }

    /// A reader was told of a gap.
    pub fn observe_gap(&self) {
        self.gaps.inc();
    }

    /// The proxy committed a response.
    pub fn observe_commit(&self) {
        self.commits.inc();
    }

    /// A request was refused or failed.
    pub fn observe_reject(&self, code: ErrorCode) {
        self.rejects.with_label_values(&[code.label()]).inc();
    }

    /// An answer is held.
    pub fn observe_held_answer(&self) {
        self.answers_held.inc();
    }

    /// An answer was given before.
    pub fn observe_repeated_answer(&self) {
        self.answers_repeated.inc();
    }

    /// A call whose client takes JSON only had this many other events.
    pub fn observe_withheld(&self, events: u64) {
        self.notifications_withheld.inc_by(events);
    }

    /// Counts a probe of a token by its outcome.
    pub fn observe_probe(&self, outcome: TokenProbe) {
        let outcome = match outcome {
            TokenProbe::Genuine => "genuine",
            TokenProbe::Foreign => "foreign",
            TokenProbe::Inconclusive => "inconclusive",
            TokenProbe::Refused => "refused",
            TokenProbe::Unknown => "unknown",
        };
        self.token_probes.with_label_values(&[outcome]).inc();
    }

    /// A stream is there.
    pub fn observe_stream(&self) {
        self.streams_kept.inc();
    }

    /// It is gone.
    pub fn observe_stream_end(&self) {
        self.streams_kept.dec();
    }

    /// The client of a call that runs has left; or it is back, or the call is over.
    pub fn observe_detached(&self, detached: bool) {
        self.calls_detached.add(if detached { 1 } else { -1 });
    }

    /// More is held for clients.
    pub fn observe_held(&self, bytes: usize) {
        self.held_bytes.add(bytes as i64);
    }

    /// Less is.
    pub fn observe_released(&self, bytes: usize) {
        self.held_bytes.sub(bytes as i64);
    }

    /// What is held for all clients together.
    pub fn held_bytes(&self) -> usize {
        usize::try_from(self.held_bytes.get()).unwrap_or(0)
    }

    /// A stream that had arrived was forgotten early.
    pub fn observe_eviction(&self) {
        self.evictions.inc();
    }

    /// A stream dropped events from its front.
    pub fn observe_trimmed(&self, events: u64) {
        self.trimmed.inc_by(events);
    }

    /// A stream keeps its upstream waiting.
    pub fn observe_pause(&self) {
        self.pauses.inc();
    }

    /// A resume has to wait.
    pub fn observe_delayed_resume(&self) {
        self.resumes_delayed.inc();
    }

    /// The files of TLS were looked at.
    pub fn observe_reload(&self, side: Side, reload: Reload) {
        if let Some(outcome) = reload.outcome() {
            self.reloads.with_label_values(&[side.as_str(), outcome]).inc();
        }
    }

    /// A session is recorded.
    pub fn observe_session(&self) {
        self.sessions_kept.inc();
    }

    /// Its record is gone.
    pub fn observe_session_end(&self) {
        self.sessions_kept.dec();
    }

    /// A session that was opened elsewhere was forgotten early.
    pub fn observe_session_eviction(&self) {
        self.session_evictions.inc();
    }

    /// The store took a batch.
    pub fn observe_store_append(&self, took: Duration) {
        self.store_append_seconds.observe(took.as_secs_f64());
    }

    /// Counts a write that the store could not take.
    pub fn observe_store_failure(&self, trouble: StoreTrouble) {
        let reason = match trouble {
            StoreTrouble::Full => "full",
            StoreTrouble::Unreachable => "unreachable",
        };
        self.store_failures.with_label_values(&[reason]).inc();
    }

    /// Whether it takes what is new.
    pub fn observe_store(&self, is_ready: bool) {
        self.store_ready.set(i64::from(is_ready));
    }

    /// Sets whether the upstream accepts connections.
    pub fn observe_upstream(&self, accepts: bool) {
        self.upstream_ready.set(i64::from(accepts));
    }

    /// A stream of a writer that is gone was ended.
    pub fn observe_adopted(&self) {
        self.streams_adopted.inc();
    }

    /// Another replica has a stream that was written here.
    pub fn observe_fenced(&self) {
        self.streams_fenced.inc();
    }

    /// A stream was taken out of the store.
    pub fn observe_restored(&self) {
        self.streams_restored.inc();
    }

    /// A downstream connection was accepted.
    pub fn observe_connection(&self) {
        self.connections.inc();
    }

    /// It ended.
    pub fn observe_connection_end(&self) {
        self.connections.dec();
    }
}

struct Registrar<'a>(&'a Registry);

/// A label and every word that it may have.
type Label<'a> = (&'a str, &'a [&'a str]);

/// The words of [`Dialect`].
const DIALECTS: [&str; 5] = ["last_event_id", "resumable_requests", "resumable_streams", "resume_tokens", "stream_url"];

impl Registrar<'_> {
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    /// A counter for each word that the label may have, from zero: the first rise of each is one.
    fn family(&self, name: &str, help: &str, label: Label<'_>) -> Result<IntCounterVec, prometheus::Error> {
        let (label, words) = label;
        let family = IntCounterVec::new(Opts::new(name, help), &[label])?;
        self.0.register(Box::new(family.clone()))?;
        words.iter().for_each(|word| drop(family.with_label_values(&[word])));
        Ok(family)
    }

    /// The same by two labels, for each pair of their words.
    fn families(&self, name: &str, help: &str, labels: [Label<'_>; 2]) -> Result<IntCounterVec, prometheus::Error> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels.map(|(label, _)| label))?;
        self.0.register(Box::new(family.clone()))?;
        let [(_, outer), (_, inner)] = labels;
        for one in outer {
            inner.iter().for_each(|other| drop(family.with_label_values(&[one, other])));
        }
        Ok(family)
    }

    /// A gauge that is always 1 and says something by its label.
    fn info(&self, name: &str, help: &str, label: &str, value: &str) -> Result<(), prometheus::Error> {
        let family = IntGaugeVec::new(Opts::new(name, help), &[label])?;
        self.0.register(Box::new(family.clone()))?;
        family.with_label_values(&[value]).set(1);
        Ok(())
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Result<Histogram, prometheus::Error> {
        let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}
