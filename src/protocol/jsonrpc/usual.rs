//! Peek at a message in its usual form, in one pass over its bytes, at a fraction of a parser's
//! cost.
//!
//! Usual is one object whose own names, ID and method are plain ASCII without escapes, and whose
//! names are not repeated. Payloads are validated as the parser validates them, and skipped.
//! Invariant: the message that is found here equals the message that the parser finds. Everything
//! else is left to the parser, all errors included.

use std::borrow::Cow;
use std::ops::Range;

use super::{META_VERSION, Message, RequestId, method_name};

/// Depth of nesting that is followed here: a bit for each level.
const MAX_DEPTH: u32 = u64::BITS;

/// A message with facts about its payload.
pub(super) struct Usual {
    pub(super) message: Message,
    /// True if a name in the payload may be that of the protocol revision in `_meta`.
    pub(super) may_name_version: bool,
    /// Place of the text of `params.name`, or `None` if that is absent, has escapes, or is no
    /// string.
    pub(super) name: Option<Range<usize>>,
}

/// Returns the message that `bytes` are, or `None` if the parser has to decide.
pub(super) fn peek(bytes: &[u8]) -> Option<Usual> {
    let mut reader = Reader { bytes, at: 0, may_name_version: false, name: None };
    let members = reader.members()?;
    let message = members.into_message()?;
    Some(Usual { message, may_name_version: reader.may_name_version, name: reader.name })
}

/// The members that decide the kind of a message.
#[derive(Default)]
struct Members<'a> {
    has_version: bool,
    id: Option<Id<'a>>,
    method: Option<&'a str>,
    /// True for a result, and for an error false. Neither is null.
    payload: Option<bool>,
}

#[derive(Clone, Copy)]
enum Id<'a> {
    Number(&'a str),
    String(&'a str),
}

impl Members<'_> {
    fn into_message(self) -> Option<Message> {
        if !self.has_version {
            return None;
        }
        let id = self.id.map(|id| match id {
            Id::Number(text) => RequestId::Number(text.into()),
            Id::String(text) => RequestId::String(text.into()),
        });
        match (self.method, id, self.payload) {
            (Some(method), id, None) => {
                let method = method_name(Cow::Borrowed(method));
                Some(match id {
                    Some(id) => Message::Request { id, method },
                    None => Message::Notification { method },
                })
            }
            (None, Some(id), Some(is_result)) => Some(Message::Response { id: Some(id), is_error: !is_result }),
            _ => None,
        }
    }
}

/// Reads JSON. Each method returns `None` for anything that it does not read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    may_name_version: bool,
    name: Option<Range<usize>>,
}

impl<'a> Reader<'a> {
    /// Reads an object that is all of the bytes.
    fn members(&mut self) -> Option<Members<'a>> {
        let mut members = Members::default();
        self.skip_space();
        self.take(b'{')?;
        loop {
            self.skip_space();
            let name = self.plain_string()?;
            self.skip_space();
            self.take(b':')?;
            self.skip_space();
            let is_first = match name {
                b"jsonrpc" => {
                    let is_version_2 = self.plain_string()? == b"2.0";
                    is_version_2 && !std::mem::replace(&mut members.has_version, true)
                }
                b"id" => members.id.replace(self.id()?).is_none(),
                b"method" => members.method.replace(text(self.plain_string()?)?).is_none(),
                b"result" => members.payload.replace(self.payload(true)?).is_none(),
                b"error" => members.payload.replace(self.payload(false)?).is_none(),
                b"params" => {
                    self.skip_params()?;
                    true
                }
                _ => {
                    self.skip_value()?;
                    true
                }
            };
            if !is_first {
                return None;
            }
            self.skip_space();
            match self.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        self.skip_space();
        if self.at == self.bytes.len() { Some(members) } else { None }
    }

