//! Lines on stderr and stdout that never block their writer.
//!
//! A pipe whose reader has stopped takes 64 KiB and then blocks each writer. So lines are queued,
//! and a thread of its own writes them. The thread gathers lines for a moment and writes them
//! together: a wake-up and a write for each line would cost more than a short call. Owned here: the
//! limit of the queue, the count of dropped lines, and the end of the thread. Invariant: a worker
//! that logs never waits for the output; a line beyond the limit of the queue is dropped and
//! counted. The format of a text line is in [`text`], its time in [`timestamps`], and the escapes
//! of a JSON line in [`json`]. Absent: the texts.

pub mod json;
pub mod text;
pub mod timestamps;

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

use crate::sync;

/// Limit of the queued bytes; further lines are dropped.
const MAX_QUEUED: usize = 1024 * 1024;
/// Time that the thread gathers lines after the first. The lines of this time are lost with a
/// killed process.
const GATHER: Duration = Duration::from_millis(10);
/// Capacity that an empty buffer keeps.
const KEPT_CAPACITY: usize = 64 * 1024;
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

/// The queue of one output. Clones share it; the last one ends the thread.
#[derive(Clone, Debug)]
pub struct Lines {
    handle: Arc<Handle>,
}

/// Closes the queue when dropped.
#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified of the first line, of a mark, and of the close.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Lines that wait, with their ends of line.
    text: Vec<u8>,
    /// Bytes that the thread took and has not written yet.
    in_write: usize,
    /// Each is notified once all lines before it were written.
    marks: Vec<mpsc::SyncSender<()>>,
    /// Lines that were dropped.
    dropped: u64,
    is_closed: bool,
}

impl Queue {
    /// Returns whether there is nothing to write and no mark to report.
    fn is_idle(&self) -> bool {
        self.text.is_empty() && self.marks.is_empty()
    }
}

impl Lines {
    /// Starts a thread that writes the queued lines to `output`.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let handle = Arc::new(Handle(shared.clone()));
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(output, &shared))?;
        Ok(Self { handle })
    }

    /// Queues `line` and an end of line.
    pub fn print(&self, line: impl Display) {
        self.queue(format!("{line}\n").as_bytes());
    }

    /// Waits until all queued lines are written, for a second at most.
    pub fn finish(&self) {
        let (written, all_written) = mpsc::sync_channel(1);
        let Handle(shared) = &*self.handle;
        sync::lock(&shared.queue).marks.push(written);
        shared.changed.notify_one();
        // An output that takes nothing does not delay the end of the process.
        let _ = all_written.recv_timeout(FINISH_TIMEOUT);
    }

    fn queue(&self, line: &[u8]) {
        let Handle(shared) = &*self.handle;
        let mut queue = sync::lock(&shared.queue);
        if queue.text.len() + queue.in_write + line.len() > MAX_QUEUED {
            queue.dropped += 1;
            DROPPED.inc();
            return;
        }
        let is_first = queue.text.is_empty();
        queue.text.extend_from_slice(line);
        // The thread takes the lock first when it wakes.
        drop(queue);
        if is_first {
            shared.changed.notify_one();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Self(shared) = self;
        sync::lock(&shared.queue).is_closed = true;
        shared.changed.notify_one();
    }
}

/// Writes all lines until the queue is closed. Logs the number of dropped lines when the queue is
/// empty again.
fn write_all(mut output: impl Write, shared: &Shared) {
    let (mut text, mut reported) = (Vec::new(), 0);
    loop {
        let marks = {
            let queue = sync::lock(&shared.queue);
            let begun = shared.changed.wait_while(queue, |queue| queue.is_idle() && !queue.is_closed);
            let queue = begun.unwrap_or_else(PoisonError::into_inner);
            let gathered =
                shared.changed.wait_timeout_while(queue, GATHER, |queue| queue.marks.is_empty() && !queue.is_closed);
            let (mut queue, _) = gathered.unwrap_or_else(PoisonError::into_inner);
            if queue.is_idle() {
                return;
            }
            std::mem::swap(&mut queue.text, &mut text);
            queue.in_write = text.len();
            std::mem::take(&mut queue.marks)
        };
        // A failure means that the output was closed: it has no reader.
        let _ = output.write_all(&text).and_then(|()| output.flush());
        text.clear();
        text.shrink_to(KEPT_CAPACITY);
        for mark in marks {
            // The sender may have stopped waiting.
            let _ = mark.try_send(());
        }
        let dropped = {
            let mut queue = sync::lock(&shared.queue);
            queue.in_write = 0;
            if queue.text.is_empty() { queue.dropped } else { reported }
        };
        if dropped > reported {
            warn!(lines = dropped - reported, "lines of the log were dropped: stderr took none");
            reported = dropped;
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
            self.lines.queue(&self.text);
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

    /// An output that takes one write for each message of its gate.
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
        let line = "x".repeat(1000 - 1);
        let many = 2 * MAX_QUEUED / 1000;
        for _ in 0..many {
            lines.print(&line);
        }
        // Lines count until they are written, also lines that the thread took.
        let dropped = sync::lock(&lines.handle.0.queue).dropped;
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
    fn the_last_handle_ends_the_thread_after_its_lines() {
        let (open, gate) = sync_channel(0);
        let written = Arc::new(Mutex::new(Vec::new()));
        let output = Gated { gate, written: written.clone() };
        let shared = Arc::<Shared>::default();
        let lines = Lines { handle: Arc::new(Handle(shared.clone())) };
        lines.print("a line");
        drop((open, lines));
        write_all(output, &shared);
        assert_eq!(*written.lock().expect("no panic"), b"a line\n");
    }

    #[test]
    fn finishing_does_not_wait_for_a_blocked_output() {
        let (_open, written, lines) = gated();
        lines.print("a line");
        lines.finish();
        assert!(written.lock().expect("no panic").is_empty());
    }
}
