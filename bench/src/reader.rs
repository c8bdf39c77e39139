//! Reads an event stream and checks it: no event is missing, repeated or foreign.

use memchr::{memchr, memchr_iter, memmem};

use crate::Result;
use crate::payload::{find_answer, find_progress, now_nanos, progress_head, read_answer, read_progress};
use crate::script::progress_token;

/// State of one call's stream, over all its connections.
pub(crate) struct Reader {
    id: u64,
    /// The beginning of this call's progress notifications.
    head: Vec<u8>,
    /// Accepts the same messages in any JSON form, and event IDs of any kind.
    foreign: bool,
    buf: Vec<u8>,
    /// Bytes at the front of `buf` in which no event ends: large events come in many pieces.
    looked_at: usize,
    /// Progress notifications read; the next one must be this plus one.
    pub(crate) events: u64,
    /// For a foreign server only: numbers that were missing when a later one or the response came,
    /// and numbers that came late or again.
    pub(crate) missing: u64,
    pub(crate) repeated: u64,
    /// Bytes of event stream read.
    pub(crate) bytes: u64,
    /// The last event ID, unchanged.
    pub(crate) cursor: String,
    /// The handle's length in `cursor`, and the number after it.
    place: Option<(usize, u64)>,
    /// The first event ID: the cursor before the first event.
    pub(crate) first_id: String,
    /// Events of any kind with an id.
    pub(crate) ids: u64,
    /// True if the response has come.
    pub(crate) answered: bool,
    /// Nanoseconds from sent to read for each event, if asked for.
    pub(crate) latencies: Option<Vec<u64>>,
    /// Events whose latency does not count.
    timed_after: u64,
}

