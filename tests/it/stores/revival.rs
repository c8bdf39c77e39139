//! Sessions that are opened again after a restart of the proxy, and at another replica.

use serde_json::json;

use super::disk::Dir;
use super::outage::try_again;
use super::*;
use crate::misdirected::{ONE, TWO};
use crate::revival::{answer, answer_initialize, complete, deny, forget, open, open_again, refuse};
use crate::session_generations::{begin_call, is_dropped, passes, question, response_to};

const OWNER: &str = "Mcp-Resume-Owner";
const HOME: &str = "Mcp-Resume-Home";
const SET_LEVEL: &str = r#"{"jsonrpc":"2.0","id":90,"method":"logging/setLevel","params":{"level":"debug"}}"#;

/// The request as a balancer sends it to the replica that it names.
fn marked(request: Request) -> Request {
    request.with(OWNER, "anything")
}

/// The request as a balancer sends it to a replica in place of this home.
fn in_place_of(home: &str, request: Request) -> Request {
    request.with(HOME, home)
}

/// A replica that is a process of its own, in whose names of sessions it is.
async fn named(redis: &Redis, name: &str) -> Replica {
    Replica::process(redis, name, &[("MCP_RESUME_REPLICA__WRAP_SESSIONS", "true")]).await
}

/// Returns the owner that a replica reports to balancers.
async fn owner(replica: &Replica) -> String {
    let report = replica.send(Request::new("GET", "/.well-known/mcp-resume")).await.json().await;
    report["owner"].as_str().expect("an owner").to_owned()
}

/// Waits until the store has the record of a handshake that was completed.
async fn is_recorded(redis: &Redis) {
    until("the record is written", async || redis.has_record("handshake", "\\\"is_initialized\\\":true")).await;
}

/// Takes part in a takeover: the server here refuses the name that no server has, and opens the
/// session as `name`.
async fn take_over(replica: &mut Replica, name: &str) {
    replica.upstream.expect("tools/call").await.json(404, crate::revival::FORGOTTEN).await;
    open_again(&mut replica.upstream, name).await;
}

