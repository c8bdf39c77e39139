//! Start of a stream: the registration for its session, its announcements, and its upstream call.

use std::sync::Arc;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span};

use super::components::Components;
use super::context::RequestContext;
use crate::config::Tasks;
use crate::dialect;
use crate::event_log::{self, Session, Stream};
use crate::protocol::call_name::NameSource;
use crate::protocol::dialect::{Declared, Waits};
use crate::protocol::headers::Accept;
use crate::protocol::ids::StreamKind;
use crate::simulation::{self, Bug};
use crate::upstream::{self, InlineTask, ProgressRule, Pump, ResponseObserver, Template};

/// Part of an upstream call that its request decides.
pub(super) struct CallTerms {
    /// Source of the call's name, or `None` for a standalone stream.
    pub(super) name: Option<NameSource>,
    /// Media types that the client accepts.
    pub(super) accept: Accept,
    /// Observer of the response.
    pub(super) observer: ResponseObserver,
    /// Progress of the proxy's own, or `None` if connections write none.
    pub(super) progress: Option<ProgressRule>,
    /// Terms of the call's promotion to a task, or `None` if it never becomes one.
    pub(super) tasks: Option<Arc<Tasks>>,
}

/// Registers this replica for the session, so that other replicas forward client responses,
/// cancels and the end of the session to its calls here. Does nothing while the store allows no
/// call.
pub(super) async fn register_session(components: &Components, context: &RequestContext) {
    if components.replicas.is_some()
        && let (Some(session), Some(id)) = (&context.session, &context.binding.session)
        && components.log.can_take_calls()
        && session.begin_registration()
    {
        // Boxed: it happens seldom in a session.
        Box::pin(components.log.stored_sessions().register(id, session)).await;
    }
}

/// Announces on a new stream how it may be resumed, if its session has declared interest.
pub(super) fn announce(components: &Components, session: Option<&Session>, stream: &Stream, among: Declared) {
    let declared = session
        .map(Session::declared)
        .unwrap_or_default()
        .intersection(among)
        .intersection(components.config.dialects.declared);
    if declared.is_any() {
        let max_wait = stream.with_machine(|machine| machine.policy().max_wait);
        dialect::announce(stream, declared, Waits::new(components.config.dialects.min_wait, max_wait));
    }
}

/// Prepares the upstream call of a stream. The call begins when the returned task is polled.
pub(super) fn pump(
    components: &Components,
    context: &RequestContext,
    template: Arc<Template>,
    terms: CallTerms,
    stream: &Arc<Stream>,
) -> InlineTask {
    let call = call(components, context, template, terms);
    let pump = Pump::begin(
        components.upstream.clone(),
        components.log.clone(),
        components.metrics.upstream.clone(),
        components.log.writer(stream),
        call,
    );
    match stream.with_machine(|machine| machine.policy().kind) {
        StreamKind::Request if simulation::has(Bug::DrainsPastCalls) => uncounted(pump),
        StreamKind::Request => run(pump, RunningCall::begin(components, context)),
        // A standalone stream never ends by itself, so the drain does not wait for it.
        StreamKind::Standalone | StreamKind::Task => uncounted(pump),
    }
}

/// A running call, counted in its session and for the drain for as long as this lives.
pub(super) struct RunningCall {
    _of_session: Option<event_log::RunningCall>,
    tracked: TaskTrackerToken,
}

/// A call outside a session that no longer counts, and may run again.
pub(super) struct UncountedCall(TaskTracker);

impl UncountedCall {
    /// Counts the call again.
    pub(super) fn begin_again(self) -> RunningCall {
        RunningCall { _of_session: None, tracked: self.0.token() }
    }
}

impl RunningCall {
    /// Counts the call of a request.
    pub(super) fn begin(components: &Components, context: &RequestContext) -> Self {
        let of_session = context.session.as_ref().map(Session::begin_call);
        Self { _of_session: of_session, tracked: components.drain.begin_call() }
    }

    /// Ends the count of a call outside a session. The returned value can count it again.
    pub(super) fn end(self) -> UncountedCall {
        UncountedCall(self.tracked.task_tracker().clone())
    }
}

/// Runs the pump of a call that is counted until its end.
pub(super) fn run(pump: Box<Pump>, running: RunningCall) -> InlineTask {
    let span = Span::current();
    // Its parts are made in place: a future is moved as a whole.
    InlineTask::new(async move {
        let _counted = running;
        pump.run().instrument(span).await;
    })
}

fn uncounted(pump: Box<Pump>) -> InlineTask {
    InlineTask::new(pump.run().instrument(Span::current()))
}

/// Returns the upstream call of a request.
pub(super) fn call(
    components: &Components,
    context: &RequestContext,
    template: Arc<Template>,
    terms: CallTerms,
) -> upstream::Call {
    let CallTerms { name, accept, observer, progress, tasks } = terms;
    let may_revive = components.upstream.revives_sessions()
        && context.binding.session.is_some()
        && !observer.opens_session()
        && !components.drain.is_refusing_calls();
    let is_unanswered = |session: &&Arc<Session>| may_revive && name.is_some() && !session.was_answered();
    let unanswered = context.session.as_ref().filter(is_unanswered).cloned();
    upstream::Call {
        template,
        name,
        accept,
        credentials: context.credentials,
        address: context.address,
        subject: context.binding.subject,
        observer,
        // A balancer can send a call without a session to another replica, whose server may accept
        // connections.
        should_wait: !context.sender.is_marked() || context.binding.session.is_some(),
        may_revive,
        is_routed: context.sender.is_routed(),
        session_hash: context.session.as_ref().map(|session| session.hash()),
        unanswered,
        is_guest: context.session.as_ref().is_some_and(|session| !session.is_home()),
        max_event_bytes: components.config.streams.max_event_bytes,
        progress,
        tasks,
    }
}
