//! Lines on stderr and stdout that never block their writer.
//!
//! A pipe whose reader has stopped takes 64 KiB and then blocks each writer. So lines are queued, and a thread of its own writes them.
//! Owned here: the limit of the queue, the count of dropped lines, and the end of the thread. Invariant: a worker that logs never waits; a line
//! for which the queue has no room is dropped and counted. Absent: the texts and the format of lines.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

/// Limit of the queued bytes; further lines are dropped.
const MAX_QUEUED: usize = 1024 * 1024;
/// Bytes that a line takes in the queue beside its text.
const LINE_COST: usize = 64;
/// Time that the end of the process waits for the queued lines.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines of all outputs that were dropped since the start of the process.
static DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Lines of the log that were dropped because stderr took none.";
    IntCounter::new("log_lines_dropped_total", help).expect("a name that Prometheus accepts")
});

/// Returns the counter of dropped lines, for a registry.
pub fn dropped() -> IntCounter {
    DROPPED.clone()
}

/// The queue of one output. Clones share it.
#[derive(Clone, Debug)]
pub struct Lines {
    sender: mpsc::Sender<Item>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Queued bytes.
    queued: AtomicUsize,
    /// Lines that were dropped.
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Reports to its sender that all items before it were written.
    Mark(mpsc::SyncSender<()>),
}

impl Lines {
    /// Starts a thread that writes the queued lines to `output`.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, items) = mpsc::channel();
        let state = Arc::<State>::default();
        let shared = state.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(output, &items, &shared))?;
        Ok(Self { sender, state })
    }

    /// Queues `line` and an end of line.
    pub fn print(&self, line: impl Display) {
        self.queue(format!("{line}\n").into_bytes());
    }

    /// Waits until all queued lines are written, for a second at most.
    pub fn finish(&self) {
        let (written, all_written) = mpsc::sync_channel(1);
        if self.sender.send(Item::Mark(written)).is_ok() {
            // An output that takes nothing does not delay the end of the process.
            let _ = all_written.recv_timeout(FINISH_TIMEOUT);
        }
    }

    fn queue(&self, line: Vec<u8>) {
        let cost = line.len() + LINE_COST;
        let State { queued, dropped } = &*self.state;
        if queued.fetch_add(cost, Ordering::Relaxed) + cost > MAX_QUEUED {
            queued.fetch_sub(cost, Ordering::Relaxed);
            dropped.fetch_add(1, Ordering::Relaxed);
            DROPPED.inc();
            return;
        }
        // Cannot fail: the thread lives as long as a sender.
        let _ = self.sender.send(Item::Line(line));
    }
}

/// Writes all items. Logs the number of dropped lines when the queue is empty again.
fn write_all(mut output: impl Write, items: &mpsc::Receiver<Item>, state: &State) {
    let mut reported = 0;
    for item in items {
        match item {
            Item::Line(line) => {
                // A failure means that the output was closed: it has no reader.
                let _ = output.write_all(&line).and_then(|()| output.flush());
                let cost = line.len() + LINE_COST;
                let is_empty = state.queued.fetch_sub(cost, Ordering::Relaxed) == cost;
                let dropped = state.dropped.load(Ordering::Relaxed);
                if is_empty && dropped > reported {
                    warn!(lines = dropped - reported, "lines of the log were dropped: stderr took none");
                    reported = dropped;
                }
            }
            // The sender may have stopped waiting.
            Item::Mark(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

/// A line in progress; it is queued as a whole when dropped.
#[derive(Debug)]
pub struct Line<'a> {
    lines: &'a Lines,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.lines.queue(std::mem::take(&mut self.text));
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: self, text: Vec::new() }
    }
}

/// Writes `line` to `output`, and waits until it is written, for a second at most.
pub fn print_in_time(output: impl Write + Send + 'static, line: fmt::Arguments<'_>) {
    if let Ok(lines) = Lines::to(output) {
        lines.print(line);
        lines.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output that takes one line for each message of its gate.
    struct Gated {
        gate: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A closed gate lets all lines pass.
            let _ = self.gate.recv();
            self.written.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (SyncSender<()>, Arc<Mutex<Vec<u8>>>, Lines) {
        let (open, gate) = sync_channel(0);
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = Lines::to(Gated { gate, written: written.clone() }).expect("a thread");
        (open, written, lines)
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_counted_and_the_others_are_written_in_order() {
        let (open, written, lines) = gated();
        let line = "x".repeat(1000 - LINE_COST - 1);
        let many = 2 * MAX_QUEUED / 1000;
        for _ in 0..many {
            lines.print(&line);
        }
        let dropped = lines.state.dropped.load(Ordering::Relaxed);
        assert_eq!(dropped as usize, many - MAX_QUEUED / 1000);
        assert!(DROPPED.get() >= dropped);
        drop(open);
        lines.finish();
        let text = String::from_utf8(written.lock().expect("no panic").clone()).expect("text");
        assert_eq!(text.lines().filter(|written| **written == line).count(), MAX_QUEUED / 1000);
        // The queue has room again.
        lines.print("the last");
        lines.finish();
        assert!(written.lock().expect("no panic").ends_with(b"the last\n"));
    }

    #[test]
    fn finishing_does_not_wait_for_a_blocked_output() {
        let (_open, written, lines) = gated();
        lines.print("a line");
        lines.finish();
        assert!(written.lock().expect("no panic").is_empty());
    }
}