/// Freezes the home of the session, and has the other replica take the session over as `t-1`.
async fn move_from_frozen(home: &Replica, other: &mut Replica, session: &Session) {
    home.proxy.signal("STOP").await;
    let pending = in_place_of(ONE, session.post(call(1))).start(other.proxy.addr).await;
    take_over(other, "t-1").await;
    answer(&mut other.upstream, 1, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
}

/// Sends the request, which is refused for the session's home.
async fn refused_for(replica: &Replica, request: Request, home: &str) {
    let response = replica.send(request).await;
    assert_eq!((response.status, response.header(HOME)), (421, Some(home)));
}

#[tokio::test]
async fn a_session_is_opened_again_after_a_restart_of_the_proxy() {
    let dir = Dir::new("revival");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = open(&proxy, &mut upstream, json!({})).await;
    let pending = session.post(SET_LEVEL).start(proxy.addr).await;
    let setting = upstream.expect("logging/setLevel").await;
    setting.json(200, r#"{"jsonrpc":"2.0","id":90,"result":{}}"#).await;
    assert_eq!(pending.response().await.status, 200);
    proxy.stop().await;

    // The server has restarted as well.
    let proxy = dir.open(&upstream).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let restored = upstream.expect("logging/setLevel").await;
    assert_eq!(restored.json_body()["params"]["level"], "debug");
    let id = restored.json_body()["id"].clone();
    restored.json(200, &json!({ "jsonrpc": "2.0", "id": id, "result": {} }).to_string()).await;
    answer(&mut upstream, 1, "s-2").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("mcp-session-id")), (200, Some("s-1")));
    proxy.stop().await;

    // The proxy alone restarts: it knows the new name at once.
    let proxy = dir.open(&upstream).await;
    let pending = session.post(call(2)).start(proxy.addr).await;
    answer(&mut upstream, 2, "s-2").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some("s-1"));
    let pending = session.delete().start(proxy.addr).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    proxy.stop().await;

    // A session that its client has ended is not opened again.
    let proxy = dir.open(&upstream).await;
    let pending = session.post(call(3)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

/// The record says that the server has answered in the session: otherwise unknown words would prove
/// nothing.
#[tokio::test]
async fn a_session_that_is_dead_in_unknown_words_is_opened_again_after_a_restart_of_the_proxy() {
    let dir = Dir::new("unknown-words");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = open(&proxy, &mut upstream, json!({})).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    answer(&mut upstream, 1, "s-1").await;
    assert_eq!(pending.response().await.status, 200);
    proxy.stop().await;

    let proxy = dir.open(&upstream).await;
    let pending = session.post(call(2)).start(proxy.addr).await;
    for method in ["tools/call", "ping", "tools/list"] {
        upstream.expect(method).await.json(404, r#"{"detail":"no visitor"}"#).await;
    }
    open_again(&mut upstream, "s-2").await;
    assert_eq!(pending.response().await.status, 404);
    let pending = session.post(call(3)).start(proxy.addr).await;
    answer(&mut upstream, 3, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(upstream.is_quiet());
}

/// A client may answer what the server asked before both were restarted, and the server counts from
/// 0 again.
#[tokio::test]
async fn a_late_response_answers_no_request_after_a_restart_of_server_and_proxy() {
    let dir = Dir::new("late-response");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let session = open(&proxy, &mut upstream, json!({})).await;
    proxy.stop().await;

    let proxy = dir.open(&upstream).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 2, "s-2").await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["id"].clone();
    assert!(asked.as_str().is_some_and(|id| id.starts_with("mr-1-")), "{asked}");
    is_dropped(&mut upstream, &proxy, &session, response_to(0)).await;
    // As would be one to a request that had such an ID before.
    is_dropped(&mut upstream, &proxy, &session, response_to("mr-1-0")).await;
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to(asked), "s-2").await["id"], json!(0));
}

#[tokio::test]
async fn a_session_moves_from_a_replica_that_is_gone_to_one_other() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let three = named(&redis, "three").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    assert!(session.id.starts_with(ONE), "{}", session.id);
    is_recorded(&redis).await;
    // While it lives, it is the home.
    refused_for(&two, marked(session.post(call(1))), ONE).await;
    refused_for(&two, marked(session.get()), ONE).await;
    assert_eq!(two.send(session.post(call(1))).await.status, 404, "no balancer is there");
    one.proxy.kill().await;

    let pending = in_place_of(ONE, session.post(call(2))).start(two.proxy.addr).await;
    let lost = two.upstream.expect("tools/call").await;
    assert!(lost.header("mcp-session-id").is_some_and(|name| name.starts_with("mcp-resume-")), "a name of no server");
    lost.json(404, crate::revival::FORGOTTEN).await;
    open_again(&mut two.upstream, "t-1").await;
    answer(&mut two.upstream, 2, "t-1").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("mcp-session-id")), (200, Some(session.id.as_str())));

    // The others know, however they are asked.
    refused_for(&three, in_place_of(ONE, session.post(call(3))), TWO).await;
    refused_for(&three, marked(session.post(call(3))), TWO).await;
    // A replica that begins to serve changes nothing, nor does the old home that comes back.
    let one = named(&redis, "one").await;
    refused_for(&one, marked(session.post(call(3))), TWO).await;
    let pending = marked(session.post(call(3))).start(two.proxy.addr).await;
    answer(&mut two.upstream, 3, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(one.upstream.is_quiet() && three.upstream.is_quiet());
}

