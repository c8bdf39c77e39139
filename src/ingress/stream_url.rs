//! Requests on a stream URL: a GET resumes the stream, and a POST delivers the client's responses first.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tracing::{Instrument, warn};

use super::client_responses::{OnAccepted, Outcome, UpstreamPost};
use super::metrics::{Dialect, Resumed};
use super::{Ingress, RequestContext, detached, respond};
use crate::body::whole;
use crate::body::{BoxBody, Incoming};
use crate::clock;
use crate::config::Turns;
use crate::delivery::{Follow, lost_event};
use crate::dialect::stream_url::{self, SortedResponses, UrlResumption};
use crate::event_log::{Session, Stream};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{self, names};
use crate::protocol::ids::{Cursor, EventId, StreamKind};
use crate::protocol::jsonrpc::{self, Message, PeekError, RequestId};
use crate::protocol::stream_url::{Named, put, take};

/// Stream that a request names, and the place in it.
struct Wanted {
    id: EventId,
    /// True if the ID is that of an event.
    has_cursor: bool,
}

/// Responses of a client in a POST on a stream URL.
struct ClientResponses {
    /// Whole body.
    body: Bytes,
    /// Responses in the body, each with the ID of the request that it answers.
    answers: Vec<(Bytes, RequestId)>,
}

/// Error for a POST whose responses must come again.
type Refusal = Box<Response<BoxBody>>;

impl Ingress {
    /// Takes the stream out of a request's target, so that the upstream does not see it.
    pub(super) fn take_stream_url(&self, target: &mut Uri) -> Option<Named> {
        if self.config.dialects.stream_url { take(target) } else { None }
    }

    /// Returns the response that follows a stream and names its URL, under the upstream's head or the proxy's own. `query` is that of the
    /// request.
    pub(super) fn respond_with(
        &self,
        head: Option<(StatusCode, HeaderMap)>,
        query: Option<&str>,
        body: Follow,
    ) -> Response<BoxBody> {
        let handle = self.config.dialects.stream_url.then(|| body.handle().clone());
        let mut response = match head {
            Some((status, head)) => respond::stream_with(status, head, body),
            None => respond::stream(body),
        };
        if let Some(handle) = handle {
            put(response.headers_mut(), query, &handle);
        }
        response
    }

    /// True if the connection of a client whose call begins `stream` is closed when its input is required.
    pub(super) fn takes_turns(&self, stream: &Stream, session: Option<&Session>) -> bool {
        match self.config.dialects.stream_url_turns {
            Turns::Off => false,
            Turns::All => true,
            Turns::Seen => {
                session.is_some_and(Session::has_used_url) || stream.look(|machine| machine.reader().has_used_url())
            }
        }
    }

    pub(super) async fn by_stream_url(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        named: Named,
        body: Incoming,
    ) -> Response<BoxBody> {
        let is_post = context.parts.method == Method::POST;
        let given = match is_post {
            true => self
                .read(&mut context, body)
                .await
                .and_then(|body| given(&context, body, self.config.limits.batch))
                .map(Some),
            false => Ok(None),
        };
        let wanted = given.and_then(|given| Ok((wanted(&context, named)?, given)));
        match wanted {
            Ok(_) if !headers::accept(&context.parts.headers).sse => self.refuse(ErrorCode::NotAcceptable),
            Ok((wanted, given)) => self.resume_by_url(context, wanted, given).await,
            Err(code) => self.refuse(code),
        }
    }

