//! Metrics of requests from clients.

use std::sync::Arc;

use prometheus::IntCounterVec;

use crate::metrics::{Counter, Error, Errors, Registrar, Repairs};
use crate::{delivery, event_log, server, upstream};

/// Metrics of the ingress, and of the components below it.
pub struct Metrics {
    /// Errors by code.
    pub errors: Arc<Errors>,
    /// Repairs of the server's messages.
    pub repairs: Arc<Repairs>,
    /// Metrics of the event log.
    pub event_log: Arc<event_log::Metrics>,
    /// Metrics of upstream calls.
    pub upstream: Arc<upstream::Metrics>,
    /// Metrics of delivery.
    pub delivery: Arc<delivery::Metrics>,
    /// Metrics of the HTTP servers.
    pub server: Arc<server::Metrics>,
    resumes: IntCounterVec,
    resumes_delayed: Counter,
    retries: Counter,
    commits: Counter,
    unprotected: Counter,
    responses_held: Counter,
    responses_repeated: Counter,
    notifications_withheld: Counter,
}

/// Means of a resume.
#[derive(Clone, Copy, Debug)]
pub enum ResumeMeans {
    /// The header of the specification.
    LastEventId,
    /// The methods of SEP-975.
    ResumableRequests,
    /// The methods of #899.
    ResumableStreams,
    /// A repeated call with the token of #1003.
    ResumeTokens,
    /// The URL of SEP-1335.
    StreamUrl,
}

/// Outcome of a resume.
#[derive(Clone, Copy, Debug)]
pub enum Resumed {
    /// The rest of the stream was served.
    Served,
    /// There were no more events: 204.
    AtEnd,
    /// The stream, or the place in it, is gone.
    Lost,
}

impl ResumeMeans {
    /// Every label.
    const LABELS: [&'static str; 5] =
        ["last_event_id", "resumable_requests", "resumable_streams", "resume_tokens", "stream_url"];

    /// Returns the label, for metrics and log.
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

impl Metrics {
    /// Registers the metrics of the ingress and of the components below it.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        let errors = Arc::new(Errors::new(registrar)?);
        let repairs = Arc::new(Repairs::new(registrar)?);
        let event_log = Arc::new(event_log::Metrics::new(registrar)?);
        Ok(Self {
            upstream: Arc::new(upstream::Metrics::new(registrar, errors.clone(), repairs.clone(), event_log.clone())?),
            delivery: Arc::new(delivery::Metrics::new(registrar, errors.clone(), event_log.clone())?),
            server: Arc::new(server::Metrics::new(registrar, errors.clone())?),
            errors,
            repairs,
            event_log,
            resumes: registrar.families(
                "resumes_total",
                "Resumes of a stream, by dialect and outcome.",
                [("dialect", &ResumeMeans::LABELS), ("outcome", &["served", "at_end", "lost"])],
            )?,
            resumes_delayed: registrar.counter("resumes_delayed_total", "Resumes that waited for earlier ones.")?,
            retries: registrar.counter("retries_total", "POSTs that were recognised as the retry of a call.")?,
            commits: registrar.counter("commits_total", "Responses that the proxy began before the upstream did.")?,
            unprotected: registrar.counter(
                "unprotected_requests_total",
                "Requests of MCP on other paths than the endpoint, which pass without protection.",
            )?,
            responses_held: registrar
                .counter("answers_held_total", "Client responses held until the upstream could take them.")?,
            responses_repeated: registrar
                .counter("answers_repeated_total", "Client responses dropped because an earlier one was given.")?,
            notifications_withheld: registrar
                .counter("notifications_withheld_total", "Events of calls whose client takes JSON only.")?,
        })
    }

    /// Counts a request that resumed a stream, or could not.
    pub fn observe_resume(&self, means: ResumeMeans, outcome: Resumed) {
        let outcome = match outcome {
            Resumed::Served => "served",
            Resumed::AtEnd => "at_end",
            Resumed::Lost => "lost",
        };
        self.resumes.with_label_values(&[means.label(), outcome]).inc();
    }

    /// Counts a resume that has to wait.
    pub fn observe_delayed_resume(&self) {
        self.resumes_delayed.inc();
    }

    /// Counts a POST that was the retry of a call.
    pub fn observe_retry(&self) {
        self.retries.inc();
    }

    /// Counts a response that the proxy began before the upstream did.
    pub fn observe_commit(&self) {
        self.commits.inc();
    }

    /// Counts an MCP request that passed without protection.
    pub fn observe_unprotected(&self) {
        self.unprotected.inc();
    }

    /// Counts a client response that is held.
    pub fn observe_held_response(&self) {
        self.responses_held.inc();
    }

    /// Counts a client response that was dropped because one was given before.
    pub fn observe_repeated_response(&self) {
        self.responses_repeated.inc();
    }

    /// Counts the other events of a call whose client takes JSON only.
    pub fn observe_withheld(&self, events: u64) {
        self.notifications_withheld.inc_by(events);
    }
}
