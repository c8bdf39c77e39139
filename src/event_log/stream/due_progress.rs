//! Requests that are due for progress of the proxy's own when their connection looks.
//!
//! Owned here: the decision and the value, and the time of a read of the request. A notification is
//! no event: it has no number, and only the last value is kept. Absent: the time of a look
//! (`delivery/beats.rs`), the tokens and the progress of the server (`progress.rs`), and the bytes
//! (`protocol/progress.rs`).

use crate::clock;
use crate::event_log::stream::Stream;
use crate::event_log::stream::attachment::Attachment;
use crate::event_log::stream::progress::{AskingRequests, CallProgress, LOOKED_AT, WrittenProgress, message_at};
use crate::protocol::dialect::resume_tokens::Renaming;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc;
use crate::protocol::progress::{self, Progress};
use crate::protocol::sse;
use crate::protocol::stream::{OwedResponse, Phase};
use crate::sync;

/// Words for a call at the server, and for a call that waits for a server that accepts no
/// connections.
const RUNNING: &str = "still running";
const WAITING: &str = "waiting for the server";

impl Attachment {
    /// Looks at what this connection has written: the events up to `cursor`. Returns a notification
    /// of the proxy's own for each request that wants progress, has no response, is not
    /// cancelled, and got no progress in the events after `since`; none while no upstream
    /// connection has the call and the call waits for none, and none once another connection reads
    /// the stream.
    pub fn due_progress(&self, written: &mut WrittenProgress, since: Seq, cursor: Seq) -> Vec<Vec<u8>> {
        let stream = self.stream();
        let Some(progress) = stream.progress() else { return Vec::new() };
        let running = progress.running();
        let inner = stream.shared.lock();
        let machine = &inner.machine;
        // A stream that another replica writes is known to be open there, and no more.
        let upstream = stream.upstream();
        let has_upstream = inner.is_restored || upstream.is_open() || upstream.is_waiting();
        let state = if upstream.is_waiting() { WAITING } else { RUNNING };
        let is_open = machine.lifecycle().phase() == Phase::Open && machine.lifecycle().ending().is_none();
        if !has_upstream || !is_open || !machine.reader().is(self.id()) {
            return Vec::new();
        }
        written.read(&inner.tail, progress, cursor);
        let owed: Vec<OwedResponse> = machine.owed_responses().iter().map(|(_, owed)| owed).collect();
        let mut due = Vec::new();
        for (request, last) in progress.requests.iter().zip(&written.last) {
            let is_running = owed.get(request.asked.request) == Some(&OwedResponse::Due);
            let is_silent = last.as_ref().is_none_or(|(seq, _)| *seq <= since);
            if is_running && is_silent {
                let token = &request.asked.token;
                let server = last.as_ref().map(|(seq, progress)| Progress {
                    message: message_at(&inner.tail, *seq, token),
                    ..progress.clone()
                });
                let mut own = sync::lock(&request.own);
                let value = progress::next_value(*own, server.as_ref().map(|server| server.value));
                *own = Some(value);
                due.push(progress::notification(token, value, server.as_ref(), (state, running)));
            }
        }
        drop(inner);
        due.into_iter().filter_map(|message| self.in_names_of_slice(message)).collect()
    }

    /// Returns a message of the proxy's own in the names of the slice that is read, or `None` if
    /// its client wants none.
    fn in_names_of_slice(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        match self.slice().map_or(Renaming::Same, |slice| slice.rename(&message)) {
            Renaming::Same => Some(message),
            Renaming::Changed(splices) => Some(jsonrpc::splice(&message, splices)),
            Renaming::Unwanted => None,
        }
    }
}

impl Stream {
    /// Keeps the body of a running call until its end, or until [`Self::progress`] has read it.
    pub fn keep_asking(&self, asking: AskingRequests) {
        self.shared.lock().asking = Some(asking);
    }

    /// Returns the text of the server's last progress in the newest MiB of the log, or `None`
    /// without one.
    pub fn last_progress_text(&self) -> Option<String> {
        let inner = self.shared.lock();
        let mut read = 0;
        let mut events = inner.tail.events_after(inner.tail.trimmed()).rev().take_while(|(_, event)| {
            read += event.len();
            read <= LOOKED_AT
        });
        events.find_map(|(_, event)| {
            if progress::may_have_progress(event) { progress::status_text(&sse::encoded_data(event)) } else { None }
        })
    }

    /// Returns the progress that the requests want, or `None` if connections write no progress of
    /// the proxy's own. Reads the body at the first call.
    pub fn progress(&self) -> Option<&CallProgress> {
        let asking = if self.progress.get().is_none() { self.shared.lock().asking.clone() } else { None };
        if let Some(asking) = asking {
            self.progress.get_or_init(|| {
                let began = clock::wall().saturating_sub(clock::now().saturating_duration_since(self.created()));
                let tokens = asking.tokens();
                if tokens.is_empty() { None } else { Some(Box::new(CallProgress::of(began, tokens))) }
            });
            self.shared.lock().asking = None;
        }
        // Another task may have read the body meanwhile.
        self.progress.get()?.as_deref()
    }
}
