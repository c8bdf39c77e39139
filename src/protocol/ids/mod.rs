//! The identifiers of streams and events, and their wire forms.
//!
//! An event ID is `<handle>.<seq>`, `<handle>.<seq>.<attach>`, `<handle>.<seq>.adopted<attach>`
//! with or without the attach, or `<handle>.end`. The handle is base64url without padding of
//!
//! ```text
//! version 1 | shape 1 | owner 4 | store epoch 4 | stream 12 | request ids 0..=384 | mac 16        (bytes, big endian)
//! ```
//!
//! Each request id is a type byte, a length byte and its text. The MAC covers all bytes before it,
//! so that no stream can be guessed. The sequence number is outside, since a reader may start at
//! any place. A handle contains no host name and no secret. Every character of an event ID is safe
//! in an HTTP header and an SSE line.
//!
//! Parsing is bounded work on untrusted bytes and verifies nothing; [`EventId::verify`] does, with
//! a [`Keyring`]. Deliberately absent: randomness and time (callers pass them), the existence of a
//! stream, and the caller's right to read it.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::jsonrpc::RequestId;

mod issued_session;
mod keyring;
mod parked_call;
mod resume_token;
#[cfg(test)]
mod tests;

pub use issued_session::IssuedSession;
pub use keyring::Keyring;
use keyring::MAC_BYTES;
pub use parked_call::ParkedCall;
pub use resume_token::{ResumeToken, Secret};

/// Limit for the request id in the handle of a single request, in bytes of its text.
const MAX_ID_BYTES: usize = 64;
/// Limit for all request ids in the handle of a batch, in bytes. Each id counts as at least one.
const MAX_BATCH_ID_BYTES: usize = 128;

/// The layout of new handles.
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 2 + 4 + 4 + 12;
/// Size of the type byte and the length byte before each request id.
const ID_HEAD_BYTES: usize = 2;

/// Length of the shortest handles, which have no request ids, in characters.
const MIN_HANDLE_LEN: usize = (FIXED_BYTES + MAC_BYTES) * 4 / 3 + 1;
/// Length of the longest handles, in characters: handles of a batch with [`MAX_BATCH_ID_BYTES`] ids
/// of one byte.
const MAX_HANDLE_LEN: usize = (FIXED_BYTES + MAX_BATCH_ID_BYTES * (ID_HEAD_BYTES + 1) + MAC_BYTES) * 4 / 3 + 1;
/// Number of digits of the largest sequence number and of the largest attach.
const MAX_NUMBER_LEN: usize = 20;

/// Mark behind the number of an event that was logged by another replica after its writer's death.
const ADOPTED: &str = "adopted";

/// The random name of a stream. It is no secret, since it grants no access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId([u8; 12]);

impl StreamId {
    /// Creates a stream ID from 96 random bits.
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// Returns the 96 bits.
    pub fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }
}

/// 16 characters of base64url.
impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 16];
        let length = URL_SAFE_NO_PAD.encode_slice(self.0, &mut text).unwrap_or_default();
        f.write_str(str::from_utf8(&text[..length]).unwrap_or_default())
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({self})")
    }
}

/// The place of an event in its stream: 1 is the first event, 0 (the default) the place before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The replica that created a stream, as a hash of its name. It serves routing, and grants no
/// access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Owner(pub u32);

impl Owner {
    /// Returns the first 32 bits of the name's SHA-256, which are equal on every machine and in
    /// every version.
    pub fn from_name(name: &str) -> Self {
        let hash = Sha256::digest(name.as_bytes());
        Self(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]))
    }

    /// Parses the written form: 8 hexadecimal digits in lower case.
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

/// The name of a store's contents. A different name means that earlier contents were lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StoreEpoch(pub u32);

/// 8 lower-case hexadecimal digits.
impl fmt::Display for StoreEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Number of a session at its server: 0 for the session that the client opened. Each session that
/// the proxy opened in its place since has the next number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct SessionGeneration(pub u32);

/// The random mark that makes the first event ID of a resumed connection unique. It is ignored in
/// requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttachId(pub u64);

/// Kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum StreamKind {
    /// The responses to one POST with requests.
    Request,
    /// A session's messages outside any request, read by GET.
    Standalone,
    /// The call of a task, read by requests `tasks/*` alone.
    Task,
}

/// The ids of the JSON-RPC requests of a stream, as its handle has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Requests {
    /// The id of a single request.
    One(RequestId),
    /// The ids of a batch, in order.
    Batch(Vec<RequestId>),
    /// No ids: they were too long, the stream has none, or the handle cannot be parsed.
    Unknown,
}

/// The part of an event ID that names the stream, in its wire form: minted here, or verified. Cheap
/// to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Handle(Arc<str>);

