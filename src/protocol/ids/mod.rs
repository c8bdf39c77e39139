//! The identifiers of streams and events, and their wire forms.
//!
//! An event ID is `<handle>.<seq>`, `<handle>.<seq>.<attach>`, `<handle>.<seq>.adopted<attach>` with or without the attach, or
//! `<handle>.end`. The handle is base64url without padding of
//!
//! ```text
//! version 1 | shape 1 | owner 4 | store epoch 4 | stream 12 | request ids 0..=384 | mac 16        (bytes, big endian)
//! ```
//!
//! where each request id is a type byte, a length byte and its text. The MAC covers everything before it, so that
//! no stream can be named by guessing; the sequence number stands outside, since a reader may ask from any place. A
//! handle holds no host name and no secret, and every character of an event ID is safe in an HTTP header and an SSE
//! line.
//!
//! Parsing is bounded work on untrusted bytes and believes nothing: [`EventId::verify`] does, under a [`Keyring`].
//! Deliberately absent: randomness and time (callers bring them), and whether a stream exists or may be read by this
//! caller.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::jsonrpc::RequestId;

mod issued_session;
mod keyring;
mod resume_token;
#[cfg(test)]
mod tests;

pub use issued_session::IssuedSession;
pub use keyring::Keyring;
use keyring::MAC_BYTES;
pub use resume_token::{ResumeToken, Secret};

/// The longest request id, in bytes of its text, that the handle of a single request holds.
const MAX_ID_BYTES: usize = 64;
/// The most bytes of request ids, each counted as at least one, that the handle of a batch holds in all.
const MAX_BATCH_ID_BYTES: usize = 128;

/// The layout of handles made now.
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 2 + 4 + 4 + 12;
/// A type byte and a length byte stand before each request id.
const ID_HEAD_BYTES: usize = 2;

/// A handle is never shorter, in characters: the one without request ids.
const MIN_HANDLE_LEN: usize = (FIXED_BYTES + MAC_BYTES) * 4 / 3 + 1;
/// A handle is never longer, in characters: a batch of [`MAX_BATCH_ID_BYTES`] ids of one byte.
const MAX_HANDLE_LEN: usize = (FIXED_BYTES + MAX_BATCH_ID_BYTES * (ID_HEAD_BYTES + 1) + MAC_BYTES) * 4 / 3 + 1;
/// The digits of the largest sequence number and of the largest attach.
const MAX_NUMBER_LEN: usize = 20;

/// Mark behind the number of an event that was logged by another replica after its writer's death.
const ADOPTED: &str = "adopted";

/// The random name of a stream. It may be shown to others: it opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId([u8; 12]);

impl StreamId {
    /// A stream ID of 96 random bits that the caller drew.
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// The 96 bits.
    pub fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }
}

/// 16 characters of base64url.
impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({self})")
    }
}

/// An event's place in its stream: 1 is the first event, 0 (the default) the place before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The replica that made a stream, as a hash of its name. It routes, and authorises nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Owner(pub u32);

impl Owner {
    /// The first 32 bits of the name's SHA-256: the same on every machine and in every version.
    pub fn from_name(name: &str) -> Self {
        let hash = Sha256::digest(name.as_bytes());
        Self(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]))
    }

    /// Reads what [`Owner`] is written as: 8 lower-case hexadecimal digits, nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if text.len() == 8 && text.bytes().all(is_digit) { u32::from_str_radix(text, 16).ok().map(Self) } else { None }
    }
}

/// 8 lower-case hexadecimal digits.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The name of a store's contents; another one means that they were lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StoreEpoch(pub u32);

/// The random mark that makes the first event ID of a resumed connection a fresh one. It is ignored on the way back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttachId(pub u64);

/// Kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum StreamKind {
    /// The answer to one POST that carried requests.
    Request,
    /// A session's messages outside any request, read by GET.
    Standalone,
}

/// JSON-RPC ids that a stream answers, as its handle has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Requests {
    /// The id of a single request.
    One(RequestId),
    /// The ids of a batch, in order.
    Batch(Vec<RequestId>),
    /// Nothing: they were too long, there are none, or the handle cannot be read.
    Unknown,
}

