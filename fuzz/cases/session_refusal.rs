//! Refusals of a session, and the messages of its handshake. Input: a status as two bytes, then a
//! body.
//!
//! A success is no refusal, and neither is a body that has a result of the request. Letters of
//! either case mean the same. What is kept of a handshake is bounded, and is JSON again.

use mcp_resume::protocol::jsonrpc::{InitializeParams, RequestId, ServerFacts, session_change};
use mcp_resume::protocol::session_refusal::{RefusalPattern, SessionRefusals, wording};
use serde_json::Value;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let Some((status, body)) = bytes.split_first_chunk() else { return };
    let status = u16::from_be_bytes(*status) % 600;
    let ids = [RequestId::Number("7".into())];
    let pattern: RefusalPattern = "410 gone away".parse().expect("a pattern");
    for refusals in [SessionRefusals::default(), SessionRefusals::new(vec![pattern])] {
        let refusal = refusals.judge(status, Some(body), &ids);
        let is_refused = refusal.is_possible();
        assert!(!is_refused || (status >= 400 && refusals.may_have(status)));
        let value = serde_json::from_slice::<Value>(body).ok();
        let has_result =
            value.as_ref().is_some_and(|value| value["id"] == 7 && value.get("result").is_some() && value.is_object());
        assert!(!is_refused || !has_result, "a tool may have run");
        // Without JSON only the words count.
        if value.is_none() && body.is_ascii() {
            let upper = refusals.judge(status, Some(&body.to_ascii_uppercase()), &ids);
            assert_eq!((is_refused, refusal.is_known()), (upper.is_possible(), upper.is_known()));
        }
        let _ = refusals.verdict((status, &refusal), (status, Some(body)), &ids[0]);
    }
    if let Some(words) = wording(body) {
        assert!(!words.is_empty() && !words.contains(char::is_control));
        // The words recognise the body that they come from.
        let pattern: RefusalPattern = format!("410 {words}").parse().expect("a pattern");
        let refusal = SessionRefusals::new(vec![pattern]).judge(410, Some(body), &ids);
        let value = serde_json::from_slice::<Value>(body).ok();
        let is_response = value.is_some_and(|value| value["id"] == 7);
        assert!(refusal.is_known() || is_response, "{words}");
    }
    if let Some(params) = InitializeParams::of(body) {
        assert!(params.as_json().len() <= 16 * 1024);
        let value: Value = serde_json::from_str(params.as_json()).expect("JSON");
        assert!(value.is_object() && value.get("_meta").is_none());
    }
    if let Some(facts) = ServerFacts::of(body) {
        assert!(facts.byte_len() <= 16 * 1024 && facts.are_kept_by(&facts));
    }
    let _ = session_change(body);
}
