//! The stderr of a child: always read, so that the child never blocks on it, and logged line by
//! line.
//!
//! A program may write more lines than the log can take. So only some of its lines are logged, and
//! the reader lets other tasks run between its reads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::AbortHandle;
use tracing::{Level, debug, enabled};

use crate::{clock, sync};

/// Limit of a line, in bytes. The rest of a longer line is dropped.
const LINE: usize = 2048;
/// Lines kept for the message of a child that has ended.
const LAST_LINES: usize = 8;
/// Bytes taken from the pipe at once.
const CHUNK: usize = 8192;
/// Longest wait for the last lines of a program that has ended, and the interval between checks.
const LAST_WORDS: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(5);
/// Most lines that are logged in each [`WINDOW`].
const LOGGED: usize = 100;
const WINDOW: Duration = Duration::from_secs(1);

/// The last lines of a child's stderr. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Stderr {
    lines: Arc<Mutex<VecDeque<Vec<u8>>>>,
    reading: Arc<OnceLock<AbortHandle>>,
}

impl Stderr {
    /// Reads `pipe` to its end in a task of its own.
    pub(super) fn read(pipe: impl AsyncRead + Unpin + Send + 'static, program: String, pid: i32) -> Self {
        let stderr = Self::default();
        let log = LineLog { program, pid, since: clock::now(), logged: 0, left_out: 0 };
        let reading = tokio::spawn(stderr.clone().run(pipe, log));
        let _ = stderr.reading.set(reading.abort_handle());
        stderr
    }

    /// Waits until all output of a program is read, for [`LAST_WORDS`] at most. Another process may
    /// hold the pipe.
    pub(super) async fn last_words(&self) {
        let deadline = clock::now() + LAST_WORDS;
        while !self.reading.get().is_none_or(AbortHandle::is_finished) && clock::now() < deadline {
            clock::sleep(POLL).await;
        }
    }

    /// Stops reading. A process that has left the group may hold the pipe for ever.
    pub(super) fn stop(&self) {
        if let Some(reading) = self.reading.get() {
            reading.abort();
        }
    }

    /// Returns the last lines, the newest last.
    pub(super) fn last_lines(&self) -> String {
        let lines = sync::lock(&self.lines);
        lines.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>().join("\n")
    }

    async fn run(self, mut pipe: impl AsyncRead + Unpin, mut log: LineLog) {
        let (mut chunk, mut line) = (vec![0; CHUNK], Vec::new());
        while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
            self.take(&chunk[..count], &mut line, &mut log);
            // A program that writes without end would block all other tasks of the thread.
            tokio::task::yield_now().await;
        }
        if !line.is_empty() {
            self.take(b"\n", &mut line, &mut log);
        }
    }

    /// Takes the lines that end in `chunk`. `line` is the beginning of a line that does not end
    /// there.
    fn take(&self, chunk: &[u8], line: &mut Vec<u8>, log: &mut LineLog) {
        log.begin(clock::now());
        let mut lines = sync::lock(&self.lines);
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE.saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                let text = line.trim_ascii_end();
                log.add(text);
                let mut kept = if lines.len() == LAST_LINES { lines.pop_front() } else { None }.unwrap_or_default();
                kept.clear();
                kept.extend_from_slice(text);
                lines.push_back(kept);
                line.clear();
            }
        }
    }
}

/// The log of a child's lines, within its limit.
struct LineLog {
    program: String,
    pid: i32,
    since: Instant,
    logged: usize,
    left_out: usize,
}

impl LineLog {
    /// Begins the next window, if this one has ended.
    fn begin(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) < WINDOW {
            return;
        }
        if self.left_out > 0 {
            debug!(program = self.program, pid = self.pid, lines = self.left_out, "lines of a child were not logged");
        }
        (self.since, self.logged, self.left_out) = (now, 0, 0);
    }

    fn add(&mut self, line: &[u8]) {
        if !enabled!(Level::DEBUG) {
            return;
        }
        if self.logged == LOGGED {
            self.left_out += 1;
            return;
        }
        self.logged += 1;
        let text = &*String::from_utf8_lossy(line);
        debug!(program = self.program, pid = self.pid, text, "stderr of a child");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn log() -> LineLog {
        LineLog { program: "a".to_owned(), pid: 1, since: clock::now(), logged: 0, left_out: 0 }
    }

    #[test]
    fn the_last_lines_are_kept_in_part() {
        let (stderr, mut line, mut log) = (Stderr::default(), Vec::new(), log());
        stderr.take(b"first\nbegun ", &mut line, &mut log);
        stderr.take(&[b'x'; 2 * LINE], &mut line, &mut log);
        stderr.take(b"\r\n\xff", &mut line, &mut log);
        stderr.take(b"\n", &mut line, &mut log);
        let begun = format!("begun {}", "x".repeat(LINE - 6));
        assert_eq!(stderr.last_lines(), format!("first\n{begun}\n\u{fffd}"));
        for n in 0..20 {
            stderr.take(format!("{n}\n").as_bytes(), &mut line, &mut log);
        }
        assert_eq!(stderr.last_lines(), "12\n13\n14\n15\n16\n17\n18\n19");
    }

    #[tokio::test]
    async fn a_flood_lets_other_tasks_run() {
        let flood = tokio::io::repeat(b'\n').take(64 * CHUNK as u64);
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        tokio::spawn(Stderr::default().run(flood, log())).await.expect("no panic");
        other.abort();
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= 32, "{turns} turns beside 64 reads");
    }
}
