//! One event of a response, and its decoder.

use std::time::Duration;

/// One received event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Event ID, if the event has one.
    pub(super) id: Option<String>,
    /// Reconnect delay, if the event has one.
    pub(super) retry: Option<Duration>,
    /// Payload; empty if the event only sets an id.
    pub(super) data: String,
}

/// Takes the first complete event from `unread`, or returns `None` if there is none yet. Comments
/// alone are no event.
pub(super) fn next_event(unread: &mut Vec<u8>) -> Option<Event> {
    loop {
        let end = unread.windows(2).position(|pair| pair == b"\n\n")?;
        let lines: Vec<u8> = unread.drain(..end + 2).collect();
        let mut event = None::<Event>;
        for line in String::from_utf8_lossy(&lines).lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.get_or_insert_default().id = Some(value.to_owned()),
                "retry" => event.get_or_insert_default().retry = value.parse().ok().map(Duration::from_millis),
                "data" => event.get_or_insert_default().data.push_str(value),
                _ => {}
            }
        }
        if event.is_some() {
            return event;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_whole_and_comments_skipped() {
        let mut unread = [
            &b": hello\n\nid: a.0\nretry: 250\ndata:\n\n"[..],
            b"event: message\nid: a.1\ndata: {}\n\nid: a.2\ndata: {",
        ]
        .concat();
        let retry = Some(Duration::from_millis(250));
        assert_eq!(next_event(&mut unread), Some(Event { id: Some("a.0".into()), retry, data: String::new() }));
        assert_eq!(next_event(&mut unread), Some(Event { id: Some("a.1".into()), retry: None, data: "{}".into() }));
        assert_eq!(next_event(&mut unread), None);
        assert_eq!(unread, b"id: a.2\ndata: {", "half an event waits for its other half");
    }
}
