//! Event IDs, resume tokens and names of issued sessions. Input: a client's value for one of them;
//! its lines also serve as the request ids of a stream.
//!
//! Parsed values are bounded and safe to send back; a minted id parses back unchanged; a changed
//! one is refused. The corpus has IDs that the key of this target signed.

use mcp_resume::protocol::headers::SessionId;
use mcp_resume::protocol::ids::{
    AttachId, Cursor, EventId, Handle, IssuedSession, Keyring, Owner, Requests, ResumeToken, Seq, StoreEpoch, StreamId,
    StreamKind, Verified, write_adopted_id, write_end_id, write_event_id,
};
use mcp_resume::protocol::jsonrpc::RequestId;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let keys = Keyring::new([1; 32], vec![]);
    if let Some(id) = EventId::parse(bytes) {
        is_safe(&id);
        if let Some(verified) = id.verify(&keys) {
            is_canonical(&keys, &verified);
        }
    }
    let text = String::from_utf8_lossy(bytes);
    if let Some(token) = ResumeToken::parse(&text) {
        is_safe(token.handle());
        assert_eq!(token.handle().cursor(), Cursor::Seq(Seq(0)));
        assert!(!format!("{token:?}").contains(text.as_ref()));
    }
    if let Some(issued) = SessionId::parse(&text).and_then(|id| IssuedSession::open(&id, &keys)) {
        let again = issued.seal(&keys, [0; 12]).expect("it was sealed before");
        assert_eq!(IssuedSession::open(&again, &keys), Some(issued));
    }
    let ids: Vec<RequestId> =
        text.lines().map(|line| RequestId::from_json(line).unwrap_or(RequestId::String(line.into()))).collect();
    comes_back(&keys, StreamKind::Standalone, &[], false, bytes);
    comes_back(&keys, StreamKind::Request, &ids, true, bytes);
    comes_back(&keys, StreamKind::Request, &ids[..ids.len().min(1)], false, bytes);
}

/// Any parsed id fits a header and an SSE line, and its request ids are JSON.
fn is_safe(id: &EventId) {
    let handle = id.handle_text();
    assert!((51..=563).contains(&handle.len()));
    assert!(handle.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')));
    let mut end = String::new();
    write_end_id(&mut end, handle).unwrap();
    let end = EventId::parse(end.as_bytes()).unwrap();
    assert_eq!((end.cursor(), end.handle_text()), (Cursor::End, handle));
    assert_eq!((end.unverified_kind(), end.unverified_requests()), (id.unverified_kind(), id.unverified_requests()));
    assert!(!format!("{id:?}").contains(handle));
    let ids = match id.unverified_requests() {
        Requests::One(id) => vec![id],
        Requests::Batch(ids) => ids,
        Requests::Unknown => vec![],
    };
    ids.iter().for_each(|id| assert_eq!(RequestId::from_json(&id.to_json()).as_ref(), Some(id)));
}

/// Equal contents have exactly one handle.
fn is_canonical(keys: &Keyring, said: &Verified) {
    let (ids, batch) = match &said.requests {
        Requests::One(id) => (std::slice::from_ref(id), false),
        Requests::Batch(ids) => (&ids[..], true),
        Requests::Unknown => return,
    };
    let again = Handle::mint(keys, said.kind, said.owner, said.epoch, said.stream, ids.iter(), batch);
    assert_eq!(again.as_str(), said.handle.as_str());
}

fn comes_back(keys: &Keyring, kind: StreamKind, ids: &[RequestId], batch: bool, salt: &[u8]) {
    let stream = StreamId::from_bytes(std::array::from_fn(|at| salt.get(at).copied().unwrap_or(at as u8)));
    let (owner, epoch) = (Owner::from_name("a"), StoreEpoch(salt.len() as u32));
    let handle = Handle::mint(keys, kind, owner, epoch, stream, ids.iter(), batch);
    let seq = Seq(salt.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(257).wrapping_add(u64::from(*byte))));
    for attach in [None, Some(AttachId(!seq.0))] {
        let mut text = String::new();
        write_event_id(&mut text, &handle, seq, attach).unwrap();
        let id = EventId::parse(text.as_bytes()).expect("an id of ours is well-formed");
        is_safe(&id);
        let requests = expected(kind, ids, batch);
        let said = id.verify(keys).expect("we signed it");
        let expected =
            Verified { stream, owner, epoch, kind, seq, is_adopted: false, requests, handle: handle.clone() };
        assert_eq!(said, expected);
        assert!(id.verify(&Keyring::new([2; 32], vec![])).is_none());
        changed(keys, &text, handle.as_str().len(), salt);
    }
    for attach in [None, Some(AttachId(!seq.0))] {
        let mut text = String::new();
        write_adopted_id(&mut text, &handle, seq, attach).unwrap();
        let said = EventId::parse(text.as_bytes()).and_then(|id| id.verify(keys)).expect("we signed it");
        assert!(said.seq == seq && said.is_adopted);
    }
}

/// The request ids in a handle: of one request up to 64 bytes, of a batch up to 128 in all.
fn expected(kind: StreamKind, ids: &[RequestId], batch: bool) -> Requests {
    let size = |id: &RequestId| match id {
        RequestId::Number(text) | RequestId::String(text) => text.len(),
    };
    match (kind, ids) {
        (StreamKind::Standalone | StreamKind::Task, _) => Requests::Unknown,
        (StreamKind::Request, ids) if batch => match ids.iter().map(|id| size(id).max(1)).sum::<usize>() {
            ..=128 => Requests::Batch(ids.to_vec()),
            _ => Requests::Unknown,
        },
        (StreamKind::Request, [id]) if size(id) <= 64 => Requests::One(id.clone()),
        (StreamKind::Request, _) => Requests::Unknown,
    }
}

/// Replaces one character of the handle.
fn changed(keys: &Keyring, text: &str, handle_len: usize, salt: &[u8]) {
    let at = salt.iter().fold(0, |sum: usize, byte| sum * 31 % handle_len + usize::from(*byte)) % handle_len;
    let mut text = text.as_bytes().to_vec();
    text[at] = if text[at] == b'A' { b'B' } else { b'A' };
    assert!(EventId::parse(&text).expect("still well-formed").verify(keys).is_none(), "changed at {at}");
}
