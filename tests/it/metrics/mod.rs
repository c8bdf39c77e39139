//! Every metric, each moved by a test of its own.

mod channels;
mod client_responses;
mod clients;
mod events;
mod eviction;
mod files;
mod spans;
mod stores;
mod streams;

use channels::*;
use client_responses::*;
use clients::*;
use events::*;
use eviction::*;
use files::*;
use spans::*;
use stores::*;
use streams::*;

use crate::support::*;
use mcp_resume::config::Config;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// One metric, as a test reads it.
struct Meter {
    name: &'static str,
    seen: RefCell<BTreeSet<String>>,
}

impl Meter {
    async fn read(&self, proxy: &Proxy) -> f64 {
        self.read_sample(proxy, self.name.to_owned()).await
    }

    /// Of a family: the one with these labels, separated by commas.
    async fn of(&self, proxy: &Proxy, labels: &str) -> f64 {
        let labels = labels.split(',').map(|label| label.split_once('=').expect("a label"));
        let labels: Vec<_> = labels.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        self.read_sample(proxy, format!("{}{{{}}}", self.name, labels.join(","))).await
    }

    /// Of a histogram: how often something was observed.
    async fn count(&self, proxy: &Proxy) -> f64 {
        self.read_sample(proxy, format!("{}_count", self.name)).await
    }

    async fn read_sample(&self, proxy: &Proxy, sample: String) -> f64 {
        let value = metric(proxy, &format!("mcp_resume_{sample}")).await;
        self.seen.borrow_mut().insert(value.to_string());
        value
    }
}

/// Runs each test with its metric, which must have been seen to move.
macro_rules! every_metric {
    ($($metric:literal is moved by $test:ident;)+) => {
        const TESTED: &[&str] = &[$($metric),+];

        mod every_metric {
            $(
                #[tokio::test]
                async fn $test() {
                    let meter = super::Meter { name: $metric, seen: Default::default() };
                    super::$test(&meter).await;
                    assert!(meter.seen.borrow().len() > 1, "{} did not move: {:?}", $metric, meter.seen);
                }
            )+
        }
    };
}

every_metric! {
    "build_info" is moved by the_version_that_runs;
    "ready" is moved by a_drain_that_begins;
    "streams_open" is moved by a_call_that_runs;
    "streams_attached" is moved by a_client_that_reads;
    "calls_detached" is moved by a_call_whose_client_is_away;
    "streams_kept" is moved by a_stream_until_its_retention_is_over;
    "held_bytes" is moved by an_event_until_it_is_forgotten;
    "connections" is moved by a_connection;
    "streams_sealed_total" is moved by every_way_a_stream_ends;
    "tasks_created_total" is moved by a_slow_call_of_a_client_with_tasks;
    "streams_sealed_detached_total" is moved by an_end_without_a_client;
    "calls_abandoned_total" is moved by a_client_that_does_not_come_back_in_time;
    "upstream_events_total" is moved by events_of_the_upstream;
    "upstream_event_bytes_total" is moved by the_data_of_events;
    "delivered_events_total" is moved by events_that_are_written_and_written_again;
    "delivered_bytes_total" is moved by the_bytes_of_a_response;
    "resumes_total" is moved by every_answer_to_a_resume;
    "unprotected_requests_total" is moved by mcp_on_another_path;
    "retries_total" is moved by a_post_sent_again;
    "takeovers_total" is moved by a_newer_connection;
    "by_get_messages_total" is moved by a_client_that_does_not_resume;
    "gaps_total" is moved by a_reader_that_comes_too_late;
    "commits_total" is moved by an_upstream_that_is_slow_to_begin;
    "disconnects_total" is moved by clients_that_leave_with_an_id_and_without;
    "rejects_total" is moved by a_request_that_is_refused;
    "upstream_failures_total" is moved by an_upstream_that_is_not_there;
    "upstream_head_seconds" is moved by the_head_of_an_answer;
    "live_event_seconds" is moved by an_event_for_a_client_that_waits;
    "answers_held_total" is moved by an_answer_that_the_upstream_cannot_take;
    "answers_repeated_total" is moved by an_answer_given_twice;
    "notifications_withheld_total" is moved by events_for_a_client_that_takes_json_only;
    "progress_beats_total" is moved by a_silent_server;
    "pings_answered_total" is moved by a_ping_of_the_server_while_the_client_is_away;
    "keep_alive_pings_total" is moved by a_silent_call;
    "token_probes_total" is moved by a_refreshed_token;
    "evicted_streams_total" is moved by a_delivered_stream_that_is_evicted;
    "trimmed_events_total" is moved by a_full_stream_that_was_read;
    "upstream_pauses_total" is moved by a_full_unread_stream;
    "resumes_delayed_total" is moved by a_resume_behind_too_many;
    "certificate_reloads_total" is moved by certificates_of_both_sides_that_change;
    "otel_spans_total" is moved by a_collector_that_refuses_and_takes_spans;
    "log_lines_dropped_total" is moved by an_unread_log;
    "sessions_kept" is moved by a_session_that_is_named;
    "evicted_sessions_total" is moved by sessions_that_are_made_up;
    "upstream_ready" is moved by a_server_that_is_gone_and_comes_back;
    "calls_waiting" is moved by a_call_that_waits_for_its_server;
    "upstream_waits_total" is moved by the_end_of_a_wait_for_the_server;
    "session_revivals_total" is moved by a_session_that_its_server_has_forgotten;
    "channels" is moved by a_session_on_stdio;
    "channel_starts_total" is moved by the_start_of_a_server_on_stdio;
    "channel_ends_total" is moved by the_end_of_a_session_on_stdio;
    "channel_messages_skipped_total" is moved by a_line_that_is_no_message;
    "repaired_messages_total" is moved by a_response_under_another_spelling_of_its_id;
    "store_ready" is moved by a_store_that_is_gone_and_comes_back;
    "store_append_seconds" is moved by an_event_that_the_store_takes;
    "store_failures_total" is moved by an_event_that_the_store_cannot_take;
    "streams_adopted_total" is moved by a_call_of_a_replica_that_died;
    "streams_fenced_total" is moved by a_call_of_a_replica_that_was_frozen;
    "streams_restored_total" is moved by a_client_of_another_replica;
}

#[test]
fn no_metric_is_without_a_test() {
    // The table has what is registered: `tests/docs.rs` compares the two.
    let documented = include_str!("../../../docs/operations.md").split("## Every metric").nth(1).expect("the section");
    let rows = documented.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.skip(2).map(|row| row.split('|').nth(1).expect("a cell"));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let documented: BTreeSet<&str> = names.map(|name| name.split('{').next().expect("a name")).collect();
    assert_eq!(TESTED.iter().copied().collect::<BTreeSet<_>>(), documented);
}

async fn observed() -> (Upstream, Proxy, Session) {
    observed_with(|_| {}).await
}

async fn observed_with(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    setup_with(|c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await
}

/// A call whose client knows where it begins, and has left.
async fn left(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(proxy, upstream).await;
    (sse, place)
}

async fn finish(sse: Sse, response: &mut Response) {
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}