impl Reader {
    /// Reads the stream of request `id`.
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            head: progress_head(&format!("{:?}", progress_token(id))),
            foreign: false,
            buf: Vec::new(),
            looked_at: 0,
            events: 0,
            missing: 0,
            repeated: 0,
            bytes: 0,
            cursor: String::new(),
            place: None,
            first_id: String::new(),
            ids: 0,
            answered: false,
            latencies: None,
            timed_after: 0,
        }
    }

    /// Reads the stream of request `id` on from event ID `cursor`, which must name the cursor
    /// before the first event.
    pub(crate) fn resuming(id: u64, cursor: &str) -> Result<Self> {
        let mut reader = Self::new(id);
        reader.count_id(cursor, false)?;
        Ok(reader)
    }

    /// Accepts the output of any MCP server: the same messages in its own JSON, and event IDs that
    /// need not count. Lost and repeated events are counted.
    pub(crate) fn with_foreign(mut self, foreign: bool) -> Self {
        self.foreign = foreign;
        self
    }

    /// Keeps the latency of every event after the given number.
    pub(crate) fn with_latencies_after(mut self, events: u64) -> Self {
        (self.latencies, self.timed_after) = (Some(Vec::new()), events);
        self
    }

    /// The buffer for the next bytes of the body, before `take`.
    pub(crate) fn buf(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Drops a partial event left by a cut connection; the next connection sends it whole.
    pub(crate) fn forget_partial(&mut self) {
        self.buf.clear();
        self.looked_at = 0;
    }

    /// Reads every whole event in the buffer; returns the number of progress notifications.
    ///
    /// # Errors
    /// A gap, a repeat, an event that is neither progress nor this call's result, or ids that do
    /// not count.
    pub(crate) fn take(&mut self) -> Result<u64> {
        let before = self.events;
        let buf = std::mem::take(&mut self.buf);
        let mut rest = buf.as_slice();
        // The last byte examined may be the first of the two.
        let mut looked_at = self.looked_at.saturating_sub(1);
        while let Some(end) = memmem::find(&rest[looked_at..], b"\n\n") {
            let end = looked_at + end;
            self.block(&rest[..end])?;
            self.bytes += end as u64 + 2;
            (rest, looked_at) = (&rest[end + 2..], 0);
        }
        let done = buf.len() - rest.len();
        self.looked_at = rest.len();
        self.buf = buf;
        self.buf.drain(..done);
        Ok(self.events - before)
    }

    /// Fails unless the response has come and no bytes are left over.
    pub(crate) fn finish(&self) -> Result<()> {
        if !self.answered {
            return Err(format!(
                "the stream of request {} ended after {} events without a response",
                self.id, self.events
            )
            .into());
        }
        if !self.buf.is_empty() {
            return Err(format!("half an event at the end: {:?}", show(&self.buf)).into());
        }
        if self.ids != 0 && self.ids < self.events {
            return Err(format!("{} events but {} ids", self.events, self.ids).into());
        }
        Ok(())
    }

    fn block(&mut self, block: &[u8]) -> Result<()> {
        let (mut id, mut data) = (None, None);
        let ends = memchr_iter(b'\n', block).chain([block.len()]);
        let mut start = 0;
        for end in ends {
            let line = &block[start..end];
            start = end + 1;
            let (name, value) = field(line);
            match name {
                b"data" if data.is_some() => {
                    return Err(format!("data of two lines: {:?}", show(block)).into());
                }
                b"data" => data = Some(value),
                b"id" => id = Some(std::str::from_utf8(value)?),
                // Comments have an empty name.
                b"event" | b"retry" | b"" => {}
                _ => return Err(format!("not an SSE field: {:?}", show(line)).into()),
            }
        }
        let data = data.unwrap_or_default();
        if let Some(id) = id {
            self.count_id(id, !data.is_empty())?;
        }
        if data.is_empty() { Ok(()) } else { self.message(data) }
    }

    fn message(&mut self, data: &[u8]) -> Result<()> {
        if let Some((seq, sent_at)) = self.progress(data) {
            if self.foreign && (self.answered || seq != self.events + 1) {
                self.count_wrong(seq);
                return Ok(());
            }
            if self.answered || seq != self.events + 1 {
                return Err(format!("event {seq} after {} (answered: {})", self.events, self.answered).into());
            }
            self.events = seq;
            if let Some(latencies) = &mut self.latencies
                && seq > self.timed_after
            {
                latencies.push(now_nanos().saturating_sub(sent_at));
            }
            return Ok(());
        }
        match read_answer(data).or_else(|| find_answer(data).filter(|_| self.foreign)) {
            Some((id, sent)) if id == self.id && sent == self.events && !self.answered => {
                self.answered = true;
                Ok(())
            }
            Some((id, sent)) if self.foreign && id == self.id && sent >= self.events && !self.answered => {
                self.missing += sent - self.events;
                self.answered = true;
                Ok(())
            }
            Some((id, sent)) => {
                Err(format!("result of {id} says {sent} events; request {} had {}", self.id, self.events).into())
            }
            None => Err(format!("neither progress nor a result: {:?}", show(data)).into()),
        }
    }

    fn count_wrong(&mut self, seq: u64) {
        if self.answered || seq <= self.events {
            self.repeated += 1;
        } else {
            self.missing += seq - self.events - 1;
            self.events = seq;
        }
    }

    fn progress(&self, data: &[u8]) -> Option<(u64, u64)> {
        let exact = read_progress(data, &self.head);
        if exact.is_none() && self.foreign { find_progress(data, &progress_token(self.id)) } else { exact }
    }

    /// Event IDs are `<handle>.<seq>`: a message increments the number, an empty event repeats its
    /// place.
    fn count_id(&mut self, id: &str, message: bool) -> Result<()> {
        if self.foreign {
            id.clone_into(&mut self.cursor);
            self.ids += 1;
            return Ok(());
        }
        let Some((handle, seq)) = split_id(id) else {
            return Err(format!("not an event ID: {id:?}").into());
        };
        let due = match self.place {
            Some((length, _)) if self.cursor[..length] != *handle => {
                return Err("the handle changed within a stream".into());
            }
            Some((_, last)) => last + u64::from(message),
            None => u64::from(message),
        };
        if seq != due {
            return Err(format!("event ID {seq} where {due} was due").into());
        }
        if self.first_id.is_empty() {
            self.first_id = id.to_owned();
        }
        self.place = Some((handle.len(), seq));
        self.cursor.clear();
        self.cursor.push_str(id);
        self.ids += 1;
        Ok(())
    }
}

