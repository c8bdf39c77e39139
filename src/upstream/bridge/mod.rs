//! Bridge: translation between clients and servers that share no revision.
//!
//! Owned here: the decision whether a request is translated. [`modern_clients`] translates requests
//! of clients of 2026-07-28 for a server of the revisions with sessions. [`legacy_clients`]
//! translates requests of older clients for a server of 2026-07-28. Absent: the bytes of the
//! messages (`protocol/bridge/`).
//!
//! The calls of both directions share no table with each other, or with the calls of a channel. A
//! channel finds the call of a message by its ID, since all messages of a server arrive on one
//! connection (`protocol/channel/routing.rs`). Here each call has a response of its own. So a
//! cancel ends that response, and a late message meets no other call.

mod era_discovery;
mod legacy_clients;
mod modern_clients;
mod outbox;
mod responses;
mod sessions;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};

use self::era_discovery::EraDiscovery;
use self::legacy_clients::LegacyClients;
use self::modern_clients::{ModernClients, Translated};
use self::responses::{refuses_request, unknown_session};
use self::settings::Link;
pub use self::settings::Settings;
use super::observed::Observed;
use super::server::Server;
use super::server::body::begun;
use super::server::exchange::{Exchange, Exchanged};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sent::Sent;
use super::session_refusals::Revivals;
use crate::config;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, Era, ProtocolVersion, names};
use crate::protocol::jsonrpc::{self, code, error_code};
use crate::protocol::tasks;

/// Size limit of a refusal of the revision, and time limit for its body.
const REFUSAL_MAX: usize = 4096;
const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Translates requests. All workers share it.
pub struct Bridge {
    mode: config::ModernClients,
    era: Arc<EraDiscovery>,
    modern_clients: Arc<ModernClients>,
    /// Translation for clients of older revisions, or `None` if it is switched off.
    legacy_clients: Option<Arc<LegacyClients>>,
}

impl Bridge {
    /// Creates a bridge. `server` has connections of the bridge's own.
    pub(super) fn new(
        settings: Settings,
        server: Arc<Server>,
        revivals: Arc<Revivals>,
        observed: Arc<Observed>,
    ) -> Arc<Self> {
        let link = Arc::new(Link { settings, server });
        let era = Arc::new(EraDiscovery::new(link.clone()));
        let legacy_clients = || LegacyClients::new(link.clone(), observed.clone(), era.clone());
        Arc::new(Self {
            mode: link.settings.config.modern_clients,
            legacy_clients: link.settings.config.legacy_clients.then(legacy_clients),
            era: era.clone(),
            modern_clients: ModernClients::new(link.clone(), revivals, observed.clone()),
        })
    }

    /// Translates a request and returns its response. Returns `None` if the request must be
    /// forwarded unchanged: its revision has sessions, the server speaks its revision, or it has a
    /// proof.
    pub(super) async fn send(&self, server: &Server, template: &Template, sent: Option<&Sent>) -> Option<Exchanged> {
        if let Some(legacy) = self.legacy_clients.as_ref().filter(|_| LegacyClients::names_session(template)) {
            return Some(unpromised(legacy.send(server, template, sent).await));
        }
        // The requests of a translation would have no proof.
        if template.has_proof() && !server.has_channels() {
            return None;
        }
        if self.modern_clients.has_parked(template) {
            // The call is already running, so a later change of the server's era does not affect
            // it.
            let translated = self.modern_clients.send(server, template, sent).await;
            let unreachable = || Err(Failure::before_run(ErrorCode::Unreachable).into());
            return Some(translated.map_or_else(unreachable, |translated| unpromised(translated.exchanged)));
        }
        let is_wanted = self.mode == config::ModernClients::Always || tasks::declares(template.body());
        if !is_modern(template) || !is_wanted {
            return None;
        }
        if self.era.of(template).await? == Era::Legacy {
            let Translated { exchanged, is_unopened } = self.modern_clients.send(server, template, sent).await?;
            // The request has not run. A replacement of the server may speak the client's revision.
            let is_replaced = is_unopened && self.era.has_changed(template, Era::Legacy).await;
            return Some(unpromised(exchanged)).filter(|_| !is_replaced);
        }
        let response = match server.exchange(template, sent).await {
            Ok(response) => response,
            failed => return Some(failed),
        };
        // The server may have been replaced.
        let (response, is_refused) = refuses_era(response).await;
        if !is_refused || !self.era.has_changed(template, Era::Modern).await {
            return Some(Ok(response));
        }
        let translated = self.modern_clients.send(server, template, sent).await;
        Some(translated.map_or(Ok(response), |translated| unpromised(translated.exchanged)))
    }

    /// Returns true if requests may have to be translated now.
    pub fn may_translate(&self) -> bool {
        self.translates_modern() || self.has_legacy_sessions()
    }

    /// Returns true if this request may have to be translated. This check is cheap and passes most
    /// requests.
    pub(super) fn may_concern(&self, template: &Template) -> bool {
        (self.translates_modern() && !template.names_session())
            || (self.has_legacy_sessions() && LegacyClients::names_session(template))
    }

    fn translates_modern(&self) -> bool {
        match self.mode {
            config::ModernClients::Always => true,
            config::ModernClients::Never => false,
            config::ModernClients::Auto => self.modern_clients.is_sessionless() || self.modern_clients.has_any_parked(),
        }
    }

