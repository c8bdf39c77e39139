//! The messages that the scripted upstream sends and the load tool checks: every event has its
//! number and the time of its sending.
//!
//! Both ends run on one machine, so readings of its monotonic clock in two processes can be
//! subtracted.

use memchr::memmem;
use serde_json::Value;
use std::io::Write as _;

const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
const COUNT: &str = r#","progress":"#;
const MESSAGE: &[u8] = br#","message":""#;
const PROGRESS_END: &[u8] = br#""}}"#;
const ANSWER: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const SENT: &[u8] = br#""text":"sent "#;

/// The machine's monotonic clock, in nanoseconds.
pub(crate) fn now_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The beginning of every progress notification of `token`, which is JSON.
pub(crate) fn progress_head(token: &str) -> Vec<u8> {
    [PROGRESS, token, COUNT].concat().into_bytes()
}

/// Appends progress notification `seq` of `head`, sent at `nanos`, padded to `bytes` bytes of JSON.
pub(crate) fn write_progress(out: &mut Vec<u8>, head: &[u8], seq: u64, nanos: u64, bytes: usize) {
    let start = out.len();
    out.extend_from_slice(head);
    write_number(out, seq);
    out.extend_from_slice(MESSAGE);
    write_number(out, nanos);
    out.push(b' ');
    let end = start + bytes.saturating_sub(PROGRESS_END.len());
    if end > out.len() {
        out.resize(end, b'x');
    }
    out.extend_from_slice(PROGRESS_END);
}

/// The sequence number and the sending time of a progress notification of `head`; `None` if `data`
/// is not exactly one.
pub(crate) fn read_progress(data: &[u8], head: &[u8]) -> Option<(u64, u64)> {
    let (seq, rest) = read_number(data.strip_prefix(head)?)?;
    let (nanos, rest) = read_number(rest.strip_prefix(MESSAGE)?)?;
    (rest.first() == Some(&b' ') && rest.ends_with(PROGRESS_END)).then_some((seq, nanos))
}

/// Appends the result of request `id`, with the number of events before it, and `pad` more bytes of
/// text.
pub(crate) fn write_answer(out: &mut Vec<u8>, id: u64, sent: u64, pad: usize) {
    out.extend_from_slice(ANSWER);
    write_number(out, id);
    out.extend_from_slice(br#","result":{"content":[{"type":"text","text":"sent "#);
    write_number(out, sent);
    out.push(b' ');
    out.resize(out.len() + pad, b'x');
    out.extend_from_slice(br#""}]}}"#);
}

/// The request id of a result, and its number of preceding events.
pub(crate) fn read_answer(data: &[u8]) -> Option<(u64, u64)> {
    let (id, rest) = read_number(data.strip_prefix(ANSWER)?)?;
    let sent = memmem::find(rest, SENT)? + SENT.len();
    Some((id, read_number(&rest[sent..])?.0))
}

/// As `read_progress`, for the same notification in any JSON form: a bridge rewrites the JSON.
pub(crate) fn find_progress(data: &[u8], token: &str) -> Option<(u64, u64)> {
    let json: Value = serde_json::from_slice(data).ok()?;
    let params = json.get("params")?;
    let said = (json.get("method")?.as_str()?, params.get("progressToken")?.as_str()?);
    let count = params.get("progress")?.as_f64().filter(|count| *count >= 1.0 && count.fract() == 0.0)?;
    let (nanos, _) = read_number(params.get("message")?.as_str()?.as_bytes())?;
    (said == ("notifications/progress", token)).then_some((count as u64, nanos))
}

/// As `read_answer`, for the same result in any JSON form.
pub(crate) fn find_answer(data: &[u8]) -> Option<(u64, u64)> {
    let (id, text) = answer_text(data)?;
    Some((id, read_number(text.strip_prefix("sent ")?.as_bytes())?.0))
}

/// True if both are the same result of the same request, in any JSON form.
pub(crate) fn same_answer(got: &[u8], due: &[u8]) -> bool {
    got == due || answer_text(got).is_some_and(|got| Some(got) == answer_text(due))
}

fn answer_text(data: &[u8]) -> Option<(u64, String)> {
    let json: Value = serde_json::from_slice(data).ok()?;
    let result = json.get("result").filter(|result| result.get("isError") != Some(&Value::Bool(true)))?;
    let text = result.pointer("/content/0/text")?.as_str()?;
    Some((json.get("id")?.as_u64()?, text.to_owned()))
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    // A `Vec` accepts every write.
    let _ = write!(out, "{number}");
}

fn read_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let number = text[..digits].iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    (digits > 0).then_some((number, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progress_notification_reads_back_and_has_the_size_asked_for() {
        let (mut out, head) = (Vec::new(), progress_head(r#""b1""#));
        write_progress(&mut out, &head, 42, 123_456_789, 200);
        assert_eq!(out.len(), 200);
        assert_eq!(read_progress(&out, &head), Some((42, 123_456_789)));
        assert_eq!(read_progress(&out[..199], &head), None);
        assert_eq!(read_progress(&out, &progress_head(r#""b2""#)), None);
        assert_eq!((find_progress(&out, "b1"), find_progress(&out, "b2")), (Some((42, 123_456_789)), None));
    }

    #[test]
    fn an_answer_reads_back() {
        let mut out = Vec::new();
        write_answer(&mut out, 7, 1000, 16);
        assert_eq!(read_answer(&out), Some((7, 1000)));
        assert_eq!(find_answer(&out), Some((7, 1000)));
        assert_eq!(read_progress(&out, &progress_head(r#""b1""#)), None);
    }

    #[test]
    fn what_a_bridge_writes_anew_is_the_same() {
        let anew = br#"{"method":"notifications/progress","params":{"message":"5 xx","progress":3.0,"progressToken":"b1"},"jsonrpc":"2.0"}"#;
        assert_eq!(find_progress(anew, "b1"), Some((3, 5)));
        let mut due = Vec::new();
        write_answer(&mut due, 7, 0, 2);
        let answer = |id, text, error| {
            format!(
                r#"{{"result":{{"content":[{{"text":"{text}","type":"text"}}],"isError":{error}}},"jsonrpc":"2.0","id":{id}}}"#
            )
        };
        assert!(same_answer(answer(7, "sent 0 xx", false).as_bytes(), &due));
        for other in [answer(8, "sent 0 xx", false), answer(7, "sent 0 x", false), answer(7, "sent 0 xx", true)] {
            assert!(!same_answer(other.as_bytes(), &due), "{other}");
        }
    }
}
