//! Members of a cut object, at its beginning or its end.
//!
//! Each walk starts at the first or the last byte of the object, whose meaning is certain, and
//! follows the grammar from there. So no part of a string or of a nested value is taken for a
//! member, at any cut of the text. A member is reported only if its name and its value are whole.
//! Absent: validation. In bytes that are no JSON, any part of them may be reported.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memrchr};

/// Calls `visit` with the name and the value of each whole member at the beginning of an object. A
/// member with a cut value is visited by its name alone.
pub fn leading_members<'a>(json: &'a [u8], visit: &mut dyn FnMut(Cow<'a, str>, Option<&'a [u8]>)) {
    let _ = walk_forwards(json, visit);
}

/// Calls `visit` with the name and the value of each whole member at the end of an object, the last
/// one first. The object ends with the text.
pub fn trailing_members<'a>(json: &'a [u8], visit: &mut dyn FnMut(Cow<'a, str>, Option<&'a [u8]>)) {
    let _ = walk_backwards(json, visit);
}

fn walk_forwards<'a>(json: &'a [u8], visit: &mut dyn FnMut(Cow<'a, str>, Option<&'a [u8]>)) -> Option<()> {
    let mut rest = behind(json, b'{')?;
    loop {
        let name_length = string_length(rest)?;
        let (quoted, more) = rest.split_at(name_length);
        rest = behind(more.trim_ascii_start(), b':')?.trim_ascii_start();
        let length = value_length(rest);
        visit(unquoted(quoted)?, length.map(|length| &rest[..length]));
        rest = behind(rest[length?..].trim_ascii_start(), b',')?.trim_ascii_start();
    }
}

fn walk_backwards<'a>(json: &'a [u8], visit: &mut dyn FnMut(Cow<'a, str>, Option<&'a [u8]>)) -> Option<()> {
    let mut rest = before(json, b'}')?;
    loop {
        let value_at = value_start(rest)?;
        let (more, value) = rest.split_at(value_at);
        rest = before(more, b':')?;
        let (more, quoted) = rest.split_at(string_start(rest)?);
        visit(unquoted(quoted)?, Some(value));
        rest = before(more, b',')?;
    }
}

/// Returns the text behind `byte`, which comes first beside blanks.
fn behind(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.trim_ascii_start().strip_prefix(&[byte]).map(<[u8]>::trim_ascii_start)
}

/// Returns the text before `byte`, which comes last beside blanks.
fn before(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.trim_ascii_end().strip_suffix(&[byte]).map(<[u8]>::trim_ascii_end)
}

fn unquoted(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(quoted.get(1..quoted.len().checked_sub(1)?)?).ok()?;
    match memchr(b'\\', text.as_bytes()) {
        None => Some(Cow::Borrowed(text)),
        Some(_) => serde_json::from_slice(quoted).ok().map(Cow::Owned),
    }
}

/// Returns the length of the string at the beginning, with its quotes, or `None` if it is cut.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    text.strip_prefix(b"\"")?;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        match text[at] {
            b'"' => return Some(at + 1),
            // An escaped quote does not end the string.
            _ => at += 2,
        }
    }
}

/// Returns the length of the value at the beginning, or `None` if it may be cut.
fn value_length(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'"' => string_length(text),
        b'{' | b'[' => nested_length(text),
        // The end of the text may be within a number.
        _ => text.iter().position(|&byte| ends_literal(byte)),
    }
}

fn nested_length(text: &[u8]) -> Option<usize> {
    let (mut at, mut open) = (0, Vec::new());
    loop {
        match *text.get(at)? {
            b'"' => {
                at += string_length(&text[at..])?;
                continue;
            }
            bracket @ (b'{' | b'[') => open.push(bracket),
            bracket @ (b'}' | b']') if open.pop()? != partner(bracket) => return None,
            b'}' | b']' if open.is_empty() => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
}

/// Returns the start of the string at the end, or `None` if it may be before the text.
fn string_start(text: &[u8]) -> Option<usize> {
    let mut end = text.strip_suffix(b"\"")?.len();
    loop {
        let quote = memrchr(b'"', &text[..end])?;
        let escapes = text[..quote].iter().rev().take_while(|&&byte| byte == b'\\').count();
        // More escapes may be before the text.
        if escapes == quote {
            return None;
        }
        match escapes {
            0 => return Some(quote),
            odd if odd % 2 == 1 => end = quote,
            _ => return None,
        }
    }
}

/// Returns the start of the value at the end, or `None` if it may be before the text.
fn value_start(text: &[u8]) -> Option<usize> {
    match text.last()? {
        b'"' => string_start(text),
        b'}' | b']' => nested_start(text),
        _ => text.iter().rposition(|&byte| begins_literal(byte)).map(|at| at + 1).filter(|&at| at < text.len()),
    }
}

fn nested_start(text: &[u8]) -> Option<usize> {
    let (mut end, mut open) = (text.len(), Vec::new());
    loop {
        match *text[..end].last()? {
            b'"' => {
                end = string_start(&text[..end])?;
                continue;
            }
            bracket @ (b'}' | b']') => open.push(bracket),
            bracket @ (b'{' | b'[') if open.pop()? != partner(bracket) => return None,
            b'{' | b'[' if open.is_empty() => return Some(end - 1),
            _ => {}
        }
        end -= 1;
    }
}

fn partner(bracket: u8) -> u8 {
    match bracket {
        b'{' => b'}',
        b'}' => b'{',
        b'[' => b']',
        _ => b'[',
    }
}

/// Returns true for a byte behind a number, `true`, `false` or `null`.
fn ends_literal(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
}

/// Returns true for a byte before such a value.
fn begins_literal(byte: u8) -> bool {
    matches!(byte, b':' | b',' | b'[' | b'{' | b'"' | b'}' | b']') || byte.is_ascii_whitespace()
}
