//! JSON as lenient parsers read it: with a byte order mark before it, with the `NaN` and `Infinity`
//! that Python's `json` writes and reads, and with strings that are no UTF-8.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{Body, Message, PeekError, member, peek, span};

/// UTF-8 form of U+FEFF.
pub const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Words that are no JSON, each with JSON of the same length. The minus before `-Infinity` stays.
const WORDS: [(&[u8], &[u8]); 2] = [(b"NaN", b"0  "), (b"Infinity", b"0       ")];

/// Parses a body as [`peek`] does, or else a single response as lenient parsers read it.
///
/// # Errors
/// The error of [`peek`].
pub fn peek_any(bytes: &[u8]) -> Result<Body, PeekError> {
    peek(bytes).or_else(|error| peek_leniently(bytes).map(Body::Single).map_err(|_| error))
}

/// Parses a single response that is no JSON to [`peek`], as lenient parsers read it.
///
/// # Errors
/// See [`PeekError`]; for any other message as well.
pub fn peek_leniently(bytes: &[u8]) -> Result<Message, PeekError> {
    match peek(&readable(bytes).ok_or(PeekError::NotJson)?)? {
        Body::Single(message @ Message::Response { .. }) => Ok(message),
        Body::Single(Message::Request { .. } | Message::Notification { .. }) | Body::Batch(_) => {
            Err(PeekError::NotMessage)
        }
    }
}

/// Returns the place of the value at a path of members, also in a message that only lenient parsers
/// read.
pub fn place(bytes: &[u8], path: &'static [&'static str]) -> Option<Range<usize>> {
    let in_read = |read: &[u8]| member(read, path).map(|value| span(read, value));
    in_read(bytes).or_else(|| in_read(&readable(bytes)?))
}

/// Returns a message that only lenient parsers read, as strict JSON: without a byte order mark,
/// with `null` in place of `NaN` and `Infinity`, and with U+FFFD in place of bytes that are no
/// UTF-8. Returns `None` for a message without these.
pub fn as_json(bytes: &[u8]) -> Option<Vec<u8>> {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(_) => in_json_words(bytes),
        Cow::Owned(text) => in_json_words(text.as_bytes()).or(Some(text.into_bytes())),
    }
}

fn in_json_words(bytes: &[u8]) -> Option<Vec<u8>> {
    let readable = readable(bytes)?;
    if readable == bytes {
        return None;
    }
    let (mut json, mut at) = (Vec::with_capacity(bytes.len()), 0);
    if bytes.starts_with(BYTE_ORDER_MARK) {
        at = BYTE_ORDER_MARK.len();
    }
    while at < bytes.len() {
        let word = WORDS.iter().find(|(word, _)| readable[at] != bytes[at] && bytes[at..].starts_with(word));
        match word {
            Some((word, _)) => {
                if json.last() == Some(&b'-') {
                    json.pop();
                }
                json.extend_from_slice(b"null");
                at += word.len();
            }
            None => {
                json.push(bytes[at]);
                at += 1;
            }
        }
    }
    Some(json)
}

/// Returns bytes of the same length that are JSON: blanks replace a byte order mark, and JSON
/// replaces the words of lenient parsers. So each member keeps its place in `bytes`. Returns `None`
/// without a mark and such a word.
pub fn readable(bytes: &[u8]) -> Option<Vec<u8>> {
    static FINDERS: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| WORDS.map(|(word, _)| Finder::new(word)));
    let mark = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    if mark == 0 && FINDERS.iter().all(|finder| finder.find(bytes).is_none()) {
        return None;
    }
    let mut readable = bytes.to_vec();
    readable[..mark].fill(b' ');
    let (mut at, mut is_text) = (mark, false);
    while at < bytes.len() {
        match (is_text, bytes[at]) {
            (true, b'\\') => at += 1,
            (_, b'"') => is_text = !is_text,
            (false, b'N' | b'I') => {
                if let Some((word, json)) = WORDS.into_iter().find(|(word, _)| bytes[at..].starts_with(word)) {
                    readable[at..at + word.len()].copy_from_slice(json);
                    at += word.len() - 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    Some(readable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::RequestId;

    #[test]
    fn a_response_with_words_of_lenient_parsers_is_read() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN,"y":[Infinity,-Infinity , NaN]}}"#,
            r#"{"jsonrpc":"2.0","result":{"x":"\"NaN","y":NaN},"id":7}"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}",
        ] {
            let expected = Message::Response { id: Some(RequestId::Number("7".into())), is_error: false };
            assert_eq!(peek(text.as_bytes()), Err(PeekError::NotJson), "{text}");
            assert_eq!(peek_leniently(text.as_bytes()), Ok(expected), "{text}");
            assert_eq!(readable(text.as_bytes()).expect("words").len(), text.len());
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "starting: NaN",
            r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaNo}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"x":Nan}}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"a","params":{"x":NaN}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":NaN"#,
            r#"[{"jsonrpc":"2.0","id":7,"result":NaN}]"#,
            "\\",
            "\"\\",
            "NaN\\",
        ] {
            assert!(peek_leniently(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_found_and_numbers_that_are_none_become_null() {
        let text = "\u{feff}{\"a\":\"-NaN\",\"result\":[NaN,-Infinity,Infinity , -1]}";
        let found = place(text.as_bytes(), &["result"]).expect("a member");
        assert_eq!(&text[found], "[NaN,-Infinity,Infinity , -1]");
        let json = String::from_utf8(as_json(text.as_bytes()).expect("words")).expect("text");
        assert_eq!(json, r#"{"a":"-NaN","result":[null,null,null , -1]}"#);
        let strict = br#"{"a":"NaN","b":{"c":1}}"#;
        assert_eq!((as_json(strict), place(strict, &["b", "c"])), (None, Some(20..21)));
        assert_eq!(place(b"NaN", &["b"]), None);
        let cut = as_json(b"{\"a\":\"\xff\",\"b\":NaN,\"c\":\"\xe2\x82\"}").expect("no UTF-8");
        assert_eq!(cut, "{\"a\":\"\u{fffd}\",\"b\":null,\"c\":\"\u{fffd}\"}".as_bytes());
        assert_eq!(as_json(b"\"\xff\"").as_deref(), Some("\"\u{fffd}\"".as_bytes()));
    }

    #[test]
    fn words_in_strings_stay() {
        let text = r#"{"a":"NaN \" Infinity","b":NaN}"#;
        let read = String::from_utf8(readable(text.as_bytes()).expect("a word")).expect("text");
        assert_eq!(read, r#"{"a":"NaN \" Infinity","b":0  }"#);
    }
}
