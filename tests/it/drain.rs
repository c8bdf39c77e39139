//! The end of the process: nothing that can still end is lost, nothing new begins.

use crate::client_responses::{answer, question};
use crate::support::*;
use mcp_resume::config::Config;
use std::time::Duration;

const SHUTTING_DOWN: &str = "the proxy is shutting down";

async fn observed(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    (upstream, proxy, session)
}

async fn admin(proxy: &Proxy, request: Request) -> (u16, String) {
    let mut response = request.send(proxy.admin.expect("an admin listener")).await;
    let body = response.body().await;
    (response.status, String::from_utf8(body).expect("text"))
}

fn get(path: &str) -> Request {
    Request::new("GET", path)
}

/// Asks for a drain and waits until it has begun.
async fn begin_drain(proxy: &Proxy) -> Client {
    let draining = get("/drain").with("X-Drain", "1").start(proxy.admin.expect("an admin listener")).await;
    while admin(proxy, get("/readyz")).await.1 != "draining\n" {}
    draining
}

#[tokio::test]
async fn running_calls_continue_and_new_ones_are_refused() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let draining = begin_drain(&proxy).await;
    assert_eq!(admin(&proxy, get("/readyz")).await, (503, "draining\n".to_owned()));
    assert_eq!(admin(&proxy, get("/healthz")).await.0, 200);

    let mut refused = session.post(call(2)).send(proxy.addr).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let message = refused.json().await;
    assert_eq!((&message["id"], &message["error"]["message"]), (&2.into(), &SHUTTING_DOWN.into()));
    assert_eq!(message["error"]["data"]["mayHaveRun"], false);

    // A question, its answer, and a client that comes back: all of it as ever.
    sse.event(question("q")).await;
    assert_eq!(response.event().await.bytes(), question("q").as_bytes());
    let answered = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(answered.response().await.status, 202);
    response.reset();
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    back.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    drop(back);

    let mut drained = draining.response().await;
    assert_eq!((drained.status, drained.body().await), (200, b"drained\n".to_vec()));
}

#[tokio::test]
async fn new_calls_are_taken_until_load_balancers_have_noticed() {
    let (mut upstream, proxy, session) = observed(|c| {
        c.replica.drain_delay = Some(Duration::from_secs(3600));
        c.replica.drain_timeout = Duration::from_secs(7200);
    })
    .await;
    let _draining = begin_drain(&proxy).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    assert_eq!(admin(&proxy, get("/readyz")).await, (503, "draining\n".to_owned()));
}

fn list_tools(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#)
}

#[tokio::test]
async fn what_a_session_asks_is_answered_while_its_call_runs_and_right_after() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "another", None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    begin_drain(&proxy).await;
    let answered = async |upstream: &mut Upstream, id: u64| {
        let asked = session.post(list_tools(id)).start(proxy.addr).await;
        upstream.expect("tools/list").await.json(200, &result(id)).await;
        assert_eq!(asked.response().await.status, 200);
    };
    answered(&mut upstream, 2).await;
    assert_eq!(session.post(call(3)).send(proxy.addr).await.status, 503);
    assert_eq!(other.post(list_tools(4)).send(proxy.addr).await.status, 503, "no call of it runs");
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    answered(&mut upstream, 5).await;
    assert_eq!(session.post(call(6)).send(proxy.addr).await.status, 503);
}

#[tokio::test]
async fn a_client_that_took_everything_and_left_in_peace_is_not_waited_for() {
    let (mut upstream, proxy, session) = observed(|c| {
        // Clients would be waited for by twice as much.
        c.delivery.retry = Duration::from_secs(3600);
        c.replica.drain_timeout = Duration::from_secs(7200);
    })
    .await;
    let request = session.post(call(1)).with("Connection", "close");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    drop(response);
    proxy.stop().await;
}

#[tokio::test]
async fn a_call_whose_client_is_away_ends_and_is_fetched() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let addr = proxy.addr;
    let stopped = proxy.ask_to_stop();
    sse.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    drop(back);
    stopped.await;
}

