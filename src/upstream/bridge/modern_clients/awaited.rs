//! A client's request at the server, until its response begins.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::running::{Begun, Traits};
use super::session::LegacySession;
use super::{ClientRequest, ModernClients, standalone};
use crate::protocol::bridge::modern_clients as bridge;
use crate::protocol::jsonrpc::RequestId;
use crate::upstream::server::synthetic;

/// A request whose response has not begun. Dropped, it is cancelled at the server: a disconnect
/// cancels nothing there.
pub(super) struct Awaited {
    clients: Arc<ModernClients>,
    session: Arc<LegacySession>,
    request: ClientRequest,
    /// ID at the server.
    own: String,
    /// Messages on the session's own stream that concern the request, or `None` for one in which
    /// nothing can be asked.
    inbox: Option<mpsc::Receiver<Bytes>>,
    early: Option<Bytes>,
    is_cancelled_by_drop: bool,
}

impl Awaited {
    /// Begins with a request that is to be sent under this ID. From now on it may be asked in.
    pub(super) fn new(
        clients: &Arc<ModernClients>,
        session: &Arc<LegacySession>,
        request: &ClientRequest,
        own: String,
    ) -> Self {
        let (clients, session, request) = (clients.clone(), session.clone(), request.clone());
        let mut awaited = Self { clients, session, request, own, inbox: None, early: None, is_cancelled_by_drop: true };
        if awaited.request.kind.may_request_input() {
            awaited.inbox = Some(awaited.begin());
        }
        awaited
    }

    fn begin(&self) -> mpsc::Receiver<Bytes> {
        let (may_ask, wants_logs) = (self.request.kind.may_request_input(), self.request.envelope.log_level.is_some());
        let Begun { inbox, tells_roots } = self.session.calls.begin(&self.own, Traits { may_ask, wants_logs });
        if tells_roots {
            self.post(bridge::roots_changed());
        }
        inbox
    }

    /// Waits for a message that comes before the response begins.
    pub(super) async fn early_message(&mut self) {
        match &mut self.inbox {
            Some(inbox) => match inbox.recv().await {
                Some(message) => self.early = Some(message),
                None => pending().await,
            },
            None => pending().await,
        }
    }

    /// Notes that there is nothing to be cancelled at the server.
    pub(super) fn note_answered(&mut self) {
        self.is_cancelled_by_drop = false;
    }

    /// Hands the request over: its ID, its messages, and the first of them if it came before the
    /// response began.
    pub(super) fn into_parts(mut self) -> (String, mpsc::Receiver<Bytes>, Option<Bytes>) {
        self.is_cancelled_by_drop = false;
        let inbox = self.inbox.take().unwrap_or_else(|| self.begin());
        (std::mem::take(&mut self.own), inbox, self.early.take())
    }

    fn post(&self, message: Vec<u8>) {
        let (clients, session) = (self.clients.clone(), self.session.clone());
        let template = self.request.template.clone();
        tokio::spawn(async move { clients.post(&session, &template, message).await });
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
        // What names no call may be another call's.
        let mut messages: Vec<Bytes> = self.early.take().into_iter().collect();
        if let Some(mut inbox) = inbox {
            inbox.close();
            while let Ok(message) = inbox.try_recv() {
                messages.push(message);
            }
        }
        for message in &messages {
            standalone::ask_again(&self.clients, &self.session, message);
        }
        if self.is_cancelled_by_drop {
            self.post(synthetic::cancelled(&RequestId::String(self.own.as_str().into())));
        }
    }
}
