//! The stderr of a child: read always, so that the child never blocks on it, and logged line by line.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::debug;

use crate::sync;

/// Limit of a line, in bytes. The rest of a longer one is dropped.
const LINE: usize = 2048;
/// Lines kept for the message of a child that has ended.
const LAST_LINES: usize = 8;
/// Bytes taken from the pipe at once.
const CHUNK: usize = 8192;

/// The last lines of a child's stderr. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Stderr(Arc<Mutex<VecDeque<String>>>);

impl Stderr {
    /// Reads `pipe` to its end in a task of its own.
    pub(super) fn read(pipe: impl AsyncRead + Unpin + Send + 'static, program: String, pid: i32) -> Self {
        let stderr = Self::default();
        tokio::spawn(stderr.clone().run(pipe, program, pid));
        stderr
    }

    /// Returns the last lines, the newest last.
    pub(super) fn last_lines(&self) -> String {
        let lines = sync::lock(&self.0);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    async fn run(self, mut pipe: impl AsyncRead + Unpin, program: String, pid: i32) {
        let (mut chunk, mut line) = (vec![0; CHUNK], Vec::new());
        loop {
            let count = match pipe.read(&mut chunk).await {
                Ok(count @ 1..) => count,
                Ok(0) | Err(_) => break,
            };
            for part in chunk[..count].split_inclusive(|&byte| byte == b'\n') {
                let room = LINE.saturating_sub(line.len());
                line.extend_from_slice(&part[..part.len().min(room)]);
                if part.ends_with(b"\n") {
                    self.note(&line, &program, pid);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.note(&line, &program, pid);
        }
    }

    fn note(&self, line: &[u8], program: &str, pid: i32) {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        debug!(program, pid, text, "stderr of a child");
        let mut lines = sync::lock(&self.0);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(text);
    }
}