#[tokio::test]
async fn a_retry_of_a_running_call_is_a_resume() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let request = session.post(call(1));
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    response.reset();
    begin_drain(&proxy).await;
    let mut again = request.send(proxy.addr).await.sse();
    again.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(again.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn at_the_timeout_calls_end_with_an_error_and_their_upstream_is_closed() {
    let (mut upstream, proxy, session) = observed(|c| c.replica.drain_timeout = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    // One that has no head yet, so that its client gets a status.
    let waiting = session.post(call(2)).start(proxy.addr).await;
    let unanswered = upstream.expect("tools/call").await;
    proxy.stop().await;
    let message = response.event().await.json();
    assert_eq!((&message["id"], &message["error"]["message"]), (&1.into(), &after_a_run(SHUTTING_DOWN).into()));
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    response.ends().await;
    sse.closed().await;
    let mut waiting = waiting.response().await;
    assert_eq!((waiting.status, &waiting.json().await["id"]), (503, &2.into()));
    drop(unanswered);
}

#[tokio::test]
async fn a_sessions_own_stream_does_not_keep_the_process() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    response.event().await;
    proxy.stop().await;
    response.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn a_link_cannot_start_a_drain() {
    let (_upstream, proxy, _session) = observed(|_| {}).await;
    assert_eq!(admin(&proxy, get("/drain")).await.0, 403);
    assert_eq!(admin(&proxy, get("/drain").method("POST").with("X-Drain", "1")).await.0, 405);
    assert_eq!(admin(&proxy, get("/readyz")).await.0, 200);
}

#[tokio::test]
async fn the_command_waits_until_it_is_drained() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    let asked = tokio::spawn(mcp_resume::admin::ask::drain(proxy.admin.expect("an admin listener")));
    while admin(&proxy, get("/readyz")).await.1 != "draining\n" {}
    assert!(!asked.is_finished());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    within("the drain ends", asked).await.expect("no panic").expect("drained");
}

#[tokio::test]
async fn a_new_session_is_refused_like_a_call() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    begin_drain(&proxy).await;
    let mut refused = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json().await["error"]["message"], SHUTTING_DOWN);
    assert!(upstream.is_quiet());
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_sessions_own_stream_is_opened_until_load_balancers_have_noticed() {
    let (mut upstream, proxy, session) = observed(|c| {
        c.replica.drain_delay = Some(Duration::from_secs(3600));
        c.replica.drain_timeout = Duration::from_secs(7200);
    })
    .await;
    let _draining = begin_drain(&proxy).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn the_log_says_what_a_drain_waits_for() {
    let mut upstream = Upstream::start().await;
    let log = std::env::temp_dir().join(format!("mcp-resume-drain-{}.log", std::process::id()));
    let proxy = Proxy::binary(&upstream, &log).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let draining = begin_drain(&proxy).await;
    let says = async |what: &str| {
        until(what, async || std::fs::read_to_string(&log).expect("a log").lines().any(|line| line.contains(what)))
            .await
    };
    says("draining: waits for calls to end").await;
    sse.finish(result(1)).await;
    says("draining: waits for clients to fetch responses").await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    back.event().await;
    back.ends().await;
    drop(back);
    assert_eq!(draining.response().await.status, 200);
    says("drained").await;
    std::fs::remove_file(&log).expect("a log");
}

#[tokio::test]
async fn a_session_whose_call_runs_may_open_its_own_stream() {
    let (mut upstream, proxy, session) = observed(|_| {}).await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "another", None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    begin_drain(&proxy).await;
    assert_eq!(other.get().send(proxy.addr).await.status, 503, "no call of it runs");
    let pending = session.get().start(proxy.addr).await;
    let own = upstream.expect("GET").await.sse().await;
    let mut standalone = pending.response().await.sse();
    standalone.prime().await;
    own.event(progress(1)).await;
    assert_eq!(standalone.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}