/// The one message of a whole event stream, which may have empty events before it.
pub(crate) fn only_message(body: &[u8]) -> Result<&[u8]> {
    let data =
        body.split(|byte| *byte == b'\n').map(field).filter(|(name, value)| *name == b"data" && !value.is_empty());
    let mut messages = data.map(|(_, value)| value);
    match (messages.next(), messages.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(format!("not a stream of one message: {:?}", show(body)).into()),
    }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b':', line) {
        Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
        None => (line, b""),
    }
}

fn split_id(id: &str) -> Option<(&str, u64)> {
    let (handle, rest) = id.split_once('.')?;
    Some((handle, rest.split('.').next()?.parse().ok()?))
}

/// The beginning of `bytes`, for an error.
fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{write_answer, write_progress};

    fn event(id: &str, seq: u64) -> Vec<u8> {
        let mut data = Vec::new();
        write_progress(&mut data, &progress_head(r#""b9""#), seq, 1, 100);
        [id.as_bytes(), b"event: message\ndata: ", &data, b"\n\n"].concat()
    }

    fn response(id: &str, sent: u64) -> Vec<u8> {
        let mut data = Vec::new();
        write_answer(&mut data, 9, sent, 0);
        [id.as_bytes(), b"data: ", &data, b"\n\n"].concat()
    }

    fn read(parts: &[Vec<u8>]) -> Result<Reader> {
        let mut reader = Reader::new(9);
        for part in parts {
            // Every slicing must read the same.
            for byte in part {
                reader.buf().push(*byte);
                reader.take()?;
            }
        }
        reader.finish()?;
        Ok(reader)
    }

    #[test]
    fn a_whole_stream_is_accepted_with_and_without_ids() -> Result<()> {
        let plain = read(&[event("", 1), event("", 2), response("", 2)])?;
        assert_eq!((plain.events, plain.ids), (2, 0));
        let prime = b"id: h.0\nretry: 1000\ndata: \n\n".to_vec();
        let again = b": heartbeat\n\nid: h.1.x\ndata:\n\n".to_vec();
        let numbered = read(&[prime, event("id: h.1\n", 1), again, event("id: h.2\n", 2), response("id: h.3\n", 2)])?;
        assert_eq!((numbered.first_id.as_str(), numbered.cursor.as_str(), numbered.ids), ("h.0", "h.3", 5));
        Ok(())
    }

    #[test]
    fn what_a_foreign_server_loses_or_repeats_is_counted() -> Result<()> {
        let mut reader = Reader::new(9).with_foreign(true);
        let parts =
            [event("id: any_1\n", 1), event("id: b\n", 4), event("", 4), event("", 2), response("", 6), event("", 5)];
        reader.buf().extend_from_slice(&parts.concat());
        reader.take()?;
        assert_eq!((reader.missing, reader.repeated, reader.cursor.as_str(), reader.answered), (4, 3, "b", true));
        Ok(())
    }

    #[test]
    fn an_answer_may_be_the_one_message_of_a_stream() -> Result<()> {
        assert_eq!(only_message(b"id: 1\ndata: \n\nevent: message\ndata: {}\n\n")?, b"{}");
        assert!(only_message(b"data: {}\n\ndata: {}\n\n").is_err() && only_message(b": nothing\n\n").is_err());
        Ok(())
    }

    #[test]
    fn gaps_repeats_and_strangers_are_refused() {
        let cases: [&[Vec<u8>]; 7] = [
            &[event("", 2), response("", 2)],
            &[event("", 1), event("", 1), response("", 1)],
            &[event("", 1), response("", 2)],
            &[event("", 1)],
            &[event("id: h.2\n", 1), response("id: h.3\n", 1)],
            &[event("id: h.1\n", 1), event("id: g.2\n", 2), response("id: h.3\n", 2)],
            &[b"data: {\"jsonrpc\":\"2.0\",\"id\":9,\"error\":{\"code\":-32010}}\n\n".to_vec()],
        ];
        for (n, case) in cases.iter().enumerate() {
            assert!(read(case).is_err(), "case {n} was accepted");
        }
    }
}
