//! Responses that may refuse a session, and the rules for such sessions.
//!
//! Owned here: the recognition of a refusal, the limits of revival, the inquiry whether the session
//! lives ([`inquiry`]), and the signs of missing affinity ([`affinity`]). Absent: the handshake
//! that opens a session again (`revival/`), and the wordings of refusals (`protocol`).

mod affinity;
mod inquiry;

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::sync::Semaphore;

use self::affinity::AffinitySigns;
pub(super) use self::inquiry::Inquiry;
use self::inquiry::{BODY_WAIT, may_refuse};
use super::server::body::begun;
use super::server::response_body::ResponseBody;
use crate::config::SessionFront;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::session_refusal::{self, Refusal, SessionRefusals};

/// Maximum number of handshakes with one upstream at the same time.
const HANDSHAKES_MAX: usize = 32;

/// Rules for sessions that the server has forgotten.
#[derive(Debug)]
pub struct Revivals {
    refusals: SessionRefusals,
    is_enabled: bool,
    keep: Duration,
    pub(in crate::upstream) front: SessionFront,
    pub(in crate::upstream) permits: Arc<Semaphore>,
    pub(in crate::upstream) signs: AffinitySigns,
}

impl Revivals {
    /// Creates the rules. The record of a session is kept for `keep` after its last use.
    pub(in crate::upstream) fn new(refusals: SessionRefusals, is_enabled: bool, keep: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let (front, signs) = (SessionFront::default(), AffinitySigns::default());
        Self { refusals, is_enabled, keep, front, permits, signs }
    }

    /// Returns the rules for this side of the clients.
    pub(in crate::upstream) fn for_front(self, front: SessionFront) -> Self {
        Self { front, ..self }
    }

    /// Returns true if sessions are opened again.
    pub(in crate::upstream) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Returns the lifetime of the record of a session after its last use.
    pub(in crate::upstream) fn keep(&self) -> Duration {
        self.keep
    }

    /// Returns true if a response of this status may refuse a session that could be opened again.
    pub(in crate::upstream) fn may_concern(&self, status: StatusCode) -> bool {
        self.is_enabled && self.refusals.may_have(status.as_u16())
    }

    /// Returns the known refusals.
    pub(in crate::upstream) fn refusals(&self) -> &SessionRefusals {
        &self.refusals
    }

    /// Reads a response far enough to know whether it refuses the session. The returned response
    /// has its whole body.
    pub(in crate::upstream) async fn examine(
        &self,
        response: Response<ResponseBody>,
        ids: &[RequestId],
    ) -> (Response<ResponseBody>, Refusal) {
        if !may_refuse(&self.refusals, &response) {
            return (response, Refusal::None);
        }
        let status = response.status().as_u16();
        let (response, whole) = begun(response, session_refusal::BODY_MAX, BODY_WAIT).await;
        let refusal = self.refusals.judge(status, whole.as_deref(), ids);
        (response, refusal)
    }

    /// Returns true if the response to a DELETE, to a stream's reopening, or to a probe may refuse
    /// its session. The returned response has its whole body.
    pub async fn is_session_refused(&self, response: Response<ResponseBody>) -> (Response<ResponseBody>, bool) {
        if !self.may_concern(response.status()) {
            return (response, false);
        }
        let (response, refusal) = self.examine(response, &[]).await;
        (response, refusal.is_possible())
    }
}
