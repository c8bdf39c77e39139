//! Start of a stream: the registration for its session, its announcements, and its upstream call.

use std::sync::Arc;

use tracing::Instrument;

use super::components::Components;
use super::context::RequestContext;
use crate::config::{Config, Tasks};
use crate::dialect;
use crate::event_log::{EventLog, Session, Stream};
use crate::lifecycle::drain::Drain;
use crate::protocol::dialect::{Declared, Waits};
use crate::protocol::headers::Accept;
use crate::protocol::ids::StreamKind;
use crate::protocol::jsonrpc::MethodName;
use crate::simulation::{self, Bug};
use crate::upstream::{self, InlineTask, ProgressRule, Pump, ResponseObserver, Template, Upstream};

/// Part of an upstream call that its request decides.
pub(super) struct CallTerms {
    /// Method of the request, or `None` for a standalone stream.
    pub(super) method: Option<MethodName>,
    /// Media types that the client accepts.
    pub(super) accept: Accept,
    /// Observer of the response.
    pub(super) observer: ResponseObserver,
    /// Progress of the proxy's own, or `None` if connections write none.
    pub(super) progress: Option<ProgressRule>,
    /// Terms of the call's promotion to a task, or `None` if it never becomes one.
    pub(super) tasks: Option<Arc<Tasks>>,
}

/// Starts the streams of calls and the standalone streams.
pub(super) struct StreamStarter {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    metrics: Arc<upstream::Metrics>,
    drain: Arc<Drain>,
    /// True if other replicas share the store.
    has_replicas: bool,
}

impl StreamStarter {
    pub(super) fn new(components: &Components) -> Self {
        let Components { config, log, upstream, metrics, drain, replicas, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            upstream: upstream.clone(),
            metrics: metrics.upstream.clone(),
            drain: drain.clone(),
            has_replicas: replicas.is_some(),
        }
    }

    /// Registers this replica for the session, so that other replicas forward client responses,
    /// cancels and the end of the session to its calls here. Does nothing while the store allows no
    /// call.
    pub(super) async fn register_session(&self, context: &RequestContext) {
        if self.has_replicas
            && let (Some(session), Some(id)) = (&context.session, &context.binding.session)
            && self.log.can_take_calls()
            && session.begin_registration()
        {
            // Boxed: it happens seldom in a session.
            Box::pin(self.log.register_session(id, session)).await;
        }
    }

    /// Announces on a new stream how it may be resumed, if its session has declared interest.
    pub(super) fn announce(&self, session: Option<&Session>, stream: &Stream, among: Declared) {
        let declared = session
            .map(Session::declared)
            .unwrap_or_default()
            .intersection(among)
            .intersection(self.config.dialects.declared);
        if declared.is_any() {
            let max_wait = stream.with_machine(|machine| machine.policy().max_wait);
            dialect::announce(stream, declared, Waits::new(self.config.dialects.min_wait, max_wait));
        }
    }

    /// Prepares the upstream call of a stream. The call begins when the returned task is polled.
    pub(super) fn pump(
        &self,
        context: &RequestContext,
        template: Template,
        terms: CallTerms,
        stream: &Arc<Stream>,
    ) -> InlineTask {
        let CallTerms { method, accept, observer, progress, tasks } = terms;
        let may_revive = self.upstream.revives_sessions()
            && context.binding.session.is_some()
            && !observer.opens_session()
            && !self.drain.is_refusing_calls();
        let is_unanswered = |session: &&Arc<Session>| may_revive && method.is_some() && !session.was_answered();
        let unanswered = context.session.as_ref().filter(is_unanswered).cloned();
        let call = upstream::Call {
            template: Arc::new(template),
            method,
            accept,
            credentials: context.credentials,
            address: context.address,
            subject: context.binding.subject,
            observer,
            // A balancer sends a call that names no replica to another one, whose server may be
            // there.
            should_wait: !context.sender.is_marked() || context.binding.session.is_some(),
            may_revive,
            is_routed: context.sender.is_routed(),
            unanswered,
            is_guest: context.session.as_ref().is_some_and(|session| !session.is_home()),
            max_event_bytes: self.config.streams.max_event_bytes,
            progress,
            tasks,
        };
        let writer = self.log.writer(stream);
        let pump = Pump::begin(self.upstream.clone(), self.log.clone(), self.metrics.clone(), writer, call);
        let run = pump.run().in_current_span();
        match stream.with_machine(|machine| machine.policy().kind) {
            StreamKind::Request if simulation::has(Bug::DrainsPastCalls) => InlineTask::new(run),
            StreamKind::Request => {
                let of_session = context.session.as_ref().map(Session::begin_call);
                let run = async move {
                    let _of_session = of_session;
                    run.await;
                };
                InlineTask::new(self.drain.track(run))
            }
            // A standalone stream never ends by itself, so the drain does not wait for it.
            StreamKind::Standalone | StreamKind::Task => InlineTask::new(run),
        }
    }
}
