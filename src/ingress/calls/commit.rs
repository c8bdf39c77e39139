//! Rules for a response that the proxy begins before the server does: after `commit_after`, with an
//! interim result, or because another connection has taken the stream over.
//!
//! A head of the server matters if a client acts on it: a status such as 401, or the CORS headers
//! that a browser needs. The proxy begins a response only if such a head is not expected: the
//! server has accepted the same credentials lately, and its CORS headers are known. Absent: the
//! time of a commit (protocol), and what is known once it has come, such as the expiry of a token
//! (`upstream/pump/late_response.rs`).

use std::task::{Context, Poll, ready};

use http::header::ORIGIN;

use super::request::CallRequest;
use crate::clock;
use crate::event_log::{Attachment, EventLog, Head};
use crate::ingress::components::Components;
use crate::protocol::headers::Present;

/// True if the head of the request lets the proxy respond before the upstream does, once the
/// call is late. A client that takes anything, but does not name event streams, gets the
/// server's own JSON. A proof may be refused at any request, so its response is the server's.
pub(super) fn may_commit(request: &CallRequest) -> bool {
    let has_proof = request.context.facts.has(Present::Proof);
    request.accept.sse && request.accept.names_sse && !request.call.is_opening() && !has_proof
}

/// True if an interim result may begin the response before the upstream does. It must not
/// replace a 401, or CORS headers of the server.
pub(super) fn may_begin(components: &Components, CallRequest { context, .. }: &CallRequest) -> bool {
    !context.facts.has(Present::Proof)
        && components.upstream.observed().has_accepted(&context.credentials, clock::now())
        && components.upstream.knows_cors(context.parts.headers.get(ORIGIN))
}

/// Polls for the head of a response that may be a stream. A response that was taken over before it
/// had a head gets an ID and an end. The stream must then exist for a client that resumes with that
/// ID. If the upstream's response passes through, both connections get it.
pub(super) fn poll_begin(log: &EventLog, attachment: &Attachment, cx: &mut Context<'_>) -> Poll<Head> {
    let head = ready!(attachment.poll_head(cx));
    if !matches!(head, Head::TakenOver) {
        return Poll::Ready(head);
    }
    if attachment.stream().commit() {
        log.publish_once(attachment.stream());
        return Poll::Ready(head);
    }
    attachment.poll_head_even_displaced(cx)
}