/// A stream's part of its event IDs, in its wire form: freshly made, or verified. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Handle(Arc<str>);

impl Handle {
    /// Makes the handle of a stream that answers `ids`; `batch` says that they came in an array, even if it holds one.
    ///
    /// One id takes up to 64 bytes, those of a batch up to 128 in all (each counts as at least one); longer ones are
    /// left out, and the handle then says [`Requests::Unknown`]. A standalone stream has no ids.
    pub fn mint(
        keys: &Keyring,
        kind: StreamKind,
        owner: Owner,
        epoch: StoreEpoch,
        stream: StreamId,
        ids: &[RequestId],
        batch: bool,
    ) -> Self {
        let shape = Shape::of(kind, ids, batch);
        let mut bytes = vec![VERSION, shape as u8];
        bytes.extend_from_slice(&owner.0.to_be_bytes());
        bytes.extend_from_slice(&epoch.0.to_be_bytes());
        bytes.extend_from_slice(&stream.0);
        if matches!(shape, Shape::One | Shape::Batch) {
            for id in ids {
                put_id(&mut bytes, id);
            }
        }
        let mac = keys.sign(&bytes);
        bytes.extend_from_slice(&mac);
        Self(URL_SAFE_NO_PAD.encode(bytes).into())
    }

    /// The wire form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Masked: at the modern revision an event ID is the key to its stream, and keys are not logged.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(..)")
    }
}

/// Writes the ID of the event at `seq`; with `attach`, that of a resumed connection's first, empty event, which names
/// the place it starts from.
///
/// # Errors
/// Those of `out`.
pub fn write_event_id(out: &mut impl fmt::Write, handle: &Handle, seq: Seq, attach: Option<AttachId>) -> fmt::Result {
    out.write_str(handle.as_str())?;
    let mut digits = itoa::Buffer::new();
    for number in std::iter::once(seq.0).chain(attach.map(|attach| attach.0)) {
        out.write_str(".")?;
        out.write_str(digits.format(number))?;
    }
    Ok(())
}

/// Writes the ID of an event at `seq` that another replica logged after the writer's death. The dead writer may have
/// delivered an event of its own under the same number; the mark distinguishes the two. `attach` is cut to the digits
/// that fit.
///
/// # Errors
/// Those of `out`.
pub fn write_adopted_id(out: &mut impl fmt::Write, handle: &Handle, seq: Seq, attach: Option<AttachId>) -> fmt::Result {
    const ROOM: u64 = 10_u64.pow((MAX_NUMBER_LEN - ADOPTED.len()) as u32);
    write_event_id(out, handle, seq, None)?;
    write!(out, ".{ADOPTED}")?;
    attach.map_or(Ok(()), |attach| write!(out, "{}", attach.0 % ROOM))
}

/// Writes the ID of the only event that a stream which cannot be read is answered with. The handle is the client's
/// own, [unverified](EventId::handle_text).
///
/// # Errors
/// Those of `out`.
pub fn write_end_id(out: &mut impl fmt::Write, handle_text: &str) -> fmt::Result {
    write!(out, "{handle_text}.end")
}

/// Part of an event ID behind the handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    /// The last event the client has; numbers beyond 64 bits count as the largest.
    Seq(Seq),
    /// The stream was gone already when the client last asked.
    End,
}

/// An event ID as a client sent it: well-formed, not yet believed.
#[derive(Clone)]
pub struct EventId {
    handle: Box<str>,
    cursor: Cursor,
    is_adopted: bool,
    content: Option<Content>,
}

impl EventId {
    /// Reads an event ID, or returns `None` if the format is not the proxy's.
    ///
    /// Well-formed is a handle of 51 to 563 characters of base64url, a dot, and `end` or up to 20 digits, after which
    /// a dot and up to 20 letters or digits may follow. A handle whose contents cannot be read, or that has no valid signature,
    /// is well-formed all the same.
    pub fn parse(text: &[u8]) -> Option<Self> {
        const MAX_LEN: usize = MAX_HANDLE_LEN + 2 * (1 + MAX_NUMBER_LEN);
        if text.len() > MAX_LEN {
            return None;
        }
        let (handle, place) = std::str::from_utf8(text).ok()?.split_once('.')?;
        let (cursor, is_adopted) = parse_place(place)?;
        Some(Self { cursor, is_adopted, ..Self::of_handle(handle)? })
    }

