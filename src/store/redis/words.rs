//! Words and numbers in replies of Redis.

use ::redis::Value;

use super::failure::{Replies, unexpected_reply};
use crate::Error;

/// Returns the words of a reply; a word that is no text is empty.
pub(super) fn words(answer: &Value) -> Vec<&str> {
    let Value::Array(words) = answer else { return Vec::new() };
    words.iter().map(text).collect()
}

fn text(word: &Value) -> &str {
    if let Value::BulkString(text) = word { std::str::from_utf8(text).unwrap_or_default() } else { "" }
}

pub(super) fn last_words(answer: &Replies) -> Vec<&str> {
    answer.as_ref().ok().and_then(|answers| answers.last()).map(words).unwrap_or_default()
}

pub(super) fn number(text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| unexpected_reply())
}
