//! Second IDs of a message: members whose name is `id` in other letters.
//!
//! Some servers ignore the case of letters, and read the last of such members. On a channel of
//! several callers it could name the request of another.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Returns true if a message has a second ID.
pub fn has_second_id(text: &[u8]) -> bool {
    let is_second = |key: &String| key != "id" && key.eq_ignore_ascii_case("id");
    serde_json::from_slice::<Keys>(text).is_ok_and(|Keys(keys)| keys.iter().any(is_second))
}

/// Keys of an object.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some(key) = map.next_key()? {
            map.next_value::<IgnoredAny>()?;
            keys.push(key);
        }
        Ok(Keys(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_other_letters_is_seen() {
        for text in [r#"{"id":1,"ID":2}"#, r#"{"Id":2,"id":1}"#, "{\"\\u0049D\":2}"] {
            assert!(has_second_id(text.as_bytes()), "{text}");
        }
        for text in [r#"{"id":1,"result":{"ID":2}}"#, r#"{"id":1,"idx":2}"#, "[1]", "{"] {
            assert!(!has_second_id(text.as_bytes()), "{text}");
        }
    }
}
