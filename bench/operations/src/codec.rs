//! Operations of the sans-io core.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method};
use mcp_resume::protocol::classify::{self, Route};
use mcp_resume::protocol::dialect::Declared;
use mcp_resume::protocol::headers::{RequestFacts, names};
use mcp_resume::protocol::http1::{self, Framing};
use mcp_resume::protocol::ids::{self, EventId, Handle, Keyring, Owner, Seq, StoreEpoch, StreamId, StreamKind};
use mcp_resume::protocol::jsonrpc::{self, Body, RequestId};
use mcp_resume::protocol::sse::Decoder;
use std::hint::black_box;

use crate::{MOST, Result, expect, progress};

const MAX_EVENT_BYTES: usize = 1 << 20;
/// Bytes of one write of an upstream that buffers naturally.
const GATHER: usize = 16 * 1024;

pub(crate) fn dechunk(times: usize) -> Result<()> {
    let chunk = |n: usize| {
        let event = sse_event(n);
        [format!("{:x}\r\n", event.len()).as_bytes(), &event, b"\r\n"].concat()
    };
    let chunks: Vec<Vec<u8>> = (0..MOST).map(chunk).collect();
    let mut decoder = http1::Decoder::new(Framing::Chunked);
    let mut out = BytesMut::with_capacity(GATHER);
    let mut taken = 0;
    for chunk in &chunks[..times] {
        out.clear();
        taken += usize::from(decoder.decode(black_box(chunk), &mut out)? == chunk.len());
        black_box(&out);
    }
    expect(taken, times)
}

pub(crate) fn decode_lone(times: usize) -> Result<()> {
    let event = sse_event(1);
    let mut decoder = Decoder::new(MAX_EVENT_BYTES);
    let mut decoded = 0;
    for _ in 0..times {
        decoder.feed(Bytes::copy_from_slice(black_box(&event)));
        while black_box(decoder.poll_event()?).is_some() {
            decoded += 1;
        }
    }
    expect(decoded, times)
}

pub(crate) fn decode_gathered(times: usize) -> Result<()> {
    let stream: Vec<u8> = (0..MOST).flat_map(sse_event).collect();
    let mut decoder = Decoder::new(MAX_EVENT_BYTES);
    let mut pieces = stream.chunks(GATHER);
    let mut decoded = 0;
    while decoded < times {
        let piece = pieces.next().ok_or("the stream is too short")?;
        decoder.feed(Bytes::copy_from_slice(black_box(piece)));
        while decoded < times && black_box(decoder.poll_event()?).is_some() {
            decoded += 1;
        }
    }
    expect(decoded, times)
}

pub(crate) fn write_id(times: usize) -> Result<()> {
    let handle = handle(&keys());
    let mut out = String::with_capacity(256);
    for seq in 0..times {
        out.clear();
        ids::write_event_id(&mut out, black_box(&handle), Seq(1000 + seq as u64), None)?;
        black_box(&out);
    }
    Ok(())
}

pub(crate) fn verify_id(times: usize) -> Result<()> {
    let keys = keys();
    let id = event_id(&keys)?;
    let mut verified = 0;
    for _ in 0..times {
        let id = EventId::parse(black_box(id.as_bytes())).and_then(|id| id.verify(&keys));
        verified += usize::from(black_box(id).is_some());
    }
    expect(verified, times)
}

pub(crate) fn mint_handle(times: usize) -> Result<()> {
    let keys = keys();
    for _ in 0..times {
        black_box(handle(black_box(&keys)));
    }
    Ok(())
}

pub(crate) fn peek(times: usize) -> Result<()> {
    let message = progress(1);
    let mut peeked = 0;
    for _ in 0..times {
        let body = jsonrpc::peek(black_box(message.as_bytes()))?;
        peeked += usize::from(matches!(black_box(body), Body::Single(_)));
    }
    expect(peeked, times)
}

pub(crate) fn classify_post(times: usize) -> Result<()> {
    let headers = request_headers();
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"query":"a few words of an ordinary length","limit":20},"_meta":{"progressToken":"b"}}}"#;
    let mut calls = 0;
    for _ in 0..times {
        let version = RequestFacts::of(black_box(&headers)).version;
        let route = classify::post(version.as_ref(), black_box(body), None, Declared::ALL, classify::BATCH_MAX);
        calls += usize::from(matches!(black_box(route), Route::Call(call) if call.has_tool_call()));
    }
    expect(calls, times)
}

pub(crate) fn classify_resume(times: usize) -> Result<()> {
    let mut headers = request_headers();
    headers.insert(names::LAST_EVENT_ID, HeaderValue::from_str(&event_id(&keys())?)?);
    let mut resumes = 0;
    for _ in 0..times {
        let route = classify::head(black_box(&Method::GET), black_box(&headers));
        resumes += usize::from(matches!(black_box(route), Route::Resume(_)));
    }
    expect(resumes, times)
}

fn sse_event(n: usize) -> Vec<u8> {
    format!("event: message\ndata: {}\n\n", progress(n)).into_bytes()
}

fn keys() -> Keyring {
    Keyring::new([7; 32], Vec::new())
}

fn handle(keys: &Keyring) -> Handle {
    let id = RequestId::Number("1".into());
    let stream = StreamId::from_bytes([3; 12]);
    Handle::mint(keys, StreamKind::Request, Owner(1), StoreEpoch(1), stream, [&id].into_iter(), false)
}

fn event_id(keys: &Keyring) -> Result<String> {
    let mut id = String::new();
    ids::write_event_id(&mut id, &handle(keys), Seq(1234), None)?;
    Ok(id)
}

/// The headers of a stock client's call.
fn request_headers() -> HeaderMap {
    let pairs = [
        ("host", "mcp.example"),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
        ("content-length", "180"),
        ("user-agent", "an-sdk/1.0"),
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-session-id", "0b6f7a2e5d1c4f3a9e8d7c6b5a4f3e2d"),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}
