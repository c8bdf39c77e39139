//! Shared servers: the sessions of one caller with equal parameters use one server.
//!
//! The first `initialize` starts the server. Later ones get a copy of its response. Owned here: the
//! sessions that share a server, and the end of each. Absent: the start (`start`, for all requests
//! that wait for it), the messages of each session (`connection/`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::caller::Sharers;
use super::metrics::EndReason;
use super::pending_start::{StartRequest, StartResponse};
use super::server::Server;
use super::table::{Channels, Session, SharedServer, State};
use crate::protocol::channel::ids::MemberKey;
use crate::{clock, sync};

impl Channels {
    /// Opens a session for `request` at the running server of its sharers, if there is one.
    pub(super) fn join(&self, state: &mut State, sharers: &Sharers, request: &StartRequest) -> Option<StartResponse> {
        let SharedServer { server, initialize_response } = state.shared.get(sharers)?;
        let (server, body) = (server.clone(), initialize_response.clone());
        if let Some(unused) = server.connection.surplus_member() {
            // Without revival no session may end in favour of another. A second server is started
            // then.
            if !self.settings.bounds.is_some_and(|bounds| bounds.may_replace) {
                return None;
            }
            end_member(state, &server, unused, EndReason::Room);
        }
        let name = open(state, &server)?;
        Some(StartResponse { body: request.with_own_id(&body), name: Some(name) })
    }

    /// Opens a session for each pending request of a start whose server has responded.
    pub(super) fn open_to(&self, number: u64, sharers: Sharers, server: &Arc<Server>, response: &Bytes) {
        let mut state = sync::lock(&self.state);
        let state = &mut *state;
        let start = state.pending_starts.remove(&number);
        for mut request in start.map(|start| start.into_requests()).unwrap_or_default() {
            if !request.is_open() {
                continue;
            }
            // A request without room sees the end of its wait.
            let Some(name) = open(state, server) else { return };
            request.respond(response, Some(name));
        }
        state.shared.insert(sharers, SharedServer { server: server.clone(), initialize_response: response.clone() });
    }

    /// Ends a server without a session, after the configured time (`keep`).
    pub(super) async fn keep_deserted(&self, server: &Server) {
        if !server.connection.is_deserted() {
            return;
        }
        tokio::select! {
            () = clock::sleep(self.settings.keep) => {}
            _ = server.connection.ended() => {}
        }
        // No session joins while the state is locked.
        let _state = sync::lock(&self.state);
        if server.connection.is_deserted() && server.connection.ending().is_none() {
            server.end(EndReason::Idle);
        }
    }

    /// Ends a session. The last session ends its server.
    pub(super) fn end_session(&self, session: &Session, reason: EndReason) {
        end_member(&mut sync::lock(&self.state), &session.server, session.member, reason);
    }

    /// Ends the sessions of a shared server that are idle for this long.
    pub(super) fn end_idle_members(&self, server: &Server, idle: Duration) {
        let mut state = sync::lock(&self.state);
        for member in server.connection.idle_members(clock::now(), idle) {
            end_member(&mut state, server, member, EndReason::Idle);
        }
    }
}

/// Opens a session at a server, and returns its name. `None` if the server has ended or is full.
fn open(state: &mut State, server: &Arc<Server>) -> Option<String> {
    let member = server.connection.join()?;
    let name = Session::new_name();
    state.sessions.insert(name.clone(), Session { server: server.clone(), member });
    Some(name)
}

/// Ends a session. The locked state lets no session join a server that ends with its last one.
fn end_member(state: &mut State, server: &Server, member: MemberKey, reason: EndReason) {
    if server.connection.end_member(member) {
        // The end of the server removes its names.
        return server.end(reason);
    }
    state.sessions.retain(|_, session| session.server.number != server.number || session.member != member);
}
