//! A translated request that was sent to the server, until its response begins.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::request::ClientRequest;
use super::running::{Begun, Traits};
use super::session::LegacySession;
use super::standalone;
use crate::protocol::bridge::modern_clients as bridge;
use crate::protocol::jsonrpc::RequestId;
use crate::upstream::server::synthetic;

/// A request whose response has not begun. Dropping it cancels the request at the server, where a
/// disconnect cancels nothing.
pub(super) struct Awaited {
    session: Arc<LegacySession>,
    request: Arc<ClientRequest>,
    /// ID at the server.
    own: String,
    /// Messages on the standalone stream that concern the request. `None` if the request accepts no
    /// server requests.
    inbox: Option<mpsc::Receiver<Bytes>>,
    early: Option<Bytes>,
    is_cancelled_by_drop: bool,
}

impl Awaited {
    /// Registers a request before it is sent under the ID `own`. From now on it gets server
    /// requests.
    pub(super) fn new(session: &Arc<LegacySession>, request: &Arc<ClientRequest>, own: String) -> Self {
        let (session, request) = (session.clone(), request.clone());
        let mut awaited = Self { session, request, own, inbox: None, early: None, is_cancelled_by_drop: true };
        if awaited.request.kind.may_request_input() {
            awaited.inbox = Some(awaited.begin());
        }
        awaited
    }

    fn begin(&self) -> mpsc::Receiver<Bytes> {
        let (takes_requests, wants_logs) =
            (self.request.kind.may_request_input(), self.request.envelope.log_level.is_some());
        let Begun { inbox, announces_roots } =
            self.session.calls.begin(&self.own, Traits { takes_requests, wants_logs });
        if announces_roots {
            self.post(bridge::roots_changed());
        }
        inbox
    }

    /// Waits for a message that arrives before the response begins. Pending forever without an
    /// inbox.
    pub(super) async fn early_message(&mut self) {
        match &mut self.inbox {
            Some(inbox) => match inbox.recv().await {
                Some(message) => self.early = Some(message),
                None => pending().await,
            },
            None => pending().await,
        }
    }

    /// Prevents the cancellation: the server has nothing to cancel.
    pub(super) fn disarm(&mut self) {
        self.is_cancelled_by_drop = false;
    }

    /// Hands the request over: its ID, its inbox, and a message that arrived before the response
    /// began.
    pub(super) fn into_parts(mut self) -> (String, mpsc::Receiver<Bytes>, Option<Bytes>) {
        self.is_cancelled_by_drop = false;
        let inbox = self.inbox.take().unwrap_or_else(|| self.begin());
        (std::mem::take(&mut self.own), inbox, self.early.take())
    }

    fn post(&self, message: Vec<u8>) {
        let (session, template) = (self.session.clone(), self.request.template.clone());
        tokio::spawn(async move { session.post(&template, message).await });
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let inbox = self.inbox.take();
        if inbox.is_some() {
            self.session.calls.end(&self.own);
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        // Unassociated messages may belong to another call.
        let mut messages: Vec<Bytes> = self.early.take().into_iter().collect();
        if let Some(mut inbox) = inbox {
            inbox.close();
            while let Ok(message) = inbox.try_recv() {
                messages.push(message);
            }
        }
        for message in &messages {
            standalone::reassign(&self.session, message);
        }
        if self.is_cancelled_by_drop {
            self.post(synthetic::cancelled(&RequestId::String(self.own.as_str().into())));
        }
    }
}
