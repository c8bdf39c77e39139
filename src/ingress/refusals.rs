//! Error responses of the handlers, each counted by its code. Absent: failures that an earlier
//! handler or another replica has counted, and failures kept for a retry (`calls/reply.rs`).

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use super::components::Components;
use crate::body::BoxBody;
use crate::metrics::Errors;
use crate::protocol::classify;
use crate::protocol::error::{ErrorCode, Failure, Side};
use crate::protocol::jsonrpc::RequestId;
use crate::server::respond;

/// Makes and counts error responses.
#[derive(Clone)]
pub(super) struct Refusals {
    errors: Arc<Errors>,
}

impl Refusals {
    pub(super) fn new(components: &Components) -> Self {
        Self { errors: components.metrics.errors.clone() }
    }

    /// Refuses a request that did not reach the upstream.
    pub(super) fn refuse(&self, code: ErrorCode) -> Response<BoxBody> {
        self.errors.observe_reject(code);
        respond::refusal(code)
    }

    /// Refuses a host or an origin that is not allowed. The response names it, and the key that
    /// would allow it.
    pub(super) fn refuse_access(&self, code: ErrorCode, parts: &Parts) -> Response<BoxBody> {
        respond::access_refused(code, &parts.uri, &parts.headers, &self.errors)
    }

    /// Refuses a call that did not reach the upstream, with the IDs of its requests.
    pub(super) fn refuse_call(&self, code: ErrorCode, call: &classify::Call) -> Response<BoxBody> {
        self.fail_call(Failure::before_run(code), call)
    }

    /// Refuses a request with this ID that did not reach the upstream.
    pub(super) fn refuse_request(&self, code: ErrorCode, id: &RequestId) -> Response<BoxBody> {
        self.errors.observe_reject(code);
        respond::failure(Failure::before_run(code), std::slice::from_ref(id), false)
    }

    /// Returns the failure of a call, with the IDs of its requests.
    pub(super) fn fail_call(&self, failure: Failure, call: &classify::Call) -> Response<BoxBody> {
        self.errors.observe_reject(failure.code);
        respond::failure(failure, &call.ids, call.is_batch)
    }

    /// Returns a failure to a request without an ID.
    pub(super) fn fail(&self, failure: Failure) -> Response<BoxBody> {
        self.errors.observe_reject(failure.code);
        respond::failure(failure, &[], false)
    }

    /// Returns the failure of a request that was forwarded, and counts it for the upstream if that
    /// is at fault.
    pub(super) fn fail_forward(&self, failure: Failure) -> Response<BoxBody> {
        let code = failure.code;
        let response = self.fail(failure);
        if code.side() == Side::Upstream {
            self.errors.observe_upstream_failure(code);
        }
        response
    }
}
