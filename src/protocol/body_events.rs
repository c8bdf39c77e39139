//! Events in place of a JSON body, for a client whose response has begun as an event stream.
//!
//! A client gets from the events what it would have read of the body. Each message of an array is
//! an event, since clients read one message from an event. Line ends of Unicode become escapes,
//! and a byte order mark is left out. A response that only other parsers read is one event.
//! Absent: the claim of a response (the pump), and the form of an event (`sse`).

use bytes::{Buf, Bytes};

use crate::excerpt::{EXCERPT, Excerpt, Kind};
use crate::jsonrpc::{self, Body, RequestId};
use crate::unicode_line_ends;

/// Most messages of an array that become events of their own. A longer array stays one event.
const MAX_MESSAGES: usize = 1024;

/// Returns a body without its byte order mark.
pub fn without_mark(mut body: Bytes) -> Bytes {
    if body.starts_with(jsonrpc::BYTE_ORDER_MARK) {
        body.advance(jsonrpc::BYTE_ORDER_MARK.len());
    }
    body
}

/// Returns the data of each event for a body that holds `messages`, in their order.
pub fn data_of(body: Bytes, messages: &Body) -> Vec<Bytes> {
    match messages {
        Body::Batch(messages) if messages.len() <= MAX_MESSAGES => {
            let texts = jsonrpc::messages(&body);
            texts.into_iter().map(|text| unicode_line_ends::escaped(body.slice(jsonrpc::span(&body, text)))).collect()
        }
        Body::Batch(_) | Body::Single(_) => vec![unicode_line_ends::escaped(body)],
    }
}

/// Returns the data of the event for a body that is no message to [`jsonrpc::peek_any`]. Returns
/// data only if a parser with other rules can read the response to `only` in it. Then the body is
/// one whole object, and its first or last bytes have the members of a response, and no other ID.
/// No parser reads a body that is cut off, or has text behind its end.
pub fn data_of_unreadable(body: Bytes, only: &RequestId) -> Option<Bytes> {
    if !jsonrpc::is_one_object(&body) {
        return None;
    }
    let mut excerpt = Excerpt::of_first(&body[..body.len().min(EXCERPT)]);
    excerpt.add_last(&body[body.len().saturating_sub(EXCERPT)..]);
    match excerpt.kind() {
        Kind::Response(Some(id)) if is_for(&id, only) => Some(unicode_line_ends::escaped(body)),
        Kind::Response(_) | Kind::Request(_) | Kind::Unknown(_) | Kind::Garbage => None,
    }
}

fn is_for(id: &RequestId, only: &RequestId) -> bool {
    id == only || jsonrpc::only_alike(id, 1, std::iter::once(only), |other| other == only).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(body: &str) -> Vec<Bytes> {
        let messages = jsonrpc::peek_any(body.as_bytes()).expect("messages");
        data_of(Bytes::copy_from_slice(body.as_bytes()), &messages)
    }

    fn response(id: u64) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}")
    }

    #[test]
    fn an_array_becomes_an_event_for_each_message() {
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
        assert_eq!(data(&format!(" [{progress} ,\n{}]\n", response(1))), [progress.to_owned(), response(1)]);
        assert_eq!(data(&format!("[{}]", response(1))), [response(1)]);
        let long = format!("[{}]", vec![response(1); MAX_MESSAGES + 1].join(","));
        assert_eq!(data(&long), [long]);
    }

    #[test]
    fn line_ends_of_unicode_become_escapes() {
        let body = "{\"jsonrpc\":\"2.0\",\n\"id\":1,\"result\":\"\u{2028}\u{85}\"}";
        let escaped = "{\"jsonrpc\":\"2.0\",\n\"id\":1,\"result\":\"\\u2028\\u0085\"}";
        assert_eq!(data(body), [escaped]);
        assert_eq!(data(&format!("[{body}]")), [escaped]);
    }

    #[test]
    fn a_response_to_other_parsers_is_one_event() {
        let one = RequestId::Number("1".into());
        let read = |body: &[u8]| data_of_unreadable(Bytes::copy_from_slice(body), &one);
        for body in [
            &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"t\":\"\xff\"}}"[..],
            b"{\"id\":1,\"id\":1,\"result\":{}}",
            b"{\"id\":\"1\",\"result\":{\"x\":.5,}}",
            b"\n{\"id\":1,\"result\":{\"x\":.5,\"y\":\"}\\\"}\"}} \r\n",
        ] {
            assert_eq!(read(body).as_deref(), Some(body));
        }
        for body in [
            &b""[..],
            b"<html>",
            b"{\"id\":2,\"result\":{\"x\":.5}}",
            b"{\"id\":1,\"id\":2,\"result\":{}}",
            b"{\"id\":1,\"method\":\"ping\",\"x\":.5}",
            b"{\"result\":{\"x\":.5}}",
            // Text behind the end.
            b"{\"id\":1,\"result\":{}}<br>Warning: x",
            b"{\"id\":1,\"result\":{}} {\"id\":1,\"result\":{}}",
            b"{\"id\":1,\"result\":{\"x\":NaN}}}",
            b"{\"id\":1,\"result\":{}}\0",
            // Cut off.
            b"{\"id\":1,\"result\":{}",
            b"{\"id\":1,\"result\":{\"x\":NaN",
            b"{\"id\":1,\"result\":\"",
            b"{\"id\":1,\"result\":\"\xff\\",
            b"{\"id\":1,\"result\":{}}\"",
        ] {
            assert_eq!(read(body), None, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_byte_order_mark_is_left_out() {
        assert_eq!(without_mark(Bytes::from("\u{feff}{}")), "{}");
        assert_eq!(without_mark(Bytes::from("{}")), "{}");
    }
}
