//! The section `[tasks]`: calls whose clients get a handle in place of the result.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::read::Reader;
use super::value::{DAY_MS, YEAR, none_if_zero};

/// Section of the configuration.
const SECTION: &str = "tasks";

/// Tasks of the proxy's own, for servers that have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Time from the transmission of a call to its promotion to a task.
    pub after: Duration,
    /// Longest time that the response to a poll is held, at most half of `max_wait`; or `None` for
    /// a response at once.
    pub hold: Option<Duration>,
    /// Longest time without a poll before a task is abandoned.
    pub max_wait: Duration,
    /// Retention of an outcome; at least `max_wait`, so that the lifetime of a task never becomes
    /// shorter.
    pub retention: Duration,
    /// Tasks of 2025-11-25, or `None` if they are not offered.
    pub legacy: Option<Arc<LegacyTasks>>,
}

/// Tasks of 2025-11-25: offered to clients that request them, for configured tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTasks {
    /// Names of the tools. Never empty.
    tools: HashSet<String>,
    /// Longest time without a request before a task is abandoned, and the longest lifetime that a
    /// client is promised.
    pub max_wait: Duration,
}

impl LegacyTasks {
    /// Name that stands for all tools.
    const ALL: &str = "*";

    /// Offers tasks for these tools.
    pub fn new(tools: impl IntoIterator<Item = String>, max_wait: Duration) -> Self {
        Self { tools: tools.into_iter().collect(), max_wait }
    }

    /// Returns true if calls of the tool may be tasks.
    pub fn has(&self, tool: &str) -> bool {
        self.tools.contains(Self::ALL) || self.tools.contains(tool)
    }
}

/// Rule for tasks of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSupport {
    /// A slow call becomes a task if its client declares them.
    Auto,
    /// No call becomes a task.
    Never,
    /// Calls of clients that do not declare tasks are refused.
    Required,
}

/// Reads the section. Returns `None` if calls become no tasks.
pub(super) fn tasks(reader: &mut Reader) -> Option<Tasks> {
    const DAY: Duration = Duration::from_millis(DAY_MS);
    let mut s = reader.section(SECTION);
    let is_enabled = s.boolean("enabled").unwrap_or(true);
    let after = s.millis("after_ms", 0..=DAY_MS).unwrap_or(Duration::from_secs(20));
    let hold = s.secs("hold_secs", 0..=60).unwrap_or(Duration::from_secs(5));
    let max_wait = s.secs("max_wait_secs", 1..=YEAR).unwrap_or(DAY);
    let retention = s.secs("retention_secs", 1..=YEAR);
    let tools: Vec<String> = s.list("legacy_tools", 0).unwrap_or_default();
    let legacy_max_wait = s.secs("legacy_max_wait_secs", 1..=YEAR).unwrap_or(Duration::from_secs(3600));
    let legacy = (!tools.is_empty()).then(|| Arc::new(LegacyTasks::new(tools, legacy_max_wait)));
    if retention.is_some_and(|retention| retention < max_wait) {
        let text = "clients are told that a task lives for max_wait_secs from now, which its end must not make shorter: give a \
                    retention_secs of at least max_wait_secs";
        reader.conflict([(SECTION, "retention_secs"), (SECTION, "max_wait_secs")], text.to_owned());
    }
    let retention = retention.unwrap_or(DAY.max(max_wait));
    // A poll that is held is the last sign of its client.
    let hold = hold.min(max_wait / 2);
    is_enabled.then(|| Tasks { after, hold: none_if_zero(hold), max_wait, retention, legacy })
}
