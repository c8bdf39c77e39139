//! Identification of callers: the party, the session and the quota of each request.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;

use super::components::Components;
use super::connection::Connection;
use super::context::{Arrival, RequestContext, Sender, SessionKind};
use super::misdirected;
use crate::channel::{Caller, UnusableHeader, Variables};
use crate::clock;
use crate::config::Config;
use crate::event_log::{Binding, Home, Opened, PresentedCredentials, Principal, QuotaKey};
use crate::protocol::bridge::legacy_clients::is_session_name;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Present, RequestFacts, SessionId, names};
use crate::protocol::ids::IssuedSession;
use crate::protocol::trace::RequestTrace;
use crate::store;
use crate::upstream::{Bridge, Credentials};

/// Error margin for the rest of a lease without renewal. A lease that seems to last longer was
/// renewed: its replica lives.
const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// Returns the variables that the headers of a request become in the caller's process.
///
/// # Errors
/// A header that cannot become a variable.
pub(super) fn variables(components: &Components, parts: &Parts) -> Result<Variables, UnusableHeader> {
    match &components.config.upstream.command {
        Some(command) if !command.env_from_headers.is_empty() => {
            Variables::of(&command.env_from_headers, &parts.headers)
        }
        Some(_) | None => Ok(Variables::default()),
    }
}

/// Returns the context of a request that came by `connection`, with a head of these facts and this
/// size. `variables` are those of the caller's process.
pub(super) fn identify(
    components: &Components,
    mut parts: Parts,
    mut facts: RequestFacts,
    head_bytes: usize,
    connection: Arc<Connection>,
    sender: Sender,
    variables: Variables,
) -> Box<RequestContext> {
    let presented = PresentedCredentials {
        headers: &parts.headers,
        query: parts.uri.query(),
        certificate: connection.certificate(),
    };
    let (principal, subject) = if shows_nothing(components, &presented, &facts) {
        (Principal::Anonymous, None)
    } else {
        let principal = components.principals.of(&presented);
        (principal, components.principals.subject_of(&principal, &presented))
    };
    // Any caller can invent values of variables.
    let counted = if components.principals.has_variables() && components.principals.are_named() {
        components.principals.without_variables(&presented)
    } else {
        principal
    };
    // A credential is hashed once if it also identifies its caller.
    let presented = if components.principals.is_auto() { principal } else { components.credentials.of(&presented) };
    let credentials = Credentials { presented, principal };
    // Of a server that gets credentials of the operator, no response proves the caller's.
    let has_proven = || {
        components.upstream.observed().has_proven(&credentials) && !components.config.upstream.has_static_credentials()
    };
    let is_proven = components.principals.are_named() || has_proven();
    let (id, issued) = session_of(components, facts.session.take(), &mut parts);
    let is_issued = issued.is_some();
    let sessions = components.log.sessions();
    let session = match (&id, issued) {
        (Some(id), Some(IssuedSession { version, declared, rules, has_tasks })) => {
            let initialize_id = None;
            let opened = Opened { version, logging: false, declared, rules, has_tasks, initialize_id };
            Some(sessions.find_or_open(id, &principal, opened))
        }
        (Some(id), None) if parts.method == Method::POST => Some(sessions.find_or_record(id, &principal)),
        (Some(id), None) => sessions.find(id, &principal),
        (None, _) => None,
    };
    let has_home_here = || session.as_ref().is_some_and(|session| session.has_home_here());
    let session_kind = match &id {
        _ if is_issued => SessionKind::Issued,
        Some(id) if misdirected::names_other_replica(components, id, sender) && !has_home_here() => SessionKind::Remote,
        Some(_) | None => SessionKind::Upstream,
    };
    let address = connection.client(&parts.headers);
    let is_open = session.as_ref().is_some_and(|session| session.version().is_some());
    let open_session = if is_open { id.as_ref() } else { None };
    let key = QuotaKey::of(&counted, is_proven, open_session, address);
    let quota = connection.quota(key, |key| components.log.quota(key));
    // All sessions of a caller count together.
    let counted_as = || QuotaKey::of(&counted, is_proven, None, address);
    let is_bridged = id.as_ref().is_some_and(|id| is_session_name(id.as_str().as_bytes()));
    if is_bridged && let Some(bridge) = components.upstream.bridge() {
        bridge.record_bridged_session();
    }
    let has_own_server = is_bridged
        || components.upstream.has_channels()
        || components.upstream.bridge().is_some_and(Bridge::may_translate);
    let caller = has_own_server
        .then(|| Arc::new(Caller::new(principal, counted_as()).claiming(subject).with_variables(variables)));
    let arrival = components
        .log
        .traces()
        .map(|_| Box::new(Arrival { at: clock::wall(), trace: RequestTrace::of(&parts.headers, &[]) }));
    Box::new(RequestContext {
        parts,
        facts,
        binding: Binding { principal, subject, session: id },
        credentials,
        session,
        session_kind,
        sender,
        address,
        quota,
        caller,
        head_bytes,
        body_bytes: 0,
        reservation: None,
        connection,
        reliance: None,
        arrival,
    })
}