    /// Delivers the client's responses if there are any, then resumes the stream.
    async fn resume_by_url(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        wanted: Wanted,
        given: Option<ClientResponses>,
    ) -> Response<BoxBody> {
        self.wait_for_resume_turn(&mut context).await;
        if wanted.id.cursor() == Cursor::End {
            return self.at_end(Dialect::StreamUrl);
        }
        let found = match self.find_stream(&context, &wanted.id).await {
            Ok(found) => found,
            Err(unproven) => return self.refuse_unproven(unproven),
        };
        let takes_turns = given.is_none() && self.config.dialects.stream_url_turns != Turns::Off;
        let back = match &found {
            Some((stream, cursor)) => {
                let cursor = Some(*cursor).filter(|_| wanted.has_cursor);
                stream_url::resume(stream, wanted.id.handle_text(), cursor, takes_turns)
            }
            None => UrlResumption::Lost,
        };
        if let (Some(_), Some(session)) = (&found, &context.session) {
            session.note_return_by_url();
        }
        // A standalone stream fails no request: its client gets the retained events, or the next stream.
        let is_standalone = wanted.id.unverified_kind() == Some(StreamKind::Standalone) && given.is_none();
        match back {
            UrlResumption::Open(resumption) => {
                if let Some(given) = given {
                    let outcome = match resumption.stream.is_remote() {
                        true => self.deliver_to_writer(&context, &wanted.id, &resumption.stream, given).await,
                        false => {
                            // Each response reserves its own bytes on its way upstream.
                            context.reservation = None;
                            self.give(&context, &resumption.stream, given.answers).await
                        }
                    };
                    if let Err(refusal) = outcome {
                        return *refusal;
                    }
                }
                self.deliver_resumption(&context, Dialect::StreamUrl, resumption)
            }
            UrlResumption::AtEnd
                if is_standalone && found.is_some_and(|(stream, _)| stream.look(|machine| machine.is_sealed())) =>
            {
                self.standalone(context).await
            }
            UrlResumption::AtEnd => self.at_end(Dialect::StreamUrl),
            UrlResumption::Lost if is_standalone => self.standalone_lost(context, Dialect::StreamUrl).await,
            UrlResumption::Lost => {
                self.metrics.observe_resume(Dialect::StreamUrl, Resumed::Lost);
                respond::stream(whole(lost_event(&wanted.id)).map_err(Into::into))
            }
        }
    }

    /// Delivers the responses to the upstream one by one, since only the oldest revision has arrays.
    ///
    /// # Errors
    /// If the client must send them again: none from the refused one on was delivered.
    async fn give(
        self: &Arc<Self>,
        context: &RequestContext,
        stream: &Arc<Stream>,
        answers: Vec<(Bytes, RequestId)>,
    ) -> Result<(), Refusal> {
        let is_proven = self.upstream.observed().has_accepted(&context.credentials, clock::now());
        let SortedResponses { to_forward, repeated } = if is_proven {
            stream_url::note_responses(stream, answers)
        } else {
            stream_url::preview_responses(stream, answers)
        };
        if repeated > 0 {
            self.metrics.observe_repeated_answer();
        }
        let on_accepted = |id: &Option<RequestId>| -> Option<OnAccepted> {
            let (stream, id) = (stream.clone(), id.clone().filter(|_| !is_proven));
            (!is_proven).then(|| Box::new(move |_: &Ingress| _ = id.as_ref().map(|id| stream.answer(id))) as OnAccepted)
        };
        let deliveries = to_forward.into_iter().map(|(message, id)| UpstreamPost {
            credentials: context.credentials,
            on_accepted: on_accepted(&id),
            carried: self.carry(context, message.len()),
            place: None,
            template: self.upstream.call(&context.parts, context.connection.forwarded(), detached(message)),
            session: context.session.clone(),
            previous: Vec::new(),
            answered: id.filter(|_| is_proven).map(|id| (stream.clone(), id)).into_iter().collect(),
            cancelled: Vec::new(),
            is_lost: is_for_the_client,
        });
        let deliveries: Vec<_> = deliveries.collect();
        if deliveries.is_empty() {
            return Ok(());
        }
        if let Some(code) = self.remote_session_error(context) {
            deliveries.iter().for_each(UpstreamPost::lose);
            return Err(Box::new(self.refuse(code)));
        }
        // A task of its own: a client that leaves now has still responded.
        let giving = self.clone().deliver_all(stream.clone(), deliveries).in_current_span();
        let broke = || Box::new(self.fail_forward(Failure::after_send(ErrorCode::UpstreamBroke)));
        tokio::spawn(giving).await.unwrap_or_else(|_| Err(broke()))
    }

    /// Delivers the responses to the writer of the stream, whose server has asked. If that replica is gone they are delivered here.
    async fn deliver_to_writer(
        self: &Arc<Self>,
        context: &RequestContext,
        id: &EventId,
        stream: &Arc<Stream>,
        given: ClientResponses,
    ) -> Result<(), Refusal> {
        match Box::pin(self.forward_to_writer(context, id, &given.body)).await {
            Some(response) if response.status().is_success() => {
                // The writer says so as well, but later: the server has just got the response.
                given.answers.iter().for_each(|(_, id)| _ = stream.answer(id));
                Ok(())
            }
            Some(refusal) => Err(Box::new(refusal)),
            None => self.give(context, stream, given.answers).await,
        }
    }

