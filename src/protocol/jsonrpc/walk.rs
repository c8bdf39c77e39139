//! Walks over JSON to a member, or from one message to the next, without building values.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

pub(super) fn find<'a>(bytes: &'a [u8], path: &'static [&'static str]) -> Option<&'a RawValue> {
    from_slice(bytes, Find { path, in_batch: false })?
}

/// Finds a member in the first message of a batch that has it.
pub(super) fn find_in_batch<'a>(bytes: &'a [u8], path: &'static [&'static str]) -> Option<&'a RawValue> {
    from_slice(bytes, Find { path, in_batch: true })?
}

/// Calls `visit` with each message of a body as JSON text: each of an array, or the only one.
/// Returns false if the body is not JSON; messages before the error have been visited then.
#[must_use]
pub fn for_each_message<'a>(bytes: &'a [u8], mut visit: impl FnMut(&'a str)) -> bool {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return from_slice(bytes, Elements(visit)).is_some();
    }
    serde_json::from_slice::<&RawValue>(bytes).map(|only| visit(only.get())).is_ok()
}

/// Calls `visit` with each element of an array, and never for any other value.
pub fn for_each_element<'a>(array: &'a str, visit: impl FnMut(&'a str)) {
    from_slice(array.as_bytes(), Elements(visit));
}

/// Returns the first result of `find` over the messages of a body, or `None` without a result, or
/// if the body is not JSON.
pub fn find_message<'a, T>(bytes: &'a [u8], mut find: impl FnMut(&'a str) -> Option<T>) -> Option<T> {
    let mut found = None;
    let is_json = for_each_message(bytes, |message| {
        if found.is_none() {
            found = find(message);
        }
    });
    if is_json { found } else { None }
}

/// Calls the function with each element of an array.
struct Elements<F>(F);

impl<'de, F: FnMut(&'de str)> DeserializeSeed<'de> for Elements<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&'de str)> Visitor<'de> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element::<&'de RawValue>()? {
            (self.0)(element.get());
        }
        Ok(())
    }
}

/// Follows a path of members. Of a repeated member the last one counts, as in every server's JSON
/// parser.
#[derive(Clone, Copy)]
struct Find {
    path: &'static [&'static str],
    /// True if the object may be an element of an array. The first element with the member counts.
    in_batch: bool,
}

impl<'de> DeserializeSeed<'de> for Find {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.path {
            [] => <&RawValue>::deserialize(deserializer).map(Some),
            [..] => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Find {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(wanted) = map.next_key_seed(Named(self.path[0]))? {
            if wanted {
                found = map.next_value_seed(Self { path: &self.path[1..], in_batch: false })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        if self.in_batch {
            let each = Self { in_batch: false, ..self };
            while found.is_none() {
                match list.next_element_seed(each)? {
                    Some(here) => found = here,
                    None => break,
                }
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Compares a key with this name.
struct Named(&'static str);

impl<'de> DeserializeSeed<'de> for Named {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Named {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

pub(super) fn from_slice<'a, T: DeserializeSeed<'a>>(bytes: &'a [u8], seed: T) -> Option<T::Value> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(value)
}
