//! Progress of a stream's requests: the tokens of their client, and the
//! server's last progress.
//!
//! Invariants: the request is read when its tokens are needed, and no event as it passes. A look
//! reads the events that its connection has written since the look before, at most the newest MiB.
//! Absent: the progress of the proxy's own (`due_progress.rs`), and the form of progress
//! (`protocol/progress.rs`).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock;
use crate::event_log::backing::schema::ProgressRecord;
use crate::protocol::client_names::ClientNames;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc;
use crate::protocol::progress::{self, Progress, ProgressToken, TokenOfRequest};
use crate::protocol::sse;
use crate::protocol::tail::Tail;

/// Size limit of the events that one look reads, in bytes.
pub(super) const LOOKED_AT: usize = 1024 * 1024;

/// Body of a call whose requests may want progress. Most calls end before it is read.
#[derive(Clone)]
pub struct AskingRequests {
    /// Owner of the body: a reference to it costs less than one to the bytes.
    pub body: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// Clients that get no progress of the proxy's own, if the request itself names its client.
    pub except: Option<ClientNames>,
}

/// Masked.
impl fmt::Debug for AskingRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingRequests").finish_non_exhaustive()
    }
}

impl AskingRequests {
    pub(super) fn tokens(&self) -> Vec<TokenOfRequest> {
        let is_excepted = self.except.as_ref().is_some_and(|except| {
            jsonrpc::meta_client_name((*self.body).as_ref()).is_some_and(|name| except.has(&name))
        });
        if is_excepted { Vec::new() } else { progress::tokens((*self.body).as_ref()) }
    }
}

/// Progress that the requests of a stream want.
#[derive(Debug)]
pub struct CallProgress {
    /// Start of the call, since 1970.
    began: Duration,
    pub(super) requests: Box<[RequestProgress]>,
}

/// Progress that one request wants.
#[derive(Debug)]
pub(super) struct RequestProgress {
    pub(super) asked: TokenOfRequest,
    /// Value of the last notification of the proxy's own, on any connection of this process, or
    /// `None` before the first.
    pub(super) own: Mutex<Option<f64>>,
}

/// Progress of the server that one connection has written.
#[derive(Clone, Debug, Default)]
pub struct WrittenProgress {
    /// Last event that was read.
    upto: Seq,
    /// Event and contents of the last progress of each request, or `None` before the first. The
    /// messages are left in the log.
    pub(super) last: Vec<Option<(Seq, Progress)>>,
}

impl CallProgress {
    pub(in crate::event_log) fn restore(record: ProgressRecord) -> Self {
        Self::of(Duration::from_millis(record.began_ms), record.tokens)
    }

    pub(super) fn of(began: Duration, tokens: Vec<TokenOfRequest>) -> Self {
        let requests = tokens.into_iter().map(|asked| RequestProgress { asked, own: Mutex::default() });
        Self { began, requests: requests.collect() }
    }

    pub(in crate::event_log) fn record(&self) -> ProgressRecord {
        let tokens = self.requests.iter().map(|request| request.asked.clone()).collect();
        ProgressRecord { began_ms: u64::try_from(self.began.as_millis()).unwrap_or(u64::MAX), tokens }
    }

    /// Returns the time since the call began.
    pub fn running(&self) -> Duration {
        clock::wall().saturating_sub(self.began)
    }

    fn tokens(&self) -> impl Iterator<Item = &ProgressToken> + Clone {
        self.requests.iter().map(|request| &request.asked.token)
    }
}

impl WrittenProgress {
    /// Reads the events up to `cursor` that were not read before, the newest first, until all
    /// tokens are found or the limit is reached.
    pub(super) fn read(&mut self, tail: &Tail, progress: &CallProgress, cursor: Seq) {
        self.last.resize_with(progress.requests.len(), || None);
        let mut found = vec![false; progress.requests.len()];
        let mut read = 0;
        let after = self.upto.max(tail.trimmed());
        self.upto = self.upto.max(cursor);
        for (seq, event) in tail.events_after(after).rev().skip_while(|(seq, _)| *seq > cursor) {
            read += event.len();
            if read > LOOKED_AT || !found.contains(&false) {
                break;
            }
            if progress::may_have_progress(event) {
                // Of several for one token in one event the last counts.
                let mut here: Vec<Option<Progress>> = vec![None; found.len()];
                progress::for_each_progress(&sse::encoded_data(event), progress.tokens(), |index, progress| {
                    here[index] = Some(Progress { message: None, ..progress });
                });
                for (index, progress) in here.into_iter().enumerate() {
                    if let Some(progress) = progress
                        && !std::mem::replace(&mut found[index], true)
                    {
                        self.last[index] = Some((seq, progress));
                    }
                }
            }
        }
    }
}

