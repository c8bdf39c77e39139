//! The probe of a server on HTTP+SSE, as `serve --upstream-sse` would use it.
//!
//! Each session is an event stream of its own, which the probe closes. Absent: the requests in an
//! open session ([`super::probe`]).

use std::sync::Arc;

use super::Options;
use super::exchange::Client;
use super::facts::{Contact, EventStream, Facts, printable, printable_lines};
use super::probe::{contact, session_from};
use super::reach;
use super::requests::{self, LEGACY};
use super::state::Probe;
use crate::channel::Channels;
use crate::config::{Config, SseServer};

/// Gathers the facts about the server on HTTP+SSE that `channels` connect to, and ends them.
pub(super) async fn probe(config: &Config, options: &Options, channels: &Arc<Channels>, server: &SseServer) -> Facts {
    let event_stream = Some(EventStream::default());
    let with_headers = !options.headers.is_empty();
    let mut facts = Facts { event_stream, with_headers, ..Facts::unknown(printable_lines(&server.url.to_string())) };
    options.report_progress("connecting");
    if let Err(contact) = reach::reach(config).await {
        facts.contact = contact;
        return facts;
    }
    let client = |channels| Client::new(config, options.headers.clone(), channels);
    match (client(None), client(Some(channels))) {
        (Ok(plain), Ok(client)) => {
            let probe = Probe::new(config, options, client);
            let endpoint = endpoint(&plain, server, options).await;
            facts.event_stream = Some(EventStream { endpoint, ..EventStream::default() });
            Box::pin(probe.run_event_stream(&mut facts)).await;
        }
        (Err(error), _) | (_, Err(error)) => {
            facts.contact = Contact::Unreachable { why: printable_lines(&error.to_string()) }
        }
    }
    channels.end_all().await;
    facts
}

/// Returns the place of the POSTs without its query, which is a secret of the session.
async fn endpoint(client: &Client, server: &SseServer, options: &Options) -> Option<String> {
    let query = server.url.query().map_or(String::new(), |query| format!("?{query}"));
    let request = requests::page(&format!("{}{query}", server.url.endpoint_path()), true);
    let first = client.first_event(request, options.timeouts.response).await?;
    let place = String::from_utf8_lossy(&first.data).into_owned();
    let place = place.split(['?', '#']).next().unwrap_or_default();
    if first.name == b"endpoint"[..] { Some(printable(place)) } else { None }
}

impl Probe<'_> {
    async fn run_event_stream(&self, facts: &mut Facts) {
        self.options.report_progress("opening an event stream, and asking for revisions");
        let legacy = self.request(requests::initialize(LEGACY[0])).await;
        if let Some(why) = legacy.as_ref().ok().and_then(|response| response.start_failure()) {
            facts.contact = Contact::NoEventStream { why: printable_lines(&why) };
            return;
        }
        facts.contact = contact(&legacy);
        let Some(session) = legacy.ok().and_then(session_from) else { return };
        facts.contact = Contact::Speaks;
        if let Some(stream) = &mut facts.event_stream {
            stream.ping_ms = self.ping_time(&session).await;
        }
        self.options.report_progress("asking for tools and older revisions");
        Box::pin(self.examine(Some(session), None, facts)).await;
    }
}