#[tokio::test]
async fn of_two_replicas_one_takes_a_session_over() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let mut three = named(&redis, "three").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    one.proxy.kill().await;
    let at_two = in_place_of(ONE, session.post(call(1))).start(two.proxy.addr).await;
    let at_three = in_place_of(ONE, session.post(call(2))).start(three.proxy.addr).await;
    let (mut winner, loser, pending, refused, id) = tokio::select! {
        call = two.upstream.expect("tools/call") => {
            call.json(404, crate::revival::FORGOTTEN).await;
            (two, three, at_two, at_three, 1)
        }
        call = three.upstream.expect("tools/call") => {
            call.json(404, crate::revival::FORGOTTEN).await;
            (three, two, at_three, at_two, 2)
        }
    };
    let home = owner(&winner).await;
    open_again(&mut winner.upstream, "t-1").await;
    answer(&mut winner.upstream, id, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
    let response = refused.response().await;
    assert_eq!((response.status, response.header(HOME)), (421, Some(home.as_str())));
    assert!(loser.upstream.is_quiet() && winner.upstream.is_quiet());
}

#[tokio::test]
async fn a_home_whose_lease_runs_keeps_its_sessions() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let settings = [("MCP_RESUME_REPLICA__WRAP_SESSIONS", "true"), ("MCP_RESUME_UPSTREAM__WAIT_SECS", "2")];
    let two = Replica::process(&redis, "two", &settings).await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    // The balancer does not reach it, though it lives.
    refused_for(&two, in_place_of(ONE, session.post(call(1))), ONE).await;
    let pending = marked(session.post(call(1))).start(one.proxy.addr).await;
    answer(&mut one.upstream, 1, "s-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_home_that_was_frozen_finds_that_its_session_has_moved() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    move_from_frozen(&one, &mut two, &session).await;
    one.proxy.signal("CONT").await;
    until("it has a lease again", async || {
        let response = one.send(marked(session.post(call(2)))).await;
        response.status == 421 && response.header(HOME) == Some(TWO)
    })
    .await;
    assert!(one.upstream.is_quiet());
}

/// A server that the replicas do not share, behind a balancer that does not read the names of
/// sessions.
#[tokio::test]
async fn a_refused_request_in_a_session_that_names_no_replica_goes_to_its_home() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let mut two = Replica::process(&redis, "two", &[]).await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    assert_eq!(session.id, "s-1");
    is_recorded(&redis).await;
    for is_marked in [false, true] {
        let request = session.post(call(1));
        let pending = if is_marked { marked(request) } else { request }.start(two.proxy.addr).await;
        refuse(&mut two.upstream, "tools/call", "s-1").await;
        if is_marked {
            deny(&mut two.upstream, "s-1").await;
        }
        let response = pending.response().await;
        let expected = if is_marked { (421, Some(ONE)) } else { (404, None) };
        assert_eq!((response.status, response.header(HOME)), expected);
    }
    one.proxy.kill().await;
    // Until its lease has expired, the request goes to it.
    let pending = loop {
        let mut pending = Box::pin(marked(session.post(call(2))).start(two.proxy.addr).await.response());
        forget(&mut two.upstream, "tools/call", "s-1").await;
        tokio::select! {
            response = &mut pending => {
                assert_eq!((response.status, response.header(HOME)), (421, Some(ONE)));
            }
            call = two.upstream.expect("initialize") => {
                answer_initialize(call, "t-1").await;
                break tokio::spawn(pending);
            }
        }
    };
    complete(&mut two.upstream, "t-1").await;
    answer(&mut two.upstream, 2, "t-1").await;
    assert_eq!(pending.await.expect("a response").header("mcp-session-id"), Some("s-1"));
    let pending = session.post(call(3)).start(two.proxy.addr).await;
    answer(&mut two.upstream, 3, "t-1").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some("s-1"));
}