impl Handle {
    /// Mints the handle of a stream for the requests `ids`. `batch` is true if they came in an
    /// array, even of one element.
    ///
    /// A single id may have 64 bytes, the ids of a batch 128 in all (each counts as at least one).
    /// Longer ids are left out, and the handle then means [`Requests::Unknown`]. A standalone
    /// stream has no ids. The handle of a task's stream has no ids, or the id of one request for
    /// its state.
    pub fn mint<'a>(
        keys: &Keyring,
        kind: StreamKind,
        owner: Owner,
        epoch: StoreEpoch,
        stream: StreamId,
        ids: impl ExactSizeIterator<Item = &'a RequestId> + Clone,
        batch: bool,
    ) -> Self {
        let shape = Shape::of(kind, ids.clone(), batch);
        let named = if matches!(shape, Shape::One | Shape::Batch | Shape::Poll) { ids.len() } else { 0 };
        let ids = ids.take(named);
        let ids_len: usize = ids.clone().map(|id| ID_HEAD_BYTES + id.text().len()).sum();
        let mut bytes = Vec::with_capacity(FIXED_BYTES + ids_len + MAC_BYTES);
        bytes.extend_from_slice(&[VERSION, shape as u8]);
        bytes.extend_from_slice(&owner.0.to_be_bytes());
        bytes.extend_from_slice(&epoch.0.to_be_bytes());
        bytes.extend_from_slice(&stream.0);
        for id in ids {
            put_id(&mut bytes, id);
        }
        let mac = keys.sign(&bytes);
        bytes.extend_from_slice(&mac);
        Self(URL_SAFE_NO_PAD.encode(bytes).into())
    }

    /// Mints the handle of a request `id` for the state of a task, or returns `None` if the ID is
    /// too long.
    pub fn mint_poll(keys: &Keyring, owner: Owner, epoch: StoreEpoch, task: StreamId, id: &RequestId) -> Option<Self> {
        let ids = std::iter::once(id);
        let fits = text_of(id).1.len() <= MAX_ID_BYTES;
        fits.then(|| Self::mint(keys, StreamKind::Task, owner, epoch, task, ids, false))
    }

    /// Returns the wire form.
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

/// Writes the ID of the event at `seq`. With `attach` it is the ID of the first, empty event of a
/// resumed connection. It names the start of that connection.
///
/// # Errors
/// The errors of `out`.
pub fn write_event_id(out: &mut impl fmt::Write, handle: &Handle, seq: Seq, attach: Option<AttachId>) -> fmt::Result {
    out.write_str(handle.as_str())?;
    write_number(out, seq.0)?;
    match attach {
        Some(attach) => write_number(out, attach.0),
        None => Ok(()),
    }
}

fn write_number(out: &mut impl fmt::Write, number: u64) -> fmt::Result {
    out.write_str(".")?;
    out.write_str(itoa::Buffer::new().format(number))
}

/// Writes the ID of an event at `seq` that another replica logged after the writer's death. The
/// dead writer may have delivered an event of its own under the same number; the mark distinguishes
/// the two. `attach` is cut to the digits that fit.
///
/// # Errors
/// The errors of `out`.
pub fn write_adopted_id(out: &mut impl fmt::Write, handle: &Handle, seq: Seq, attach: Option<AttachId>) -> fmt::Result {
    const ROOM: u64 = 10_u64.pow((MAX_NUMBER_LEN - ADOPTED.len()) as u32);
    write_event_id(out, handle, seq, None)?;
    write!(out, ".{ADOPTED}")?;
    attach.map_or(Ok(()), |attach| write!(out, "{}", attach.0 % ROOM))
}

/// Writes the ID of the only event in the response for an unreadable stream. The handle is the
/// client's, [unverified](EventId::handle_text).
///
/// # Errors
/// The errors of `out`.
pub fn write_end_id(out: &mut impl fmt::Write, handle_text: &str) -> fmt::Result {
    write!(out, "{handle_text}.end")
}

/// Part of an event ID behind the handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    /// The last event that the client has. Numbers beyond 64 bits count as the largest.
    Seq(Seq),
    /// The stream was already gone at the last request of the client.
    End,
}

/// An event ID as a client sent it: well-formed, not verified.
#[derive(Clone)]
pub struct EventId {
    handle: Box<str>,
    cursor: Cursor,
    is_adopted: bool,
    content: Option<Content>,
}

impl EventId {
    /// Parses an event ID. Returns `None` if the format is not the proxy's.
    ///
    /// A well-formed event ID has a handle of 51 to 563 characters of base64url, a dot, and `end`
    /// or up to 20 digits. A dot and up to 20 letters or digits may follow. A handle with
    /// unreadable contents or an invalid signature is well-formed too.
    pub fn parse(text: &[u8]) -> Option<Self> {
        const MAX_LEN: usize = MAX_HANDLE_LEN + 2 * (1 + MAX_NUMBER_LEN);
        if text.len() > MAX_LEN {
            return None;
        }
        let (handle, place) = std::str::from_utf8(text).ok()?.split_once('.')?;
        let (cursor, is_adopted) = parse_place(place)?;
        Some(Self { cursor, is_adopted, ..Self::of_handle(handle)? })
    }