    fn id(&mut self) -> Option<Id<'a>> {
        if self.peek()? == b'"' {
            return text(self.plain_string()?).map(Id::String);
        }
        let begin = self.at;
        self.skip_number()?;
        text(&self.bytes[begin..self.at]).map(Id::Number)
    }

    /// Skips a result or an error. Null is left to the parser.
    fn payload(&mut self, is_result: bool) -> Option<bool> {
        if self.peek()? == b'n' {
            return None;
        }
        self.skip_value()?;
        Some(is_result)
    }

    /// Skips parameters, and notes the place of their name. Of a repeated member the last one
    /// counts. A name with escapes is left to the parser, because it may be spelled so.
    fn skip_params(&mut self) -> Option<()> {
        self.name = None;
        if self.peek()? != b'{' {
            return self.skip_value();
        }
        self.at += 1;
        self.skip_space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            let name = self.skip_name()?;
            let begin = self.at;
            self.skip_value()?;
            if name == b"name" {
                self.name = self.plain_text(begin..self.at);
            } else if name.contains(&b'\\') {
                return None;
            }
            self.skip_space();
            match self.next()? {
                b',' => self.skip_space(),
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Returns the place of the text of a string without escapes.
    fn plain_text(&self, value: Range<usize>) -> Option<Range<usize>> {
        let text = self.bytes[value.clone()].strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if text.contains(&b'\\') { None } else { Some(value.start + 1..value.end - 1) }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        if self.next()? == wanted { Some(()) } else { None }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes a short string of ASCII without escapes, and returns it without its quotes.
    fn plain_string(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| !matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~'))?;
        self.at += end;
        self.take(b'"')?;
        Some(&rest[..end])
    }

    /// Skips a value of any kind.
    fn skip_value(&mut self) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' => self.skip_nested(),
            _ => self.skip_flat(),
        }
    }

    /// Skips a value that is no object and no array.
    fn skip_flat(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.skip_string(),
            b'-' | b'0'..=b'9' => self.skip_number(),
            b't' => self.skip_word(b"true"),
            b'f' => self.skip_word(b"false"),
            b'n' => self.skip_word(b"null"),
            _ => None,
        }
    }

    /// Skips an object or an array.
    fn skip_nested(&mut self) -> Option<()> {
        // The lowest bit is the innermost level: 1 for an object.
        let (mut objects, mut depth) = (0_u64, 0);
        loop {
            // A value begins here.
            match self.peek()? {
                open @ (b'{' | b'[') => {
                    if depth == MAX_DEPTH {
                        return None;
                    }
                    self.at += 1;
                    depth += 1;
                    objects = objects << 1 | u64::from(open == b'{');
                    self.skip_space();
                    let close = if open == b'{' { b'}' } else { b']' };
                    if self.peek()? != close {
                        if open == b'{' {
                            self.skip_name()?;
                        }
                        continue;
                    }
                    // Closed below, as one behind a value.
                }
                _ => self.skip_flat()?,
            }
            // A value, or the beginning of an empty one, is behind.
            loop {
                self.skip_space();
                let is_object = objects & 1 == 1;
                match self.next()? {
                    b',' => {
                        self.skip_space();
                        if is_object {
                            self.skip_name()?;
                        }
                        break;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ => return None,
                }
                objects >>= 1;
                depth -= 1;
                if depth == 0 {
                    return Some(());
                }
            }
        }
    }

    /// Skips the name of a member, up to its value. Returns it as it is spelled.
    fn skip_name(&mut self) -> Option<&'a [u8]> {
        let begin = self.at;
        self.skip_string()?;
        let name = &self.bytes[begin + 1..self.at - 1];
        self.may_name_version |= name.len() >= META_VERSION.len() && is_version_name(name);
        self.skip_space();
        self.take(b':')?;
        self.skip_space();
        Some(name)
    }

    /// Skips a string. Its bytes need not be UTF-8, as for the parser.
    fn skip_string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            self.skip_plain();
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => match self.next()? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                    b'u' => {
                        let digits = self.bytes.get(self.at..self.at + 4)?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return None;
                        }
                        self.at += 4;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    /// Skips the bytes of a string up to a quote, a backslash or a control character.
    fn skip_plain(&mut self) {
        const ONES: u64 = u64::MAX / 255;
        const HIGH: u64 = ONES << 7;
        // Sets the high bit of the first byte below `limit`, and of no byte before it.
        let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
        while let Some(word) = self.bytes[self.at..].first_chunk::<8>() {
            let word = u64::from_le_bytes(*word);
            let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
            let found = below(word, 0x20) | is(b'"') | is(b'\\');
            if found != 0 {
                self.at += (found.trailing_zeros() / 8) as usize;
                return;
            }
            self.at += 8;
        }
        while self.peek().is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
            self.at += 1;
        }
    }

    fn skip_word(&mut self, word: &[u8]) -> Option<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return None;
        }
        self.at += word.len();
        Some(())
    }

    fn skip_number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.skip_some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.skip_some_digits()?;
        }
        Some(())
    }

    fn skip_some_digits(&mut self) -> Option<()> {
        if !self.next()?.is_ascii_digit() {
            return None;
        }
        self.skip_digits();
        Some(())
    }

    fn skip_digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }
}