/// The replica that took the session over last has it.
#[tokio::test]
async fn a_replica_that_loses_the_session_during_its_handshake_ends_the_new_one() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let mut three = named(&redis, "three").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    let home = owner(&three).await;
    one.proxy.kill().await;
    let late = in_place_of(ONE, session.post(call(1))).start(two.proxy.addr).await;
    two.upstream.expect("tools/call").await.json(404, crate::revival::FORGOTTEN).await;
    let handshake = two.upstream.expect("initialize").await;
    two.proxy.signal("STOP").await;
    let pending = in_place_of(TWO, session.post(call(2))).start(three.proxy.addr).await;
    take_over(&mut three, "u-1").await;
    answer(&mut three.upstream, 2, "u-1").await;
    assert_eq!(pending.response().await.status, 200);
    two.proxy.signal("CONT").await;
    answer_initialize(handshake, "t-1").await;
    complete(&mut two.upstream, "t-1").await;
    let end = two.upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("t-1"));
    end.status(200).await;
    let response = late.response().await;
    assert_eq!((response.status, response.header(HOME)), (421, Some(home.as_str())));
    let pending = marked(session.post(call(3))).start(three.proxy.addr).await;
    answer(&mut three.upstream, 3, "u-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(two.metric(r#"session_revivals_total{outcome="displaced"}"#).await, 1.0);
}

/// Returns the status of the response and the home in it.
async fn outcome(replica: &Replica, request: Request) -> (u16, Option<String>) {
    let response = replica.send(request).await;
    (response.status, response.header(HOME).map(str::to_owned))
}

/// Waits until the replica refuses the request for the session's home. Until then it may say that
/// the request is to be sent again, and that it is misdirected, but never that the session is gone.
async fn is_refused_for(replica: &Replica, request: impl Fn() -> Request, home: &str) {
    until("it knows the home", async || {
        let (status, named) = outcome(replica, request()).await;
        assert!(matches!(status, 421 | 503), "{status}");
        status == 421 && named.as_deref() == Some(home)
    })
    .await;
}

