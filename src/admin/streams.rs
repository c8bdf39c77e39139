//! `/streams`: the state of every stream, as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::event_log::{Summary, TaskSummary};
use crate::protocol::headers::Era;
use crate::protocol::ids::StreamKind;
use crate::protocol::stream::Phase;

/// Largest number of listed streams, the youngest first: the page is for people.
const LISTED_MAX: usize = 500;
/// Limit for the text of a task, in characters: enough for a line of the page.
const TEXT_MAX: usize = 120;

/// Returns the list, with the sums over all streams.
pub(super) fn list(mut streams: Vec<Summary>) -> Vec<u8> {
    let total = streams.len();
    let (mut open, mut detached, mut kept_bytes) = (0, 0, 0);
    for stream in &streams {
        let runs = !matches!(stream.phase, Phase::Sealed { .. } | Phase::Passed);
        open += usize::from(runs);
        let is_call = stream.kind == StreamKind::Request;
        detached += usize::from(runs && is_call && !stream.is_attached);
        kept_bytes += stream.kept_bytes;
    }
    streams.sort_by_key(|stream| stream.age);
    let listed: Vec<Value> = streams.iter().take(LISTED_MAX).map(entry).collect();
    let list = json!({
        "total": total, "open": open, "detached": detached, "bufferedBytes": kept_bytes, "streams": listed,
    });
    list.to_string().into_bytes()
}

fn entry(stream: &Summary) -> Value {
    let kind = match stream.kind {
        StreamKind::Request => "request",
        StreamKind::Standalone => "standalone",
        StreamKind::Task => "task",
    };
    let era = match stream.era {
        Era::Legacy => "legacy",
        Era::Modern => "modern",
    };
    json!({
        "id": stream.id.to_string(),
        "kind": kind,
        "era": era,
        "method": stream.name.as_ref().map(|name| &*name.method),
        "tool": stream.name.as_ref().and_then(|name| name.tool.as_deref()),
        "connections": stream.connections,
        "resumes": stream.connections.saturating_sub(1),
        "error": stream.failure.map(|code| code.label()),
        "state": state(stream),
        "task": stream.task.as_ref().map(task),
        "ended": matches!(stream.phase, Phase::Sealed { .. } | Phase::Passed),
        "attached": stream.is_attached,
        "ageSecs": secs(stream.age),
        "attachedOrDetachedSecs": secs(stream.reader_for),
        "events": stream.events,
        "bufferedEvents": stream.kept_events,
        "bufferedBytes": stream.kept_bytes,
    })
}

/// Returns the state of a task, with the beginning of its text.
fn task(task: &TaskSummary) -> Value {
    let text = task.text.as_deref().map(|text| match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    });
    json!({"status": task.status.as_str(), "text": text})
}

/// Returns the state in a word.
fn state(stream: &Summary) -> &'static str {
    match stream.phase {
        // A standalone stream is no call, so it neither fails nor expires.
        Phase::Sealed { .. } if stream.kind == StreamKind::Standalone => "ended",
        Phase::Sealed { outcome, .. } => outcome.label(),
        Phase::Passed => "passed",
        Phase::Waiting => "waiting",
        Phase::Open if stream.awaits_input => "awaiting input",
        Phase::Open if stream.kind == StreamKind::Request && stream.is_answered => "completed",
        Phase::Open => "working",
    }
}

/// Returns the duration in seconds, to a tenth.
fn secs(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}
