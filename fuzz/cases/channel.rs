//! The lines of a server on stdio. Input: the output of a server, which is also the body of a
//! client.
//!
//! Any slicing of the output gives the same lines, each within the limit and one line by the rules
//! of every common reader. A body becomes one such line, which means the same.

use bytes::Bytes;
use mcp_resume::protocol::channel::line::{Line, LineReader, to_line};
use mcp_resume::protocol::error::ErrorCode;
use mcp_resume::protocol::excerpt::EXCERPT;
use serde_json::Value;

const LIMITS: [usize; 3] = [1 << 16, 12, 0];
const SLICES: [usize; 6] = [1, 2, 3, 5, 17, 256];

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    for limit in LIMITS {
        let whole = read(limit, [bytes]);
        for size in SLICES {
            assert_eq!(read(limit, bytes.chunks(size)), whole, "in pieces of {size}, limit {limit}");
        }
        for line in &whole {
            if let Line::Whole(line) = line {
                assert!(line.len() <= limit && !line.contains(&b'\n') && !line.contains(&b'\r'));
            }
        }
        assert_eq!(whole, model(bytes, limit));
    }
    // The name by which serde_json passes raw values to itself.
    let is_its_own = bytes.windows(11).any(|window| window == b"$serde_json");
    if let (Ok(text), false) = (std::str::from_utf8(bytes), is_its_own)
        && let Ok(value) = serde_json::from_str::<Value>(text)
    {
        let line = to_line(Bytes::copy_from_slice(bytes));
        let line = std::str::from_utf8(&line).expect("UTF-8");
        assert!(!line.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']));
        assert_eq!(serde_json::from_str::<Value>(line).expect("JSON"), value);
    }
}

fn read<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut reader = LineReader::new(limit);
    let mut lines = Vec::new();
    for piece in pieces {
        reader.buffer().extend_from_slice(piece);
        lines.extend(std::iter::from_fn(|| reader.next_line()));
        assert!(reader.partial().len() <= limit, "bytes beyond the limit are not kept");
    }
    lines
}

/// The lines of the whole output. A last part without its LF is a line only if it is too long
/// already.
fn model(bytes: &[u8], limit: usize) -> Vec<Line> {
    let mut parts: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    let partial = parts.pop().filter(|rest| rest.len() > limit);
    let lines = parts.into_iter().flat_map(|line| {
        if line.len() > limit {
            let last = &line[line.len().saturating_sub(EXCERPT)..];
            return vec![cut(line, limit), Line::CutEnd(Bytes::copy_from_slice(last))];
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line: Bytes = line.iter().map(|&byte| if byte == b'\r' { b' ' } else { byte }).collect();
        if line.trim_ascii().is_empty() { Vec::new() } else { vec![Line::Whole(line)] }
    });
    lines.chain(partial.map(|line| cut(line, limit))).collect()
}

fn cut(line: &[u8], limit: usize) -> Line {
    let first = Bytes::copy_from_slice(&line[..limit.min(EXCERPT)]);
    Line::Cut { first, code: ErrorCode::EventTooLarge }
}
