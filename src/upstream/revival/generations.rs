//! Client messages for one generation of a revived session.
//!
//! Owned here: the session name that such a message has at the server. Absent: the choice of the
//! generation (`ingress`), and the names (`event_log`).

use std::sync::Arc;

use crate::event_log::{EventLog, Handshake, UpstreamName};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::SessionGeneration;
use crate::upstream::server::request::Template;
use crate::upstream::stack::Upstream;

/// Returns the record of a session that was opened again or is being opened again. Returns `None`
/// for any other session.
pub fn reopened_session(log: &EventLog, id: &SessionId) -> Option<Arc<Handshake>> {
    let handshakes = log.sessions().handshakes();
    if !handshakes.has_renamed() {
        return None;
    }
    handshakes.find(id).filter(|handshake| handshake.has_generations())
}

impl Upstream {
    /// Returns a POST for a generation of its session, or for the newest if `generation` is `None`.
    /// Returns `None` if the generation's name is not known any more: another session has the name,
    /// or it was among the least recently used.
    pub fn in_generation(
        &self,
        template: Template,
        log: &EventLog,
        id: &SessionId,
        handshake: &Handshake,
        generation: Option<SessionGeneration>,
    ) -> Option<Template> {
        let Some(generation) = generation.filter(|generation| *generation != handshake.newest_generation()) else {
            // The server may send requests before its handshake is complete.
            let is_opening = handshake.is_opening();
            return Some(if is_opening { template.in_session(&handshake.newest_name()) } else { template });
        };
        let original = self.names().first_name(id);
        let visible = |name: &SessionId| self.names().visible_name(name);
        let name = log.sessions().handshakes().name_in(id, generation, original, visible)?;
        Some(template.in_session(&UpstreamName::Renamed(name)))
    }
}
