//! First and last bytes of a message that is not read as a whole. They prove its kind and its ID.
//!
//! A server may send a message larger than the limit. It is dropped while it arrives, and the call
//! that waits for it has to end. Its ID stands before or behind the payload, so these two ends are
//! kept. A kind or an ID counts only if a member of the message itself gives it, whole and in the
//! excerpt. An `"id"` in a string or in a nested value does not count. Absent: validation. In bytes
//! that are no JSON the excerpt may show a message that does not exist.

use bytes::Bytes;

use super::jsonrpc::{RequestId, leading_members, trailing_members};

/// Most bytes that are kept of either end of a message.
pub const EXCERPT: usize = 1024;

/// Kind of a message, with its ID if that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A response.
    Response(Option<RequestId>),
    /// A request with an ID, or else a notification or a request.
    Request(Option<RequestId>),
    /// A message of an unknown kind, or an array.
    Unknown(Option<RequestId>),
    /// No message.
    Garbage,
}

/// The ends of a message.
#[derive(Clone, Debug, Default)]
pub struct Excerpt {
    form: Form,
    id: Id,
    is_version_2: bool,
    is_response: bool,
    is_request: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Form {
    #[default]
    Unknown,
    Object,
    Array,
    /// Neither an object nor an array.
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Id {
    #[default]
    Unknown,
    Known(RequestId),
    /// The two ends have different ones.
    Ambiguous,
}

impl Excerpt {
    /// Reads the beginning of a message.
    pub fn of_first(first: &[u8]) -> Self {
        let form = match first.trim_ascii_start().first() {
            None => Form::Unknown,
            Some(b'{') => Form::Object,
            Some(b'[') => Form::Array,
            Some(_) => Form::Other,
        };
        let mut excerpt = Self { form, ..Self::default() };
        if form == Form::Object {
            leading_members(first, &mut |name, value| excerpt.note(&name, value));
        }
        excerpt
    }

    /// Reads the end of the message.
    pub fn add_last(&mut self, last: &[u8]) {
        if self.form != Form::Object {
            return;
        }
        let mut end = Self::default();
        trailing_members(last, &mut |name, value| {
            // Of a repeated member the last one counts, which comes first here.
            if name != "id" || end.id == Id::Unknown {
                end.note(&name, value);
            }
        });
        self.is_version_2 |= end.is_version_2;
        self.is_response |= end.is_response;
        self.is_request |= end.is_request;
        self.id = match (std::mem::take(&mut self.id), end.id) {
            (Id::Unknown, id) | (id, Id::Unknown) => id,
            (one, other) if one == other => one,
            _ => Id::Ambiguous,
        };
    }

    /// Returns the kind of the message.
    pub fn kind(&self) -> Kind {
        let id = match &self.id {
            Id::Known(id) => Some(id.clone()),
            Id::Unknown | Id::Ambiguous => None,
        };
        match self.form {
            Form::Other => Kind::Garbage,
            Form::Object if self.is_response => Kind::Response(id),
            Form::Object if self.is_request => Kind::Request(id),
            Form::Object | Form::Array | Form::Unknown => Kind::Unknown(id),
        }
    }

    /// Returns true if the message declares JSON-RPC 2.0.
    pub fn is_version_2(&self) -> bool {
        self.is_version_2
    }

    fn note(&mut self, name: &str, value: Option<&[u8]>) {
        match name {
            "jsonrpc" => self.is_version_2 |= value == Some(br#""2.0""#),
            "id" => {
                let text = value.and_then(|value| std::str::from_utf8(value).ok());
                if let Some(id) = text.and_then(RequestId::from_json) {
                    self.id = Id::Known(id);
                }
            }
            "result" | "error" => self.is_response = true,
            // A null counts as absent, as for most readers.
            "method" | "params" => self.is_request |= value != Some(b"null"),
            _ => {}
        }
    }
}

/// The last bytes of a message, at most [`EXCERPT`].
#[derive(Clone, Debug, Default)]
pub struct LastBytes(Vec<u8>);

impl LastBytes {
    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(EXCERPT)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(EXCERPT);
        self.0.drain(..surplus);
        self.0.extend_from_slice(bytes);
    }
}

impl From<LastBytes> for Bytes {
    fn from(last: LastBytes) -> Self {
        last.0.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Payload that leaves no other member in the same end of the message.
    fn pad() -> String {
        "x".repeat(4 * EXCERPT)
    }

    /// Reads the ends of a message.
    fn read(message: &str) -> Kind {
        let bytes = message.as_bytes();
        let mut excerpt = Excerpt::of_first(&bytes[..bytes.len().min(EXCERPT)]);
        excerpt.add_last(&bytes[bytes.len().saturating_sub(EXCERPT)..]);
        excerpt.kind()
    }

    /// Reads the beginning of a message alone.
    fn begun(message: &str) -> Kind {
        Excerpt::of_first(&message.as_bytes()[..message.len().min(EXCERPT)]).kind()
    }

    fn id(json: &str) -> Option<RequestId> {
        RequestId::from_json(json)
    }

    #[test]
    fn the_id_is_read_at_either_end() {
        for text in ["7", "-1.5e3", r#""a \" b""#, r#""\u0069d""#, r#""""#] {
            let first = format!(r#"{{"jsonrpc":"2.0","id":{text},"result":{{"text":"{}"}}}}"#, pad());
            assert_eq!((read(&first), begun(&first)), (Kind::Response(id(text)), Kind::Response(id(text))), "{text}");
            let last = format!(r#" {{ "result" : {{"text":"{}"}} , "jsonrpc":"2.0", "id" : {text} }} "#, pad());
            assert_eq!((read(&last), begun(&last)), (Kind::Response(id(text)), Kind::Response(None)), "{text}");
            let error = format!(r#"{{"error":{{"code":1,"message":"{}"}},"id":{text}}}"#, pad());
            assert_eq!(read(&error), Kind::Response(id(text)), "{text}");
        }
    }

    #[test]
    fn members_of_nested_values_and_strings_are_none() {
        let pad = pad();
        for message in [
            format!(r#"{{"result":{{"id":1,"text":"{pad}","id":2}}}}"#),
            format!(r#"{{"result":[{{"id":1}},"{pad}",{{"id":2}}]}}"#),
            format!(r#"{{"result":{{"a":"\",\"id\":1,\"{pad}\",\"id\":2"}}}}"#),
            format!(r#"{{"result":"{pad}\\\",\"id\":2"}}"#),
            format!(r#"{{"result":"{pad}","note":"\"id\":2","x":{{"id":3}},"y":[{{"id":4}}]}}"#),
            // The end begins within a name, a number, a string, or behind an escape.
            format!(r#"{{"result":"{pad}","{}id":7}}"#, "y".repeat(EXCERPT - 6)),
            format!(r#"{{"result":"{pad}","id":{}7}}"#, "1".repeat(EXCERPT)),
            format!(r#"{{"result":"{pad}","id":"{}7"}}"#, "1".repeat(EXCERPT)),
            format!(r#"{{"result":"{pad}","\"id":7{}}}"#, " ".repeat(EXCERPT - 7)),
            format!(r#"{{"result":"{pad}","\\\"id":7{}}}"#, " ".repeat(EXCERPT - 7)),
            // The beginning ends within a number.
            format!(r#"{{"result":1,"note":"{}","id":123456789,"text":"{pad}"}}"#, "y".repeat(EXCERPT - 33)),
        ] {
            assert_eq!(read(&message), Kind::Response(None), "{message}");
        }
    }

    #[test]
    fn a_message_of_the_server_itself_is_no_response() {
        let pad = pad();
        let request = format!(r#"{{"method":"sampling/createMessage","params":{{"id":1,"text":"{pad}"}},"id":5}}"#);
        assert_eq!((begun(&request), read(&request)), (Kind::Request(None), Kind::Request(id("5"))));
        let late = format!(r#"{{"jsonrpc":"2.0","id":5,"params":{{"text":"{pad}"}},"method":"elicitation/create"}}"#);
        assert_eq!((begun(&late), read(&late)), (Kind::Request(id("5")), Kind::Request(id("5"))));
        let notification =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{pad}"}}}}"#);
        assert_eq!(read(&notification), Kind::Request(None));
        let response = format!(r#"{{"id":5,"method":null,"result":"{pad}"}}"#);
        assert_eq!(read(&response), Kind::Response(id("5")));
    }

    #[test]
    fn other_text_proves_nothing() {
        let pad = pad();
        for (message, kind) in [
            (format!("log {pad} {{\"id\":1,\"result\":2}}"), Kind::Garbage),
            (format!(r#"[{{"id":1,"result":2}},"{pad}",{{"id":1,"result":2}}]"#), Kind::Unknown(None)),
            (format!(r#"{{"x":"{pad}","id":1}}"#), Kind::Unknown(id("1"))),
            (format!(r#"{{"result":"{pad}","id":null}}"#), Kind::Response(None)),
            (format!(r#"{{"id":1,"result":"{pad}","id":2}}"#), Kind::Response(None)),
            (format!(r#"{{"id":1,"result":"{pad}","id":1}}"#), Kind::Response(id("1"))),
            (format!(r#"{{"result":"{pad}","id":1"#), Kind::Response(None)),
            (format!(r#"{{"result":{{"a":[}}],"x":"{pad}"}},"id":1}}"#), Kind::Response(id("1"))),
            (" ".repeat(3000), Kind::Unknown(None)),
            (String::new(), Kind::Unknown(None)),
        ] {
            assert_eq!(read(&message), kind, "{message}");
        }
    }

    #[test]
    fn the_last_bytes_do_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
        for size in [1, 7, EXCERPT - 1, EXCERPT, EXCERPT + 1, 5000] {
            let mut last = LastBytes::default();
            bytes.chunks(size).for_each(|piece| last.push(piece));
            assert_eq!(Bytes::from(last), bytes[bytes.len() - EXCERPT..], "pieces of {size}");
        }
    }

    /// Values with names and texts that look like members of a message.
    fn value() -> impl Strategy<Value = Value> {
        let text = prop::collection::vec(
            prop::sample::select(vec!["\"", "\\", "id", "\":1", ",", "{", "}", "[", "]", "result", ":", "é", "\n"]),
            0..12,
        );
        let leaf = prop_oneof![
            text.prop_map(|pieces| json!(pieces.concat())),
            any::<i32>().prop_map(|number| json!(number)),
            Just(json!(null)),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let name = prop::sample::select(vec!["id", "result", "method", "a\"id", "\\"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((name, inner), 0..4)
                    .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_id_that_is_read_is_that_of_the_message(
            values in prop::collection::vec(value(), 4),
            order in Just(vec!["id", "result", "x", "y", "pad"]).prop_shuffle(),
            number: u32,
            has_id: bool,
            length in 0..3 * EXCERPT,
            pretty: bool,
        ) {
            let mut members = Vec::new();
            for (name, value) in order.iter().zip(values.iter().cycle()) {
                let value = match *name {
                    "id" if has_id => json!(number),
                    "id" => continue,
                    "pad" => json!("\"id\":1,".repeat(length / 7)),
                    _ => value.clone(),
                };
                members.push(format!("{}{}: {value}", if pretty { "\n  " } else { "" }, json!(name)));
            }
            let message = format!("{{{}}}", members.join(","));
            let whole: Value = serde_json::from_str(&message).expect("JSON");
            let (Kind::Response(id) | Kind::Unknown(id)) = read(&message) else { panic!("a kind that it has not") };
            if let Some(id) = id {
                prop_assert_eq!(Some(id.to_json()), whole.get("id").map(Value::to_string));
            } else if message.len() <= EXCERPT {
                prop_assert!(!has_id, "an excerpt with the whole message has its ID");
            }
        }

        #[test]
        fn any_bytes_are_read(first in prop::collection::vec(any::<u8>(), 0..64), last in r#"[\{\}\[\]",:\\id17 ]{0,64}"#) {
            let mut excerpt = Excerpt::of_first(&first);
            excerpt.add_last(last.as_bytes());
            excerpt.kind();
            let mut excerpt = Excerpt::of_first(format!("{{{last}").as_bytes());
            excerpt.add_last(format!("{last}}}").as_bytes());
            excerpt.kind();
        }
    }
}