    /// The place before the first event of the stream that a handle names, as it stands in a stream URL or a resume token; `None`
    /// as in [`Self::parse`].
    pub fn of_handle(handle: &str) -> Option<Self> {
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let right_size = (MIN_HANDLE_LEN..=MAX_HANDLE_LEN).contains(&handle.len());
        if !right_size || !handle.bytes().all(is_base64url) {
            return None;
        }
        let content = URL_SAFE_NO_PAD.decode(handle).ok().and_then(Content::parse);
        Some(Self { handle: handle.into(), cursor: Cursor::Seq(Seq(0)), is_adopted: false, content })
    }

    /// Returns true if both claim to name one stream.
    pub fn names_stream_of(&self, other: &Self) -> bool {
        let stream = |id: &Self| id.content.as_ref().map(|content| content.stream);
        self.handle == other.handle || (stream(self).is_some() && stream(self) == stream(other))
    }

    /// The replica that the handle claims made the stream; `None` if it cannot be read. Good to find the way by, and for nothing else.
    pub fn unverified_owner(&self) -> Option<Owner> {
        Some(self.content.as_ref()?.owner)
    }

    /// Returns the kind of stream that the handle claims to name, or `None` if the handle cannot be read.
    pub fn unverified_kind(&self) -> Option<StreamKind> {
        Some(self.content.as_ref()?.kind)
    }

    /// The requests that the handle claims to be about, for an answer to who sent it.
    pub fn unverified_requests(&self) -> Requests {
        self.content.as_ref().map_or(Requests::Unknown, |content| content.requests.clone())
    }

    /// The handle's characters, safe to send back.
    pub fn handle_text(&self) -> &str {
        &self.handle
    }

    /// Returns the part behind the handle.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Returns the contents of the event ID if one of `keys` signed its handle. MACs are compared in constant time.
    /// Returns `None` also for [`Cursor::End`], which names no place in a stream.
    pub fn verify(&self, keys: &Keyring) -> Option<Verified> {
        let content = self.content.as_ref()?;
        if !keys.accepts(&content.signed, &content.mac) {
            return None;
        }
        let Cursor::Seq(seq) = self.cursor else {
            return None;
        };
        Some(Verified {
            stream: content.stream,
            owner: content.owner,
            epoch: content.epoch,
            kind: content.kind,
            seq,
            is_adopted: self.is_adopted,
            requests: content.requests.clone(),
            handle: Handle(self.handle.as_ref().into()),
        })
    }
}

/// Masked, as [`Handle`] is.
impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventId").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

/// Contents of an event ID whose signature was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The stream.
    pub stream: StreamId,
    /// The replica that made it.
    pub owner: Owner,
    /// The contents of the store it was made in.
    pub epoch: StoreEpoch,
    /// Kind of the stream.
    pub kind: StreamKind,
    /// The last event the client has. Not signed: it may lie beyond the tail.
    pub seq: Seq,
    /// True if that event was logged by another replica after the writer's death. Not signed either.
    pub is_adopted: bool,
    /// The requests it answers.
    pub requests: Requests,
    /// The handle, to write further event IDs with.
    pub handle: Handle,
}

/// `<digits>`, `<digits>.<attach>`, `<digits>.adopted…` or `end`; and whether it is the third.
fn parse_place(place: &str) -> Option<(Cursor, bool)> {
    if place == "end" {
        return Some((Cursor::End, false));
    }
    let (digits, attach) = match place.split_once('.') {
        None => (place, None),
        Some((digits, attach)) => (digits, Some(attach)),
    };
    let right_size = |text: &str| (1..=MAX_NUMBER_LEN).contains(&text.len());
    let is_attach = |text: &str| right_size(text) && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if !right_size(digits) || !digits.bytes().all(|b| b.is_ascii_digit()) || !attach.is_none_or(is_attach) {
        return None;
    }
    Some((
        Cursor::Seq(Seq(digits.parse().unwrap_or(u64::MAX))),
        attach.is_some_and(|attach| attach.starts_with(ADOPTED)),
    ))
}