/// Returns the message of the progress at `seq`, or `None` if it has none, or is no longer in the
/// log.
pub(super) fn message_at(tail: &Tail, seq: Seq, token: &ProgressToken) -> Option<String> {
    let event = if seq > tail.trimmed() { tail.event(seq) } else { None };
    let mut message = None;
    progress::for_each_progress(&sse::encoded_data(event?), std::iter::once(token), |_, progress| {
        message = progress.message;
    });
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::stream::Batch;
    use crate::store::WriterEpoch;

    fn call() -> CallProgress {
        let body = br#"[{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1}}},
            {"jsonrpc":"2.0","id":2,"method":"m","params":{"_meta":{"progressToken":"b"}}}]"#;
        let asking = AskingRequests { body: Arc::new(body), except: None };
        CallProgress::of(Duration::from_millis(1_500), asking.tokens())
    }

    fn append(tail: &mut Tail, data: &str) -> Seq {
        let mut batch = Batch::starting_at(Seq(tail.last().0 + 1));
        batch.push(b"message", data.as_bytes());
        tail.append(WriterEpoch::default(), tail.last(), &batch);
        tail.last()
    }

    fn progress_of(token: &str, value: u32) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{value},"message":"m{value}"}}}}"#
        )
    }

    fn known(written: &WrittenProgress) -> Vec<Option<(u64, f64)>> {
        written.last.iter().map(|last| last.as_ref().map(|(seq, progress)| (seq.0, progress.value))).collect()
    }

    #[test]
    fn a_look_finds_the_last_progress_that_was_written() {
        let (call, mut tail, mut written) = (call(), Tail::new(), WrittenProgress::default());
        for value in 1..4 {
            append(&mut tail, &progress_of("1", value));
        }
        written.read(&tail, &call, Seq(2));
        assert_eq!(known(&written), [Some((2, 2.0)), None], "the third was not written");
        let both = format!("[{},{},{}]", progress_of("1", 4), progress_of("\"b\"", 7), progress_of("1", 5));
        append(&mut tail, &both);
        append(&mut tail, r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
        written.read(&tail, &call, Seq(5));
        assert_eq!(known(&written), [Some((4, 5.0)), Some((4, 7.0))]);
        assert_eq!(message_at(&tail, Seq(4), &call.requests[1].asked.token).as_deref(), Some("m7"));
        tail.trim(Seq(4));
        assert_eq!(message_at(&tail, Seq(4), &call.requests[1].asked.token), None);
        written.read(&tail, &call, Seq(5));
        assert_eq!(known(&written), [Some((4, 5.0)), Some((4, 7.0))], "nothing is read again");
    }

    #[test]
    fn a_look_reads_the_newest_mebibyte() {
        let (call, mut tail) = (call(), Tail::new());
        append(&mut tail, &progress_of("1", 1));
        let filler = format!(r#"{{"jsonrpc":"2.0","method":"x","params":"{}"}}"#, "x".repeat(LOOKED_AT / 2));
        append(&mut tail, &filler);
        let mut written = WrittenProgress::default();
        written.read(&tail, &call, Seq(2));
        assert_eq!(known(&written)[0], Some((1, 1.0)));
        append(&mut tail, &filler);
        let mut written = WrittenProgress::default();
        written.read(&tail, &call, Seq(3));
        assert_eq!(known(&written)[0], None);
    }

    #[test]
    fn a_record_names_the_tokens_and_the_start() {
        let record = serde_json::to_string(&call().record()).unwrap();
        assert_eq!(record, r#"{"began_ms":1500,"tokens":[{"request":0,"token":"1"},{"request":1,"token":"\"b\""}]}"#);
        assert_eq!(CallProgress::restore(serde_json::from_str(&record).unwrap()).record(), call().record());
    }
}