/// Returns true if the usual credentials identify callers, and the request shows no credential.
fn shows_nothing(components: &Components, presented: &PresentedCredentials<'_>, facts: &RequestFacts) -> bool {
    components.principals.is_auto()
        && !components.principals.has_variables()
        && !facts.has(Present::Credential)
        && presented.query.is_none()
        && presented.certificate.is_none()
}

/// Returns whether all is known of the session that a request names: the result of its
/// `initialize`, and its home.
pub(super) fn knows_session(components: &Components, context: &RequestContext) -> bool {
    let Some(session) = &context.session else { return false };
    session.is_known() && (!components.upstream.revives_sessions() || components.log.homes().knows_home(session))
}

/// Restores the session that a request names, if another process knows more of it.
///
/// # Errors
/// `StoreFailed` if no request may be served without that knowledge, or `Draining` if another
/// replica must take the session over.
pub(super) async fn restore_session(components: &Components, context: &mut RequestContext) -> Result<(), ErrorCode> {
    let Some(id) = context.binding.session.clone() else { return Ok(()) };
    let is_known = context.session.as_ref().is_some_and(|session| session.is_known());
    let loaded =
        if is_known { Ok(None) } else { components.log.stored_sessions().load(&id, &context.binding.principal).await };
    if let Some(session) = loaded.map_err(|_| ErrorCode::StoreFailed)? {
        context.session = Some(session);
    }
    if components.upstream.revives_sessions() && !context.has_issued_session() {
        find_home(components, context, &id).await?;
    }
    Ok(())
}

/// Finds the home of the session. A session with a replica in its name, but without a living home,
/// is taken over.
async fn find_home(components: &Components, context: &mut RequestContext, id: &SessionId) -> Result<(), ErrorCode> {
    let term = components.log.homes().present_term();
    let is_named = misdirected::names_replica(components, id, context.sender);
    let home = match search_home(components, context, id, is_named).await {
        Ok(home) => home,
        Err(error) if components.log.homes().should_wait_after(&error) => return Err(ErrorCode::StoreFailed),
        // The session may be here, or may have to be taken over.
        Err(_) if context.has_remote_session() && context.sender.is_routed() => return Err(ErrorCode::StoreFailed),
        // The name of the session decides.
        Err(_) => return Ok(()),
    };
    match home {
        Home::Here(handshake) => {
            context.session_kind = SessionKind::Upstream;
            if let Some(session) = &context.session {
                session.note_home_here(term, handshake.may_revive(&context.binding.principal));
            }
        }
        Home::Elsewhere(owner) if is_named => {
            context.session_kind = SessionKind::Remote;
            let sessions = components.log.sessions();
            let session =
                context.session.get_or_insert_with(|| sessions.find_or_record(id, &context.binding.principal));
            session.note_home_elsewhere(owner);
        }
        Home::Gone(_) if is_named && components.drain.is_refusing_calls() => return Err(ErrorCode::Draining),
        // The server here says whether it has the session.
        Home::Elsewhere(_) | Home::Gone(_) | Home::Unknown => {
            if let Some(session) = &context.session {
                session.note_home_unknown(term);
            }
        }
    }
    Ok(())
}

async fn search_home(
    components: &Components,
    context: &RequestContext,
    id: &SessionId,
    is_named: bool,
) -> Result<Home, store::Error> {
    let principal = &context.binding.principal;
    let mut home = components.log.homes().find(id).await?;
    if let (Home::Elsewhere(owner), Sender::StandIn(lost)) = (&home, context.sender)
        && *owner == lost
    {
        components.log.homes().await_end(id, lost, principal, home_wait(&components.config)).await?;
        home = components.log.homes().find(id).await?;
    }
    match home {
        Home::Gone(_) if is_named && !components.drain.is_refusing_calls() => {
            components.log.homes().take_over(id, principal).await
        }
        home => Ok(home),
    }
}

/// Returns the session that a request names. A session that the proxy issued is never named
/// upstream. A session that claims to be issued, but with another key, counts as absent.
fn session_of(
    components: &Components,
    named: Option<SessionId>,
    parts: &mut Parts,
) -> (Option<SessionId>, Option<IssuedSession>) {
    let Some(id) = named else { return (None, None) };
    if !IssuedSession::is_claimed_by(&id) {
        return (Some(id), None);
    }
    parts.headers.remove(names::MCP_SESSION_ID);
    let issued = components.log.open_issued(&id);
    if issued.is_some() { (Some(id), issued) } else { (None, None) }
}

/// Returns the limit of the wait for the lease of a home that a balancer does not reach.
fn home_wait(config: &Config) -> Duration {
    match config.upstream.wait {
        Duration::ZERO => Duration::ZERO,
        wait => wait.min(config.replica.lease) + LEASE_MARGIN,
    }
}
