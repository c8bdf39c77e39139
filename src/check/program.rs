//! The probe of a server on stdio: its program is started, probed and ended.
//!
//! One process runs after the other, each for a session of its own, as `serve` would start it.
//! Invariant: no process is left when the probe returns. Absent: the requests in an open session
//! ([`super::probe`]).

use std::sync::Arc;

use serde_json::json;

use super::Options;
use super::exchange::Client;
use super::facts::{Contact, Facts, Program, millis, printable, printable_lines};
use super::probe::{contact, modern_session, session_from};
use super::requests::{self, LEGACY, Requester};
use super::state::Probe;
use crate::channel::Channels;
use crate::clock;
use crate::config::Config;

/// Gathers the facts about the server that `channels` start, and ends them. Takes as long as the
/// program takes to start, once for each revision.
pub(super) async fn probe(config: &Config, options: &Options, channels: &Arc<Channels>) -> Facts {
    let name = config.upstream.command.as_ref().map_or("", |command| command.name());
    let mut facts = Facts { program: Some(Program::default()), ..Facts::unknown(printable(name)) };
    match Client::new(config, options.headers.clone(), Some(channels)) {
        Ok(client) => {
            let probe = Probe::new(config, options, client);
            Box::pin(probe.run_program(&mut facts)).await;
        }
        Err(error) => facts.contact = Contact::NotStarted { why: printable_lines(&error.to_string()) },
    }
    options.report_progress("ending the program");
    let began = clock::now();
    channels.end_all().await;
    if let Some(program) = &mut facts.program {
        program.text_lines = channels.most_text_lines();
        program.ended_ms = program.answered_ms.map(|_| millis(clock::now() - began));
    }
    facts
}

impl Probe<'_> {
    async fn run_program(&self, facts: &mut Facts) {
        self.options.report_progress("starting the program, and asking for revisions");
        let began = clock::now();
        let legacy = self.request(requests::initialize(LEGACY[0])).await;
        let took = clock::now() - began;
        if let Some(why) = legacy.as_ref().ok().and_then(|response| response.start_failure()) {
            facts.contact = Contact::NotStarted { why: printable_lines(&why) };
            return;
        }
        facts.contact = contact(&legacy);
        let session = legacy.ok().and_then(session_from);
        let discovered = self.request(Requester::Modern.post(Some(1), "server/discover", json!({}))).await;
        let modern = modern_session(discovered);
        if session.is_none() && modern.is_none() {
            return;
        }
        facts.program = Some(Program { answered_ms: Some(millis(took)), ..Program::default() });
        facts.record_opening(session.is_some());
        self.options.report_progress("asking for tools and older revisions");
        Box::pin(self.examine(session, modern, facts)).await;
    }
}
