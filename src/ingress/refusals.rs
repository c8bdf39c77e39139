//! Error responses of the handlers, each counted by its code. Absent: failures that an earlier
//! handler or another replica has counted, and failures kept for a retry (`calls/reply.rs`).

use http::Response;
use http::request::Parts;

use super::components::Components;
use crate::body::BoxBody;
use crate::channel::UnusableHeader;
use crate::protocol::classify;
use crate::protocol::error::{Details, ErrorCode, Failure, Side, Subject};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::server::respond;

/// Refuses a request that did not reach the upstream.
pub(super) fn refuse(components: &Components, code: ErrorCode) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(code);
    respond::refusal(code)
}

/// Refuses a POST by its body. The response has the ID of the body's message and names what is
/// wrong with it, as far as both can be read.
pub(super) fn refuse_body(components: &Components, code: ErrorCode, body: &[u8]) -> Response<BoxBody> {
    let defect = if code == ErrorCode::BadRequest { jsonrpc::defect(body) } else { None };
    let Some(defect) = defect else { return refuse(components, code) };
    components.metrics.errors.observe_reject(code);
    let failure = Failure::before_run(code);
    let details = Details::of_text(&defect.text);
    respond::failure(failure, failure.to_message_with(defect.id.as_ref(), Subject::Request, details))
}

/// Refuses a host or an origin that is not allowed. The response names it, and the key that
/// would allow it.
pub(super) fn refuse_access(components: &Components, code: ErrorCode, parts: &Parts) -> Response<BoxBody> {
    respond::access_refused(code, &parts.uri, &parts.headers, &components.metrics.errors)
}

/// Refuses a header that cannot become a variable. The response names it.
pub(super) fn refuse_variable(components: &Components, unusable: &UnusableHeader) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(ErrorCode::VariableRefused);
    respond::refusal_about(ErrorCode::VariableRefused, &unusable.to_string())
}

/// Refuses a call that did not reach the upstream, with the IDs of its requests.
pub(super) fn refuse_call(components: &Components, code: ErrorCode, call: &classify::Call) -> Response<BoxBody> {
    fail_call(components, Failure::before_run(code), call)
}

/// Refuses a request with this ID that did not reach the upstream.
pub(super) fn refuse_request(components: &Components, code: ErrorCode, id: &RequestId) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(code);
    let failure = Failure::before_run(code);
    respond::failure(failure, failure.to_message(Some(id), Subject::Request))
}

/// Returns the failure of a call, with the IDs of its requests.
pub(super) fn fail_call(components: &Components, failure: Failure, call: &classify::Call) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(failure.code);
    respond::failure(failure, failure.to_body(&call.ids, call.is_batch, call.subject))
}

/// Returns a failure to a request without an ID.
pub(super) fn fail(components: &Components, failure: Failure) -> Response<BoxBody> {
    components.metrics.errors.observe_reject(failure.code);
    respond::failure_without_id(failure)
}

/// Returns the failure of a forwarded request. Counts it for the upstream if the upstream is at
/// fault.
pub(super) fn fail_forward(components: &Components, failure: Failure) -> Response<BoxBody> {
    let code = failure.code;
    let response = fail(components, failure);
    if code.side() == Side::Upstream {
        components.metrics.errors.observe_upstream_failure(code);
    }
    response
}
