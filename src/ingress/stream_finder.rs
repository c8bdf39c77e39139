//! Search for the stream of a returning client: in this process, in the store, and under an older
//! token.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::components::Components;
use super::context::RequestContext;
use super::metrics::Metrics;
use super::misdirected::owner_unreachable_error;
use super::token_refresh::{TokenRefresh, Unproven};
use crate::cluster::Replicas;
use crate::event_log::{EventLog, Stream, Unreachable};
use crate::protocol::ids::{EventId, ResumeToken, Seq, StreamKind, Verified};

/// Time for the owner of a stream to say whether it has more than the store.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// Finds streams by event ID or resume token, at the resume rate of the caller.
pub(super) struct StreamFinder {
    log: Arc<EventLog>,
    replicas: Option<Arc<Replicas>>,
    metrics: Arc<Metrics>,
    tokens: Arc<TokenRefresh>,
}

impl StreamFinder {
    pub(super) fn new(components: &Components, tokens: Arc<TokenRefresh>) -> Self {
        let Components { log, replicas, metrics, .. } = components;
        Self { log: log.clone(), replicas: replicas.clone(), metrics: metrics.clone(), tokens }
    }

    /// Waits until the resume rate allows one more resume. Stock clients try to resume about twice,
    /// so a resume above the rate waits instead of being refused. The wait comes before any
    /// look-up, so that a hostile cursor waits as long as a good one. A client that leaves gives up
    /// its place.
    pub(super) async fn wait_for_resume_rate(&self, context: &mut RequestContext) {
        if !context.quota.try_resume() {
            context.reserve();
            self.metrics.observe_delayed_resume();
            context.quota.wait_for_resume().await;
        }
    }

    /// Returns the stream of an event ID and the cursor in it, for the caller with this credential
    /// or an older one.
    pub(super) async fn find_stream(
        &self,
        context: &RequestContext,
        id: &EventId,
    ) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
        self.find_verified(context, id, self.log.verify(id)).await
    }

    /// Returns the stream of a task, for the caller with this credential or an older one. `id` is
    /// the handle in the ID of the task. Logs the reason if there is no such task.
    pub(super) async fn find_task(
        &self,
        context: &RequestContext,
        id: &EventId,
    ) -> Result<Option<Arc<Stream>>, Unproven> {
        let verified = match id.unverified_kind() {
            // The call of a task of 2025-11-25.
            Some(StreamKind::Request) => self.log.verify(id),
            Some(StreamKind::Task | StreamKind::Standalone) | None => self.log.verify_task(id),
        };
        for _ in 0..self.attempts() {
            self.restore(context, id, verified.as_ref()).await?;
            let found =
                self.log.find_task(verified.as_ref(), &context.binding).filter(|stream| !stream.replica().has_moved());
            if found.is_some() {
                return Ok(found);
            }
        }
        let found = self.tokens.find_task(context, verified.as_ref()).await?;
        if found.is_none() {
            debug!(reason = self.log.missing_task(verified.as_ref(), &context.binding), "a task was not found");
        }
        Ok(found)
    }

    async fn find_verified(
        &self,
        context: &RequestContext,
        id: &EventId,
        verified: Option<Verified>,
    ) -> Result<Option<(Arc<Stream>, Seq)>, Unproven> {
        for _ in 0..self.attempts() {
            self.restore(context, id, verified.as_ref()).await?;
            let found =
                self.log.find(verified.as_ref(), &context.binding).filter(|(stream, _)| !stream.replica().has_moved());
            if found.is_some() {
                return Ok(found);
            }
        }
        self.tokens.find_by_previous_token(context, verified.as_ref()).await
    }

    /// Returns the number of searches for a stream. Another replica may take the stream before it
    /// is found here.
    fn attempts(&self) -> usize {
        if self.log.has_store() { 2 } else { 1 }
    }

    /// Restores a stream that only the store has. An unreachable store is not an empty one: the
    /// client must retry.
    async fn restore(
        &self,
        context: &RequestContext,
        id: &EventId,
        verified: Option<&Verified>,
    ) -> Result<(), Unproven> {
        // A forged ID is not worth a read of the store.
        let Some(verified) = verified else { return Ok(()) };
        let unreachable = Unproven::Unavailable(owner_unreachable_error(context, id, self.log.owner()));
        match self.log.restore(verified).await {
            Ok(()) if self.is_ahead_at_owner(verified).await => Err(unreachable),
            Ok(()) => Ok(()),
            Err(Unreachable) => Err(unreachable),
        }
    }

    /// True if a live replica has the event that an ID names, and the store does not have it yet. A
    /// replica that does not respond counts as one.
    async fn is_ahead_at_owner(&self, verified: &Verified) -> bool {
        let Some(replicas) = &self.replicas else { return false };
        let Some((owner, stream, seq)) = self.log.may_be_ahead(verified) else { return false };
        let position = replicas.requests().position_at(owner, stream);
        match tokio::time::timeout(OWNER_TIMEOUT, position).await {
            Ok(Ok(upto)) => upto.is_some_and(|upto| seq <= upto),
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Returns the stream that the request's token opens, for the caller with this credential or an
    /// older one.
    pub(super) async fn find_by_token(
        &self,
        context: &RequestContext,
        token: Option<&str>,
    ) -> Result<Option<Arc<Stream>>, Unproven> {
        let Some(token) = token.and_then(ResumeToken::parse) else { return Ok(None) };
        let handle = self.log.verify(token.handle());
        for _ in 0..self.attempts() {
            self.restore(context, token.handle(), handle.as_ref()).await?;
            self.restore_cursor(context, token.handle()).await?;
            let found = self
                .log
                .find_by_token(&token, handle.as_ref(), &context.binding)
                .filter(|stream| !stream.replica().has_moved());
            if found.is_some() {
                return Ok(found);
            }
        }
        self.tokens.find_by_resume_token(context, &token, handle.as_ref()).await
    }

    /// Waits until the stream of `id` is here, up to the event that the request's `Last-Event-ID`
    /// names in it. Does nothing if that names no event of this stream.
    pub(super) async fn restore_cursor(&self, context: &RequestContext, id: &EventId) -> Result<(), Unproven> {
        match context.last_event_id().filter(|named| named.names_stream_of(id)) {
            Some(named) => self.restore(context, &named, self.log.verify(&named).as_ref()).await,
            None => Ok(()),
        }
    }

    /// Returns the cursor in `stream` that the request's `Last-Event-ID` names, or `None` if it
    /// names no event of this stream.
    pub(super) fn cursor_in(&self, context: &RequestContext, stream: &Arc<Stream>) -> Option<Seq> {
        let named = context.last_event_id()?;
        let (found, cursor) = self.log.find(self.log.verify(&named).as_ref(), stream.binding())?;
        if Arc::ptr_eq(&found, stream) { Some(cursor) } else { None }
    }
}
