//! What the scripted upstream sends and the load tool checks: every event says which one it is and when it was sent.
//!
//! Both ends run on one machine, so a reading of its monotonic clock in one process can be taken from one in the other.

use memchr::memmem;
use std::io::Write as _;

const PROGRESS: &[u8] =
    br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"b","progress":"#;
const MESSAGE: &[u8] = br#","message":""#;
const PROGRESS_END: &[u8] = br#""}}"#;
const ANSWER: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const SENT: &[u8] = br#""text":"sent "#;

/// The machine's monotonic clock, in nanoseconds.
pub(crate) fn now_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Appends progress notification `seq`, sent at `nanos`, padded to `bytes` bytes of JSON.
pub(crate) fn write_progress(out: &mut Vec<u8>, seq: u64, nanos: u64, bytes: usize) {
    let start = out.len();
    out.extend_from_slice(PROGRESS);
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

/// The sequence number and the sending time of a progress notification; `None` if `data` is not exactly one.
pub(crate) fn read_progress(data: &[u8]) -> Option<(u64, u64)> {
    let (seq, rest) = read_number(data.strip_prefix(PROGRESS)?)?;
    let (nanos, rest) = read_number(rest.strip_prefix(MESSAGE)?)?;
    (rest.first() == Some(&b' ') && rest.ends_with(PROGRESS_END)).then_some((seq, nanos))
}

/// Appends the result of request `id`, which says how many events preceded it, with `pad` bytes more of text.
pub(crate) fn write_answer(out: &mut Vec<u8>, id: u64, sent: u64, pad: usize) {
    out.extend_from_slice(ANSWER);
    write_number(out, id);
    out.extend_from_slice(br#","result":{"content":[{"type":"text","text":"sent "#);
    write_number(out, sent);
    out.push(b' ');
    out.resize(out.len() + pad, b'x');
    out.extend_from_slice(br#""}]}}"#);
}

/// The request id of a result, and how many events it says preceded it.
pub(crate) fn read_answer(data: &[u8]) -> Option<(u64, u64)> {
    let (id, rest) = read_number(data.strip_prefix(ANSWER)?)?;
    let sent = memmem::find(rest, SENT)? + SENT.len();
    Some((id, read_number(&rest[sent..])?.0))
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    // A `Vec` takes every write.
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
        let mut out = Vec::new();
        write_progress(&mut out, 42, 123_456_789, 200);
        assert_eq!(out.len(), 200);
        assert_eq!(read_progress(&out), Some((42, 123_456_789)));
        assert_eq!(read_progress(&out[..199]), None);
    }

    #[test]
    fn an_answer_reads_back() {
        let mut out = Vec::new();
        write_answer(&mut out, 7, 1000, 16);
        assert_eq!(read_answer(&out), Some((7, 1000)));
        assert_eq!(read_progress(&out), None);
    }
}
