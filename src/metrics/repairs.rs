//! Repairs of server messages: responses that clients accept from the server itself, in a form that
//! the proxy corrects.

use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::IntCounterVec;
use tracing::warn;

use super::{Error, Registrar};

/// Kind of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The response has the ID of its request in another spelling, such as `"7"` for `7`.
    ResponseId,
    /// A line is a response only for lenient parsers: it has a byte order mark, `NaN` or
    /// `Infinity`.
    Json,
}

impl Repair {
    const COUNT: usize = 2;
    const LABELS: [&str; Self::COUNT] = ["response_id", "json"];

    fn advice(self) -> &'static str {
        match self {
            Self::Json => {
                "the server writes a response that is no JSON (NaN, Infinity or a byte order mark): it passes"
            }
            Self::ResponseId => {
                "the server spells the ID of a response differently from its request: clients get the request's ID"
            }
        }
    }
}

/// Repairs of the messages of one server.
#[derive(Debug)]
pub struct Repairs {
    counts: IntCounterVec,
    has_warned: [AtomicBool; Repair::COUNT],
}

impl Repairs {
    /// Registers the counters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(registrar: &Registrar) -> Result<Self, Error> {
        let counts = registrar.family(
            "repaired_messages_total",
            "Messages of the server that the proxy corrected, by kind.",
            ("kind", &Repair::LABELS),
        )?;
        Ok(Self { counts, has_warned: [const { AtomicBool::new(false) }; Repair::COUNT] })
    }

    /// Counts a repair. The log has the first of each kind, as a warning.
    pub fn record(&self, repair: Repair) {
        let kind = Repair::LABELS[repair as usize];
        self.counts.with_label_values(&[kind]).inc();
        if !self.has_warned[repair as usize].swap(true, Ordering::Relaxed) {
            warn!(kind, "{}", repair.advice());
        }
    }
}