/// Returns true if a name without its quotes may be that of the revision in `_meta`: it is the
/// name, or may be with an escape.
fn is_version_name(name: &[u8]) -> bool {
    name == META_VERSION.as_bytes() || memchr::memchr(b'\\', name).is_some()
}

fn text(ascii: &[u8]) -> Option<&str> {
    str::from_utf8(ascii).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::Config;

    use super::*;
    use crate::jsonrpc::{Body, meta_protocol_version, parsed_up_to, tool_name, tool_name_at};

    /// Checks that a message found here is the parser's. Returns true if one was found.
    fn agrees(bytes: &[u8]) -> bool {
        let Some(Usual { message, may_name_version, name }) = peek(bytes) else { return false };
        assert_eq!(parsed_up_to(bytes, usize::MAX), Ok(Body::Single(message)), "{}", bytes.escape_ascii());
        assert!(may_name_version || meta_protocol_version(bytes).is_none(), "{}", bytes.escape_ascii());
        let tool = tool_name_at(bytes, name.as_ref()).map(Cow::into_owned);
        assert_eq!(tool, tool_name(bytes), "{}", bytes.escape_ascii());
        true
    }

    #[test]
    fn usual_messages_are_found() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"a":[1,-2.5e+3,{}]}}}"#,
            r#" { "id" : "a" , "jsonrpc" : "2.0" , "method" : "ping" } "#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":0.5}}"#,
            r#"{"jsonrpc":"2.0","id":-1.0E2,"result":{"content":[{"text":"\u00e9 \"quoted\" \\"}],"isError":false}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a/method/of/its/own"}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"Größe","data":null}}"#,
        ] {
            assert!(agrees(message.as_bytes()), "{message}");
        }
        let invalid_utf8 = [br#"{"jsonrpc":"2.0","id":1,"result":""#, &[0xFF, 0xFE][..], br#""}"#].concat();
        assert!(agrees(&invalid_utf8));
    }

    #[test]
    fn all_else_is_left_to_the_parser() {
        for message in [
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"p\u0069ng"}"#,
            r#"{"jsonrpc":"2.0","i\u0064":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1,]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[}]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"\x"}"#,
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":\"\n\"}",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping""#,
            "{}",
            "",
        ] {
            assert!(!agrees(message.as_bytes()), "{message}");
        }
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#, "[".repeat(65), "]".repeat(65));
        assert!(!agrees(deep.as_bytes()));
    }

    #[test]
    fn the_revision_in_the_meta_of_a_message_is_noticed() {
        for name in ["io.modelcontextprotocol/protocolVersion", r"io.modelcontextprotocol\/protocolVersion"] {
            let message =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{{"{name}":"x"}}}}}}"#);
            assert!(peek(message.as_bytes()).is_some_and(|usual| usual.may_name_version), "{name}");
        }
    }

    proptest! {
        #![proptest_config(Config { cases: 4096, ..Config::default() })]

        /// Pieces of JSON in any order are read as the parser reads them.
        #[test]
        fn any_pieces_agree_with_the_parser(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..14),
            spaced in any::<bool>(),
        ) {
            let inner: Vec<u8> = pieces.concat();
            let space: &[u8] = if spaced { b" \n" } else { b"" };
            for (begin, end) in [
                (&br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"#[..], &b"}"[..]),
                (br#"{"jsonrpc":"2.0","id":1,"#, b"}"),
                (b"{", b"}"),
                (b"", b""),
            ] {
                agrees(&[begin, space, &inner, space, end].concat());
            }
        }

        /// One changed byte of a message is read as the parser reads it.
        #[test]
        fn a_changed_byte_agrees_with_the_parser(at in 0_usize..150, byte in any::<u8>()) {
            let mut message = br#"{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"t","arguments":{"text":"a \"b\" \u00e9","n":[1.5e-3,true,null,{}]}}}"#.to_vec();
            assert!(agrees(&message));
            if let Some(changed) = message.get_mut(at) {
                *changed = byte;
            }
            agrees(&message);
        }
    }

    const PIECES: [&[u8]; 30] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"\\u00",
        b"e9",
        b"-",
        b"0",
        b"12",
        b".",
        b"5",
        b"e",
        b"E+",
        b"true",
        b"false",
        b"null",
        b"\"a\"",
        b"\"a\":",
        b"\"id\":",
        b"\"result\":",
        b"\"method\":\"ping\"",
        b"\"jsonrpc\":\"2.0\"",
        b" ",
        b"\x1f",
        b"\xff",
        b"\"error\":{}",
    ];
}
