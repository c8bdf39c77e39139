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

use mcp_resume_base::clock;
use mcp_resume_base::sync;

/// Limit of a line, in bytes. The rest of a longer line is dropped.
const LINE: usize = 2048;
/// First lines kept.
const FIRST: usize = 3;
/// Last lines kept.
const LAST_LINES: usize = 8;
/// Bytes taken from the pipe at once.
const CHUNK: usize = 8192;
/// Longest wait for the last lines of a program that has ended, and the interval between checks.
const LAST_WORDS: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(5);
/// Most lines that are logged in each [`WINDOW`].
const LOGGED: usize = 100;
const WINDOW: Duration = Duration::from_secs(1);

/// The first and the last lines of a child's stderr. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Stderr {
    lines: Arc<Mutex<Lines>>,
    reading: Arc<OnceLock<AbortHandle>>,
}

#[derive(Default)]
struct Lines {
    first: Vec<Vec<u8>>,
    /// Lines behind the first.
    last: VecDeque<Vec<u8>>,
}

impl Lines {
    fn push(&mut self, text: &[u8]) {
        if self.first.len() < FIRST {
            return self.first.push(text.to_vec());
        }
        let oldest = if self.last.len() == LAST_LINES { self.last.pop_front() } else { None };
        let mut kept = oldest.unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(text);
        self.last.push_back(kept);
    }
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

    /// Returns the first lines, and the last `count` of the others.
    pub(super) fn ends(&self, count: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let lines = sync::lock(&self.lines);
        let skipped = lines.last.len().saturating_sub(count);
        (lines.first.clone(), lines.last.iter().skip(skipped).cloned().collect())
    }

    /// Returns the stderr of a child that has written these lines.
    #[cfg(test)]
    pub(super) fn of_lines(lines: &[&str]) -> Self {
        let stderr = Self::default();
        lines.iter().for_each(|line| sync::lock(&stderr.lines).push(line.as_bytes()));
        stderr
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
                lines.push(text);
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
    fn the_first_and_the_last_lines_are_kept_in_part() {
        let (stderr, mut line, mut log) = (Stderr::default(), Vec::new(), log());
        stderr.take(b"first\nbegun ", &mut line, &mut log);
        stderr.take(&[b'x'; 2 * LINE], &mut line, &mut log);
        stderr.take(b"\r\n\xff", &mut line, &mut log);
        stderr.take(b"\n", &mut line, &mut log);
        let begun = format!("begun {}", "x".repeat(LINE - 6));
        assert_eq!(stderr.ends(3), (vec![b"first".to_vec(), begun.into_bytes(), b"\xff".to_vec()], vec![]));
        for n in 0..20 {
            stderr.take(format!("{n}\n").as_bytes(), &mut line, &mut log);
        }
        assert_eq!(stderr.ends(3).1, [b"17", b"18", b"19"]);
        assert_eq!(stderr.ends(100).1.len(), LAST_LINES);
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
