//! The end of a session.

use std::time::{Duration, Instant};

use mcp_resume::connect::Ended;

use super::host::*;
use super::support::*;

#[tokio::test]
async fn an_idle_session_is_deleted_at_the_end_of_stdin() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    let began = Instant::now();
    host.close_input();
    let delete = upstream.expect("DELETE").await;
    assert_eq!(delete.header("mcp-session-id"), Some("s-1"));
    delete.status(200).await;
    let (lines, ended) = host.end().await;
    assert!(lines.is_empty() && ended == Ended::InOrder);
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn without_a_message_nothing_is_sent() {
    let upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.close_input();
    assert_eq!(host.end().await, (vec![], Ended::InOrder));
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn owed_responses_are_written_after_the_end_of_stdin() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    host.close_input();
    sse.finish(content(1, "last")).await;
    upstream.expect("DELETE").await.status(200).await;
    let (lines, _) = host.end().await;
    assert_eq!(lines.iter().map(text_of).collect::<Vec<_>>(), ["last"]);
}

#[tokio::test]
async fn a_call_without_a_response_is_cancelled_after_two_seconds() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let _sse = upstream.expect("tools/call").await.sse().await;
    let began = Instant::now();
    host.close_input();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert!(began.elapsed() >= Duration::from_millis(1900));
    assert_eq!(cancelled.json_body()["params"]["requestId"], 1);
    cancelled.status(202).await;
    upstream.expect("DELETE").await.status(200).await;
    assert!(host.end().await.0.is_empty());
}

#[tokio::test]
async fn a_signal_cancels_and_deletes_at_once() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    host.say(&call(1)).await;
    let _sse = upstream.expect("tools/call").await.sse().await;
    let began = Instant::now();
    host.stop();
    upstream.expect("notifications/cancelled").await.status(202).await;
    upstream.expect("DELETE").await.status(200).await;
    host.end().await;
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_the_end_by_a_second() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::open(&mut upstream).await;
    let began = Instant::now();
    host.close_input();
    let _delete = upstream.expect("DELETE").await;
    host.end().await;
    assert!(began.elapsed() < Duration::from_secs(2));
}
