//! Errors in words for the host, which often shows a model the text alone.
//!
//! Invariant: no byte of a server and no argument is in a text, but for the last lines of a local
//! program's stderr.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::credentials::Credentials;
use crate::protocol::error::{Details, ErrorCode, Failure, Subject};
use crate::protocol::jsonrpc::{self, RequestId};

/// Most lines of a program's stderr in an error, and the most characters of each.
const LINES: usize = 3;
const LINE: usize = 200;

/// Returns the error for a response with this status, which is no JSON-RPC error. `origin` is the
/// far side's, for `data`.
pub(super) fn refusal(
    id: &RequestId,
    subject: Subject,
    status: StatusCode,
    origin: &str,
    credentials: &dyn Credentials,
) -> Bytes {
    let may_have_run = status.is_server_error();
    let failure =
        Failure { http_status: Some(status.as_u16()), may_have_run, ..Failure::before_run(ErrorCode::UpstreamStatus) };
    let text = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("status {}; {}", status.as_u16(), credentials.cure())
        }
        status => format!("status {}", status.as_u16()),
    };
    let members = vec![("origin", json!(origin))];
    failure.to_message_with(Some(id), subject, Details { text: &text, members }).into()
}

/// Returns an error of a program with the last lines of its stderr in the message, if `data` has
/// them. They are the local user's own, printable and bounded.
pub(super) fn with_last_lines(error: Bytes) -> Bytes {
    let Some(lines) = jsonrpc::string_member(&error, &["error", "data", "stderr"]) else { return error };
    let Some(message) = jsonrpc::member(&error, &["error", "message"]) else { return error };
    let Ok(text) = serde_json::from_str::<String>(message) else { return error };
    let lines: Vec<String> = lines.lines().map(printable).filter(|line| !line.is_empty()).collect();
    let text = json!(format!("{text}\n{}", lines[lines.len().saturating_sub(LINES)..].join("\n")));
    let place = jsonrpc::span(&error, message);
    jsonrpc::splice(&error, vec![(place, text.to_string())]).into()
}

/// Returns a line without control characters, and without the colours of a terminal.
fn printable(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' if characters.next() == Some('[') => {
                let _ = characters.find(|character| ('@'..='~').contains(character));
            }
            '\t' => text.push(' '),
            character if is_shown(character) => text.push(character),
            _ => {}
        }
    }
    text.trim().chars().take(LINE).collect()
}

/// Returns false for characters that a terminal or a reader would not show as they are.
fn is_shown(character: char) -> bool {
    let is_direction =
        matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    !character.is_control() && !is_direction
}

/// Returns true unless an error says that its request has not run.
pub(super) fn may_have_run(message: &[u8]) -> bool {
    jsonrpc::member(message, &["error", "data", "mayHaveRun"]) != Some("false")
}

/// Returns the code of a proxy's error, or `None` for any other message. The proxy is this one, or
/// a `serve` before the server.
pub(super) fn own_code(message: &[u8]) -> Option<ErrorCode> {
    let label = jsonrpc::string_member(message, &["error", "data", "error"])?;
    ErrorCode::try_from(label).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_program_are_printable_and_bounded() {
        let error = |stderr: &str| {
            let data = json!({"error": "server_failed", "stderr": stderr});
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "it failed", "data": data}}).to_string()
        };
        let shown = |stderr: &str| {
            let shown = with_last_lines(error(stderr).into());
            jsonrpc::string_member(&shown, &["error", "message"]).expect("a message")
        };
        assert_eq!(shown("a\nb\nc\nd"), "it failed\nb\nc\nd");
        assert_eq!(shown("\u{1b}[31mred\u{1b}[0m\tline\u{7}\u{202e}"), "it failed\nred line");
        assert_eq!(shown(&"é".repeat(300)), format!("it failed\n{}", "é".repeat(200)));
        let without = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"it failed"}}"#);
        assert_eq!(with_last_lines(without.clone()), without);
    }
}