#[tokio::test]
async fn no_replica_that_waits_for_the_store_serves_a_session_without_it() {
    let mut redis = Redis::start();
    let settings = [("MCP_RESUME_REPLICA__WRAP_SESSIONS", "true"), ("MCP_RESUME_STORE__ON_UNREACHABLE", "refuse")];
    let mut one = Replica::process(&redis, "one", &settings).await;
    let two = Replica::process(&redis, "two", &settings).await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    redis.kill();
    for replica in [&one, &two] {
        until("it is seen", async || replica.metric("store_ready").await == 0.0).await;
    }
    for (replica, request) in [
        (&two, in_place_of(ONE, session.post(call(1)))),
        (&two, in_place_of(ONE, session.get())),
        (&one, marked(session.post(call(1)))),
        (&one, session.post(call(1))),
    ] {
        try_again(&replica.proxy, request).await;
    }
    // A balancer is told to ask the replica in the name, without a home that this one cannot know.
    assert_eq!(outcome(&two, marked(session.post(call(1)))).await, (421, None));
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());

    // The outage has moved nothing.
    redis.begin_again();
    is_refused_for(&two, || in_place_of(ONE, session.post(call(2))), ONE).await;
    until("it serves", async || one.metric("store_ready").await == 1.0).await;
    let pending = marked(session.post(call(2))).start(one.proxy.addr).await;
    answer(&mut one.upstream, 2, "s-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_redis_that_is_emptied_moves_no_session() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let at_one = open(&one.proxy, &mut one.upstream, json!({})).await;
    let at_two = open(&two.proxy, &mut two.upstream, json!({})).await;
    is_recorded(&redis).await;
    redis.empty();
    for n in 1..=3 {
        // Sent to the wrong replica, before and after the records are written again.
        let (to_two, to_one) = (marked(at_one.post(call(n))), marked(at_two.post(call(n))));
        for (replica, request) in [(&two, to_two), (&one, to_one)] {
            let (status, _) = outcome(replica, request).await;
            assert!(status == 421 || (status == 503 && n == 1), "{status}");
        }
        for (replica, session) in [(&mut one, &at_one), (&mut two, &at_two)] {
            let pending = marked(session.post(call(n))).start(replica.proxy.addr).await;
            answer(&mut replica.upstream, n, "s-1").await;
            assert_eq!(pending.response().await.status, 200);
        }
        if n == 1 {
            is_refused_for(&two, || marked(at_one.post(call(9))), ONE).await;
            is_refused_for(&one, || marked(at_two.post(call(9))), TWO).await;
        }
    }
    refused_for(&two, in_place_of(ONE, at_one.post(call(4))), ONE).await;
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());

    // Its record is there again, so the session still moves off a replica that is gone.
    one.proxy.kill().await;
    let pending = in_place_of(ONE, at_one.post(call(5))).start(two.proxy.addr).await;
    take_over(&mut two, "t-1").await;
    answer(&mut two.upstream, 5, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_session_whose_home_and_record_are_gone_ends() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let two = named(&redis, "two").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    one.proxy.kill().await;
    redis.empty();
    for request in [in_place_of(ONE, session.post(call(1))), in_place_of(ONE, session.get())] {
        until("the loss is noticed", async || {
            let mut response = two.send(request.clone()).await;
            assert!(matches!(response.status, 404 | 503), "{}", response.status);
            let error = response.json().await["error"].clone();
            assert_eq!(error["data"]["mayHaveRun"], false, "{error}");
            response.status == 404
        })
        .await;
    }
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_home_that_was_frozen_while_its_session_moved_and_redis_was_emptied_does_not_get_it_back() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    move_from_frozen(&one, &mut two, &session).await;
    redis.empty();
    is_recorded(&redis).await;
    one.proxy.signal("CONT").await;
    is_refused_for(&one, || marked(session.post(call(2))), TWO).await;
    let pending = marked(session.post(call(2))).start(two.proxy.addr).await;
    answer(&mut two.upstream, 2, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

/// The query for the home of the session, by which a balancer precedes a request whose body it
/// could not send twice.
fn query(session: &Session) -> Request {
    session.post("").method("HEAD").without("content-type").with("Mcp-Resume-Locate", "home")
}

#[tokio::test]
async fn a_query_is_answered_as_its_request_would_be_and_never_reaches_the_server() {
    let redis = Redis::start();
    let mut one = named(&redis, "one").await;
    let mut two = named(&redis, "two").await;
    let three = named(&redis, "three").await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    assert_eq!(outcome(&one, marked(query(&session))).await, (204, None));
    assert_eq!(outcome(&two, marked(query(&session))).await, (421, Some(ONE.to_owned())));
    // Another path has no session of the endpoint.
    assert_eq!(outcome(&two, marked(query(&session)).target("/upload")).await, (204, None));
    assert!(two.upstream.is_quiet());
    one.proxy.kill().await;
    // It waits for the lease of the home, and takes the session over.
    assert_eq!(outcome(&two, in_place_of(ONE, query(&session))).await, (204, None));
    assert!(two.upstream.is_quiet());
    assert_eq!(outcome(&three, in_place_of(ONE, query(&session))).await, (421, Some(TWO.to_owned())));
    let pending = in_place_of(ONE, session.post(call(1))).start(two.proxy.addr).await;
    take_over(&mut two, "t-1").await;
    answer(&mut two.upstream, 1, "t-1").await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(outcome(&two, marked(query(&session))).await, (204, None));
    assert!(two.upstream.is_quiet() && three.upstream.is_quiet());
}

#[tokio::test]
async fn a_query_for_a_session_that_names_no_replica_is_answered_by_the_store() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let mut two = Replica::process(&redis, "two", &[]).await;
    let session = open(&one.proxy, &mut one.upstream, json!({})).await;
    is_recorded(&redis).await;
    assert_eq!(outcome(&two, marked(query(&session))).await, (421, Some(ONE.to_owned())));
    assert_eq!(outcome(&one, marked(query(&session))).await, (204, None));
    let unknown = Session::opened_elsewhere(V2025_11, "another", None);
    assert_eq!(outcome(&two, marked(query(&unknown))).await, (204, None));
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    // Without a balancer it is a request like any other.
    let pending = query(&session).start(two.proxy.addr).await;
    let passed = two.upstream.next().await;
    assert_eq!((passed.header("mcp-session-id"), passed.header("mcp-resume-locate")), (Some("s-1"), None));
    passed.status(405).await;
    assert_eq!(pending.response().await.status, 405);
}