    /// Delivers responses that another replica forwards to the writer of their stream. `None` if this replica is not the writer.
    pub(super) async fn handle_forwarded_responses(
        self: &Arc<Self>,
        context: &RequestContext,
        id: &EventId,
        body: &Bytes,
    ) -> Option<Response<BoxBody>> {
        let given = given(context, body.clone(), self.config.limits.batch).ok()?;
        let (stream, _) = self.find_stream(context, id).await.ok()??;
        if stream.is_remote() {
            return None;
        }
        Some(match self.give(context, &stream, given.answers).await {
            Ok(()) => respond::status(StatusCode::ACCEPTED),
            Err(refusal) => *refusal,
        })
    }

    async fn deliver_all(self: Arc<Self>, stream: Arc<Stream>, deliveries: Vec<UpstreamPost>) -> Result<(), Refusal> {
        let mut left = deliveries.into_iter();
        while let Some(delivery) = left.next() {
            if let Err(refusal) = self.deliver_one(&stream, delivery).await {
                left.for_each(|delivery| delivery.lose());
                return Err(refusal);
            }
        }
        Ok(())
    }

    async fn deliver_one(self: &Arc<Self>, stream: &Stream, mut delivery: UpstreamPost) -> Result<(), Refusal> {
        match self.place(delivery.session.as_ref(), &delivery.carried).await {
            Ok(place) => delivery.place = place,
            Err(code) => {
                delivery.lose();
                return Err(Box::new(self.refuse(code)));
            }
        }
        let queued = delivery.session.as_ref().and_then(|session| session.queue_turn());
        let (reply, replied) = oneshot::channel();
        tokio::spawn(self.clone().deliver(delivery, queued, reply).in_current_span());
        match replied.await {
            Ok(Outcome::Passed(response)) if is_for_the_client(response.status()) => Err(Box::new(response)),
            Ok(Outcome::Passed(response)) if !response.status().is_success() => {
                warn!(status = response.status().as_u16(), "the upstream refused an answer to a stream");
                Ok(())
            }
            Ok(Outcome::Failed(failure)) if failure.may_have_run || stream.look(|machine| machine.is_sealed()) => {
                warn!(error = failure.code.label(), "an answer to a stream may not have arrived");
                Ok(())
            }
            Ok(Outcome::Failed(failure)) => Err(Box::new(self.fail_forward(failure))),
            Ok(Outcome::Passed(_) | Outcome::Held) | Err(_) => Ok(()),
        }
    }
}

/// True for a status that only the client can act on: its credentials or its session are refused.
fn is_for_the_client(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
}

/// Returns the stream that a request names. Its event ID names the stream as well, and must name the same one.
fn wanted(context: &RequestContext, named: Named) -> Result<Wanted, ErrorCode> {
    let Named::Stream(url) = named else { return Err(ErrorCode::BadRequest) };
    let Some(text) = context.parts.headers.get(names::LAST_EVENT_ID) else {
        return Ok(Wanted { id: url, has_cursor: false });
    };
    let id = EventId::parse(text.as_bytes()).filter(|id| id.names_stream_of(&url)).ok_or(ErrorCode::BadRequest)?;
    Ok(Wanted { id, has_cursor: true })
}

/// Returns the responses of a body, which has nothing else and at most `longest` of them.
fn given(context: &RequestContext, body: Bytes, longest: usize) -> Result<ClientResponses, ErrorCode> {
    if !headers::is_json(&context.parts.headers) {
        return Err(ErrorCode::BadRequest);
    }
    let messages = jsonrpc::peek_up_to(&body, longest).map_err(|error| match error {
        PeekError::TooLong => ErrorCode::BatchTooLong,
        PeekError::NotJson => ErrorCode::NotJson,
        PeekError::NotMessage | PeekError::DuplicateKey(_) | PeekError::BadId => ErrorCode::BadRequest,
    })?;
    let texts = match &messages {
        jsonrpc::Body::Single(_) => vec![body.clone()],
        jsonrpc::Body::Batch(_) => {
            let texts: Vec<&RawValue> = serde_json::from_slice(&body).map_err(|_| ErrorCode::BadRequest)?;
            texts.into_iter().map(|text| body.slice_ref(text.get().as_bytes())).collect()
        }
    };
    let answers = texts.into_iter().zip(messages.messages()).map(|(text, message)| match message {
        Message::Response { id: Some(id), .. } => Ok((text, id.clone())),
        Message::Response { id: None, .. } | Message::Request { .. } | Message::Notification { .. } => {
            Err(ErrorCode::BadRequest)
        }
    });
    let answers = answers.collect::<Result<_, _>>()?;
    Ok(ClientResponses { body, answers })
}