/// The second byte of a handle: the stream's kind, and how its request ids are to be read.
#[derive(Clone, Copy)]
enum Shape {
    Standalone = 0,
    One = 1,
    Batch = 2,
    /// A request stream whose ids were left out.
    Unnamed = 3,
}

impl Shape {
    fn of(kind: StreamKind, ids: &[RequestId], batch: bool) -> Self {
        let size = |id: &RequestId| text_of(id).1.len();
        match kind {
            StreamKind::Standalone => Self::Standalone,
            StreamKind::Request if batch => {
                let total: usize = ids.iter().map(|id| size(id).max(1)).sum();
                if total <= MAX_BATCH_ID_BYTES { Self::Batch } else { Self::Unnamed }
            }
            StreamKind::Request => match ids {
                [id] if size(id) <= MAX_ID_BYTES => Self::One,
                _ => Self::Unnamed,
            },
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Standalone, Self::One, Self::Batch, Self::Unnamed].into_iter().find(|shape| *shape as u8 == byte)
    }
}

/// A handle taken apart, unverified.
#[derive(Clone)]
struct Content {
    kind: StreamKind,
    owner: Owner,
    epoch: StoreEpoch,
    stream: StreamId,
    requests: Requests,
    signed: Vec<u8>,
    mac: [u8; MAC_BYTES],
}

impl Content {
    fn parse(mut bytes: Vec<u8>) -> Option<Self> {
        let mac_at = bytes.len().checked_sub(MAC_BYTES)?;
        let mac = bytes[mac_at..].try_into().ok()?;
        bytes.truncate(mac_at);
        let (&[version, shape], rest) = bytes.split_first_chunk()?;
        let (&owner, rest) = rest.split_first_chunk()?;
        let (&epoch, rest) = rest.split_first_chunk()?;
        let (&stream, ids) = rest.split_first_chunk()?;
        if version != VERSION {
            return None;
        }
        let (kind, requests) = match Shape::from_byte(shape)? {
            Shape::Standalone => (StreamKind::Standalone, Requests::Unknown),
            Shape::Unnamed => (StreamKind::Request, Requests::Unknown),
            Shape::One => (StreamKind::Request, Requests::One(one(parse_ids(ids)?)?)),
            Shape::Batch => (StreamKind::Request, Requests::Batch(parse_ids(ids)?)),
        };
        Some(Self {
            kind,
            owner: Owner(u32::from_be_bytes(owner)),
            epoch: StoreEpoch(u32::from_be_bytes(epoch)),
            stream: StreamId(stream),
            requests,
            signed: bytes,
            mac,
        })
    }
}

const NUMBER: u8 = 0;
const STRING: u8 = 1;

fn text_of(id: &RequestId) -> (u8, &str) {
    match id {
        RequestId::Number(text) => (NUMBER, text),
        RequestId::String(text) => (STRING, text),
    }
}

/// The caller has checked the id's size against [`MAX_BATCH_ID_BYTES`], so it fits the length byte.
fn put_id(bytes: &mut Vec<u8>, id: &RequestId) {
    let (tag, text) = text_of(id);
    bytes.extend_from_slice(&[tag, text.len() as u8]);
    bytes.extend_from_slice(text.as_bytes());
}

fn parse_ids(mut bytes: &[u8]) -> Option<Vec<RequestId>> {
    let mut ids = Vec::new();
    while !bytes.is_empty() {
        let (&[tag, len], rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(usize::from(len))?;
        let text = std::str::from_utf8(text).ok()?;
        ids.push(match tag {
            STRING => RequestId::String(text.into()),
            // It goes out again as JSON, so it must be a number and nothing else.
            NUMBER => RequestId::from_json(text).filter(|id| text_of(id) == (NUMBER, text))?,
            _ => return None,
        });
        bytes = rest;
    }
    Some(ids)
}

fn one(mut ids: Vec<RequestId>) -> Option<RequestId> {
    let id = ids.pop()?;
    if ids.is_empty() { Some(id) } else { None }
}
