//! Removes and replaces members of a message. Every other byte stays unchanged.

use std::fmt;
use std::ops::Range;

use bytes::{Buf, Bytes};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::walk::{find, for_each_message, from_slice};

/// Returns the value at a path of members, as JSON text.
pub fn member<'a>(bytes: &'a [u8], path: &'static [&'static str]) -> Option<&'a str> {
    find(bytes, path).map(RawValue::get)
}

/// Returns the value at a path of members, or `None` for a value of another type.
pub fn parsed_member<T: DeserializeOwned>(bytes: &[u8], path: &'static [&'static str]) -> Option<T> {
    serde_json::from_str(member(bytes, path)?).ok()
}

/// Returns the string at a path of members, or `None` for another value.
pub fn string_member(bytes: &[u8], path: &'static [&'static str]) -> Option<String> {
    parsed_member(bytes, path)
}

/// Returns the messages of a body as JSON text: each of an array, or the only one.
pub fn messages(bytes: &[u8]) -> Vec<&str> {
    let mut messages = Vec::new();
    let is_json = for_each_message(bytes, |message| messages.push(message));
    if is_json { messages } else { Vec::new() }
}

/// Returns the range of `part`, a slice of `whole`, in it.
pub fn span(whole: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Replaces these ranges of `bytes`, which do not overlap.
pub fn splice(bytes: &[u8], mut splices: Vec<(Range<usize>, String)>) -> Vec<u8> {
    splices.sort_by_key(|(place, _)| place.start);
    let mut spliced = Vec::with_capacity(bytes.len() + splices.iter().map(|(_, text)| text.len()).sum::<usize>());
    let mut copied = 0;
    for (place, text) in splices {
        spliced.extend_from_slice(&bytes[copied..place.start]);
        spliced.extend_from_slice(text.as_bytes());
        copied = place.end;
    }
    spliced.extend_from_slice(&bytes[copied..]);
    spliced
}

/// Returns the insertion of `members`, as JSON text, at the beginning of `object`, a part of
/// `whole`. Returns `None` if that is no object.
pub fn first_members(whole: &[u8], object: &str, members: &str) -> Option<(Range<usize>, String)> {
    let rest = object.strip_prefix('{')?;
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    let at = span(whole, object).start + 1;
    Some((at..at, format!("{members}{comma}")))
}

/// Splices in pieces, without copies of `bytes`. Returns the first piece and the following ones.
/// The ranges must be in order.
pub fn splice_apart(mut bytes: Bytes, splices: Vec<(Range<usize>, String)>) -> (Bytes, Vec<Bytes>) {
    let mut pieces = Vec::with_capacity(splices.len() * 2);
    let first = bytes.split_to(splices.first().map_or(bytes.len(), |(place, _)| place.start));
    let mut before = first.len();
    for (place, text) in splices {
        if place.start > before {
            pieces.push(bytes.split_to(place.start - before));
        }
        pieces.push(text.into());
        bytes.advance(place.len());
        before = place.end;
    }
    if !bytes.is_empty() {
        pieces.push(bytes);
    }
    (first, pieces)
}

/// Returns `bytes` without the members `names` of the object at `path`, repeated ones included.
/// Returns `None` without such an object or such members.
pub fn without_members(bytes: &[u8], path: &'static [&'static str], names: &[&str]) -> Option<Vec<u8>> {
    let object = find(bytes, path)?.get();
    let members = from_slice(object.as_bytes(), Members)?;
    let kept: Vec<_> = members.iter().filter(|(name, _)| !names.contains(&name.as_str())).collect();
    if kept.len() == members.len() {
        return None;
    }
    let start = object.as_ptr().addr() - bytes.as_ptr().addr();
    let mut edited = bytes[..start].to_vec();
    edited.push(b'{');
    for (index, (name, value)) in kept.into_iter().enumerate() {
        if index > 0 {
            edited.push(b',');
        }
        edited.extend_from_slice(serde_json::Value::from(name.as_str()).to_string().as_bytes());
        edited.push(b':');
        edited.extend_from_slice(value.get().as_bytes());
    }
    edited.push(b'}');
    edited.extend_from_slice(&bytes[start + object.len()..]);
    Some(edited)
}

/// The members of an object in their order.
struct Members;

impl<'de> DeserializeSeed<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}