    /// Returns true if the requests of older clients may be translated.
    pub fn has_legacy_clients(&self) -> bool {
        self.legacy_clients.is_some()
    }

    /// Records that a client names a session of the bridge. From now on, session requests are
    /// checked.
    pub fn record_bridged_session(&self) {
        if let Some(legacy) = &self.legacy_clients {
            legacy.record_session();
        }
    }

    /// Returns true if the request names a session that the bridge keeps for the server, or has
    /// kept before a restart.
    pub(super) fn keeps_session_of(&self, template: &Template) -> bool {
        self.has_legacy_clients() && LegacyClients::names_session(template)
    }

    fn has_legacy_sessions(&self) -> bool {
        self.legacy_clients.as_ref().is_some_and(|legacy| legacy.is_active())
    }

    /// Returns true if the response may refuse the era of a client of an older revision. A server
    /// on a channel refuses by a JSON-RPC error alone. A request with a proof for a server on HTTP
    /// passes: that server would refuse a discovery request, which has none.
    pub(super) fn may_be_refusal(
        &self,
        template: &Template,
        response: &Response<ResponseBody>,
        by_channel: bool,
    ) -> bool {
        let status = response.status();
        let is_refused = refuses_request(status);
        let may_be_error = by_channel && status.is_success() && headers::is_json(response.headers());
        self.legacy_clients.is_some() && (is_refused || may_be_error) && (by_channel || !template.has_proof())
    }

    /// Translates a request that the server has refused, if its client is of an older revision and
    /// the server speaks only the later one. Other responses pass.
    pub(super) async fn after_refusal(
        &self,
        server: &Server,
        template: &Template,
        response: Response<ResponseBody>,
    ) -> Exchanged {
        let Some(legacy) = &self.legacy_clients else { return Ok(response) };
        if self.keeps_session_of(template) {
            // The server of this session was replaced, and the bridge had opened it again before a
            // restart.
            return unpromised(legacy.send(server, template, None).await);
        }
        if is_modern(template) {
            return Ok(response);
        }
        if template.names_session() {
            return Ok(self.after_refusal_in_session(template, response).await);
        }
        let Some(id) = LegacyClients::initialize_in(template) else { return Ok(response) };
        let (response, is_error) = is_error(response).await;
        // The known era may be out of date: the server may have been replaced.
        if !is_error || !self.era.is_or_has_become(template, Era::Modern).await {
            return Ok(response);
        }
        unpromised(legacy.open(template, &id).await)
    }

    /// Replaces the refusal of a session whose server was replaced by a server of the later
    /// revision alone. Other responses pass.
    async fn after_refusal_in_session(
        &self,
        template: &Template,
        response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        if response.status() != StatusCode::BAD_REQUEST {
            return response;
        }
        let (response, whole) = begun(response, REFUSAL_MAX, REFUSAL_WAIT).await;
        let is_refused = whole.is_some_and(|whole| error_code(&whole) == Some(code::UNSUPPORTED_VERSION));
        match is_refused && self.era.is_or_has_become(template, Era::Modern).await {
            true => unknown_session(),
            false => response,
        }
    }

    /// Ends the bridge's sessions at the server, at the end of the process.
    pub(super) async fn end(&self) {
        self.modern_clients.end_all().await;
    }

    /// Records that a client has begun a session, and whether the server has assigned it a name.
    pub(super) fn record_begun_session(&self, is_named: bool) {
        self.modern_clients.record_begun_session(is_named);
    }
}

/// Returns true for a request of a revision without sessions, by its header or its `_meta`.
/// Returns a translated response without the server's promise to join requests that are sent again:
/// a translated request has no key.
fn unpromised(mut exchanged: Exchanged) -> Exchanged {
    if let Ok(response) = &mut exchanged {
        response.headers_mut().remove(headers::names::MCP_RESUME);
    }
    exchanged
}

fn is_modern(template: &Template) -> bool {
    let is_modern = |text: &str| ProtocolVersion::parse(text).is_some_and(|version| version.era() == Era::Modern);
    let header = template.lines().get(&names::MCP_PROTOCOL_VERSION).and_then(|header| std::str::from_utf8(header).ok());
    header.is_some_and(is_modern) || jsonrpc::meta_protocol_version(template.body()).as_deref().is_some_and(is_modern)
}

/// Returns true if the response refuses the revision of a request of 2026-07-28. The returned
/// response has its whole body.
async fn refuses_era(response: Response<ResponseBody>) -> (Response<ResponseBody>, bool) {
    if response.status() != StatusCode::BAD_REQUEST {
        return (response, false);
    }
    let (response, whole) = begun(response, REFUSAL_MAX, REFUSAL_WAIT).await;
    // The other codes of the revision show that the server speaks it.
    let is_refused = whole
        .is_some_and(|whole| !matches!(error_code(&whole), Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY)));
    (response, is_refused)
}

/// Returns true if the response is an error. The returned response has its whole body.
async fn is_error(response: Response<ResponseBody>) -> (Response<ResponseBody>, bool) {
    if !response.status().is_success() {
        return (response, true);
    }
    let (response, whole) = begun(response, REFUSAL_MAX, REFUSAL_WAIT).await;
    (response, whole.is_some_and(|whole| jsonrpc::error_in(&whole).is_some()))
}