    /// Parses the handle in a stream URL or a resume token, and returns the place before the first
    /// event of its stream. Returns `None` as [`Self::parse`] does.
    pub fn of_handle(handle: &str) -> Option<Self> {
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let right_size = (MIN_HANDLE_LEN..=MAX_HANDLE_LEN).contains(&handle.len());
        if !right_size || !handle.bytes().all(is_base64url) {
            return None;
        }
        let content = URL_SAFE_NO_PAD.decode(handle).ok().and_then(Content::parse);
        Some(Self { handle: handle.into(), cursor: Cursor::Seq(Seq(0)), is_adopted: false, content })
    }

    /// Returns true if both claim to name the same stream.
    pub fn names_stream_of(&self, other: &Self) -> bool {
        let stream = |id: &Self| id.content.as_ref().map(|content| content.stream);
        self.handle == other.handle || (stream(self).is_some() && stream(self) == stream(other))
    }

    /// Returns the owner in the handle, unverified, or `None` if the handle cannot be parsed. It
    /// serves routing alone.
    pub fn unverified_owner(&self) -> Option<Owner> {
        Some(self.content.as_ref()?.owner)
    }

    /// Returns the kind of stream that the handle claims to name, or `None` if the handle cannot be
    /// read.
    pub fn unverified_kind(&self) -> Option<StreamKind> {
        Some(self.content.as_ref()?.kind)
    }

    /// Returns the requests in the handle, unverified, for a response to its sender.
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

    /// Returns the contents of the event ID if any of `keys` signed its handle. MACs are compared
    /// in constant time. Returns `None` also for [`Cursor::End`], which names no place in a stream.
    /// Returns `None` for the stream of a task, which no client reads by its events.
    pub fn verify(&self, keys: &Keyring) -> Option<Verified> {
        self.verify_contents(keys).filter(|verified| verified.kind != StreamKind::Task)
    }

    /// Does as [`Self::verify`] for the handle of a task's stream, and of no other.
    pub fn verify_task(&self, keys: &Keyring) -> Option<Verified> {
        self.verify_contents(keys).filter(|verified| verified.kind == StreamKind::Task)
    }

    fn verify_contents(&self, keys: &Keyring) -> Option<Verified> {
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
    /// The replica that created the stream.
    pub owner: Owner,
    /// The epoch of the store at the creation of the stream.
    pub epoch: StoreEpoch,
    /// Kind of the stream.
    pub kind: StreamKind,
    /// The last event that the client has. It is not signed and may be beyond the tail.
    pub seq: Seq,
    /// True if another replica logged that event after the writer's death. It is not signed either.
    pub is_adopted: bool,
    /// The requests of the stream.
    pub requests: Requests,
    /// The handle, for further event IDs.
    pub handle: Handle,
}

/// Parses `<digits>`, `<digits>.<attach>`, `<digits>.adopted…` or `end`. Returns the cursor, and
/// true for the third form.
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

/// The second byte of a handle: the kind of the stream, and the form of its request ids.
#[derive(Clone, Copy)]
enum Shape {
    Standalone = 0,
    One = 1,
    Batch = 2,
    /// A request stream whose ids were left out.
    Unnamed = 3,
    Task = 4,
    /// A request for the state of a task.
    Poll = 5,
}

impl Shape {
    fn of<'a>(kind: StreamKind, mut ids: impl ExactSizeIterator<Item = &'a RequestId>, batch: bool) -> Self {
        let size = |id: &RequestId| text_of(id).1.len();
        let has_one = ids.len() == 1;
        let mut is_short = || has_one && ids.next().is_some_and(|id| size(id) <= MAX_ID_BYTES);
        match kind {
            StreamKind::Standalone => Self::Standalone,
            StreamKind::Task => {
                if is_short() {
                    Self::Poll
                } else {
                    Self::Task
                }
            }
            StreamKind::Request if batch => {
                let total: usize = ids.map(|id| size(id).max(1)).sum();
                if total <= MAX_BATCH_ID_BYTES { Self::Batch } else { Self::Unnamed }
            }
            StreamKind::Request => {
                if is_short() {
                    Self::One
                } else {
                    Self::Unnamed
                }
            }
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let all = [Self::Standalone, Self::One, Self::Batch, Self::Unnamed, Self::Task, Self::Poll];
        all.into_iter().find(|shape| *shape as u8 == byte)
    }
}

/// The parts of a handle, unverified.
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
            Shape::Task => (StreamKind::Task, Requests::Unknown),
            Shape::Poll => (StreamKind::Task, Requests::One(one(parse_ids(ids)?)?)),
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

/// Writes an id. The caller has checked its size against [`MAX_BATCH_ID_BYTES`], so it fits the
/// length byte.
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
            // It is written as JSON again, so it must be a number.
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
