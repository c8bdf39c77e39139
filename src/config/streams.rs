//! The section `[streams]`, whose size limits depend on the transport of the server.

use std::time::Duration;

use super::Streams;
use super::read::Reader;
use super::value::{DAY_MS, YEAR, none_if_zero};

const MIB: usize = 1024 * 1024;

/// Reads the section. `is_channel` says that the server is on stdio or HTTP+SSE.
pub(super) fn streams(reader: &mut Reader, is_channel: bool) -> Streams {
    let mut s = reader.section("streams");
    let max_wait = s.secs("max_wait_secs", 0..=YEAR).unwrap_or(Duration::from_secs(600));
    let retention = s.secs("retention_secs", 1..=YEAR).unwrap_or(Duration::from_secs(600));
    let [event, stream] = [s.count("max_event_bytes", 1), s.count("max_bytes", 1)];
    let max_bytes_per_principal = s.count("max_bytes_per_principal", 1).unwrap_or(256 * MIB);
    let EventLimits { max_event_bytes, max_bytes } = event_limits(event, stream, max_bytes_per_principal, is_channel);
    let streams = Streams {
        max_wait: none_if_zero(max_wait),
        // Guaranteed by the field's docs.
        retention: retention.max(max_wait),
        modern_grace: s.millis("modern_grace_ms", 0..=DAY_MS),
        call_timeout: s.secs("call_timeout_secs", 0..=YEAR).and_then(none_if_zero),
        cancel_grace: s.secs("cancel_grace_secs", 0..=YEAR).unwrap_or(Duration::from_secs(5)),
        full_wait: s.secs("full_wait_secs", 0..=YEAR).unwrap_or(Duration::from_secs(30)),
        linger: s.millis("linger_ms", 0..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        max_events: s.count("max_events", 1).unwrap_or(65536),
        max_event_bytes,
        max_bytes,
        max_bytes_per_principal,
        max_bytes_total: s.count("max_bytes_total", 1).unwrap_or(1024 * MIB),
        delivered_retention: s.secs("delivered_retention_secs", 0..=YEAR).unwrap_or(Duration::from_secs(60)),
    };
    if streams.max_bytes <= streams.max_event_bytes {
        let Streams { max_bytes, max_event_bytes, .. } = streams;
        let text = format!(
            "max_bytes must exceed max_event_bytes: one event would fill the stream \
             ({max_bytes} against {max_event_bytes})"
        );
        reader.conflict([("streams", "max_bytes"), ("streams", "max_event_bytes")], text);
    }
    let nested = [
        ("max_bytes_per_principal", streams.max_bytes_per_principal, "max_bytes", streams.max_bytes),
        ("max_bytes_total", streams.max_bytes_total, "max_bytes_per_principal", streams.max_bytes_per_principal),
    ];
    for (outer, whole, inner, part) in nested {
        if whole < part {
            let text = format!("{outer} must be at least {inner}: it is the bound around it ({whole} against {part})");
            reader.conflict([("streams", outer), ("streams", inner)], text);
        }
    }
    streams
}

/// Limits of the events of one stream.
struct EventLimits {
    max_event_bytes: usize,
    max_bytes: usize,
}

/// Returns the limits where a key is not set. A message on a channel may be larger than an event
/// over HTTP: programs on stdio rely on it. The defaults stay within the limits that are set.
fn event_limits(event: Option<usize>, stream: Option<usize>, principal: usize, is_channel: bool) -> EventLimits {
    if !is_channel {
        return EventLimits { max_event_bytes: event.unwrap_or(16 * MIB), max_bytes: stream.unwrap_or(32 * MIB) };
    }
    let max_bytes = stream.unwrap_or((128 * MIB).min(principal).max(32 * MIB));
    EventLimits { max_event_bytes: event.unwrap_or((64 * MIB).min(max_bytes / 2).max(16 * MIB)), max_bytes }
}
