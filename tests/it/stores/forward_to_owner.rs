//! Client messages at one replica about calls at another.

use std::time::Duration;

use mcp_resume::config::{ListenTls, Turns};
use serde_json::{Value, json};

use super::*;
use crate::cancel::{cancel, cancelled};
use crate::client_responses::{answer, question};
use crate::dialects::open;
use crate::principal::asked_with_certificate;
use crate::support::pki::Pki;

/// A session of the first replica's server, and one of the proxy's own.
async fn sessions() -> [(Redis, Replica, Replica, Session); 2] {
    let of_upstream = pair().await;
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let (own, _) = open(&one.proxy, &mut one.upstream, json!({ "streams": {} }), None).await;
    assert!(own.id.starts_with("mr1."), "{}", own.id);
    [of_upstream, (redis, one, two, own)]
}

fn is_own(session: &Session) -> bool {
    session.id.starts_with("mr1.")
}

#[tokio::test]
async fn an_answer_reaches_the_server_that_asked_once() {
    for (_redis, mut one, two, session) in sessions().await {
        let (sse, response, place) = one.begin(&session.post(call(1))).await;
        response.reset();
        let mut back = two.send(session.resume(&place.at(0))).await.sse();
        sse.event(question("q")).await;
        while back.event().await.bytes() != question("q").as_bytes() {}
        let pending = session.post(answer("q")).start(two.proxy.addr).await;
        let given = one.upstream.expect("response").await;
        assert_eq!(given.body, answer("q").into_bytes());
        assert_eq!(given.header("mcp-session-id"), Some(session.id.as_str()).filter(|_| !is_own(&session)));
        given.status_with(202, "x-custom: 1\r\n").await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header("x-custom")), (202, Some("1")));
        // Acknowledged, and dropped.
        assert_eq!(two.send(session.post(answer("q"))).await.status, 202);
        assert_eq!(one.send(session.post(answer("q"))).await.status, 202);
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
        sse.finish(result(1)).await;
        assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    }
}

#[tokio::test]
async fn an_answer_on_a_stream_url_reaches_the_server_that_asked() {
    for (_redis, mut one, two, session) in sessions().await {
        let (sse, response, place) = one.begin(&session.post(call(1))).await;
        response.reset();
        let mut back = two.send(session.get().target(&url_of(&place))).await.sse();
        sse.event(question("q")).await;
        while back.event().await.bytes() != question("q").as_bytes() {}
        let pending = session.post(answer("q")).target(&url_of(&place)).start(two.proxy.addr).await;
        let given = one.upstream.expect("response").await;
        assert_eq!(given.body, answer("q").into_bytes());
        given.status(202).await;
        let mut goes_on = pending.response().await.sse();
        sse.finish(result(1)).await;
        while goes_on.event().await.bytes() != result(1).as_bytes() {}
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    }
}

/// The writer assigns the turn later.
#[tokio::test]
async fn no_party_has_the_turn_once_the_client_response_was_forwarded() {
    let (_redis, mut one, two, session) = pair_with(|config| {
        config.dialects.stream_url_turns = Turns::All;
        config.dialects.input_grace = SOON;
    })
    .await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let get = || two.send(session.get().target(&url_of(&place)));
    sse.event(question("q")).await;
    let mut back = get().await.sse();
    while back.event().await.bytes() != question("q").as_bytes() {}
    back.ends().await;
    let pending = session.post(answer("q")).target(&url_of(&place)).start(two.proxy.addr).await;
    one.upstream.expect("response").await.status(202).await;
    let mut goes_on = pending.response().await.sse();
    sse.finish(result(1)).await;
    while goes_on.event().await.bytes() != result(1).as_bytes() {}
}

/// Servers without sessions ask by the same ids in every call: the stream says whose question it
/// is.
#[tokio::test]
async fn an_answer_on_a_stream_url_needs_no_session() {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let mut two = Replica::start(&redis, "two").await;
    let token = ("Authorization", "Bearer mine");
    let begun = Request::post(call(1)).with("MCP-Protocol-Version", V2025_11).with(token.0, token.1);
    let (here, mut kept, _) = two.begin(&begun).await;
    let (sse, response, place) = one.begin(&begun).await;
    response.reset();
    for asked in [&here, &sse] {
        asked.event(question("0")).await;
    }
    let addr = two.proxy.addr;
    let give = async |token: &str| {
        let given = Request::post(answer("0")).target(&url_of(&place)).with("Authorization", token);
        given.start(addr).await
    };

    // A stranger's opens nothing.
    let mut lost = give("Bearer other").await.response().await;
    assert!(rest(&mut lost).await.iter().all(|text| text.contains("error")));
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());

    // What the server refuses may come again.
    let pending = give(token.1).await;
    one.upstream.expect("response").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    let refused = pending.response().await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    let pending = give(token.1).await;
    let given = one.upstream.expect("response").await;
    assert_eq!((given.target.as_str(), given.body.as_slice()), ("/mcp", answer("0").as_bytes()));
    given.status(202).await;
    pending.response().await.reset();

    // Once is enough.
    let mut goes_on = give(token.1).await.response().await.sse();
    sse.finish(result(1)).await;
    while goes_on.event().await.bytes() != result(1).as_bytes() {}
    here.finish(result(1)).await;
    while kept.event().await.bytes() != result(1).as_bytes() {}
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

#[tokio::test]
async fn a_cancel_reaches_the_server_that_runs_the_call() {
    for (_redis, mut one, two, session) in sessions().await {
        let (sse, response, place) = one.begin(&session.post(call(1))).await;
        response.reset();
        cancel(&two.proxy, &mut one.upstream, session.post(cancelled(1))).await;
        sse.end().await;
        until("the stream is over", async || {
            let mut back = two.send(session.resume(&place.at(0))).await;
            back.status == 204 || rest(&mut back).await.iter().all(|text| text.contains("notifications/stream"))
        })
        .await;
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    }
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_calls() {
    for (_redis, mut one, two, session) in sessions().await {
        let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
        let deleted = session.delete().start(two.proxy.addr).await;
        if is_own(&session) {
            assert_eq!(deleted.response().await.status, 200);
        } else {
            let call = one.upstream.expect("DELETE").await;
            assert_eq!(call.header("mcp-session-id"), Some(session.id.as_str()));
            call.status_with(204, "x-custom: 1\r\n").await;
            let deleted = deleted.response().await;
            assert_eq!((deleted.status, deleted.header("x-custom")), (204, Some("1")));
        }
        one.upstream.expect("notifications/cancelled").await.status(202).await;
        sse.closed().await;
        let error = async |response: &mut Response| {
            let texts = rest(response).await;
            let errors: Vec<Value> = texts.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
            errors.into_iter().find(|message| message["error"].is_object()).expect("an error")
        };
        assert_fault(&error(&mut response).await, 1, ABANDONED, "client");
        let mut late = two.send(session.resume(&place.at(0))).await.sse();
        let code = error(&mut late).await["error"]["code"].as_i64();
        assert!(matches!(code, Some(ABANDONED | GONE)), "{code:?}");
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_session_that_has_ended_leaves_nothing_for_long() {
    const SESSIONS: &str = "mcp-resume:group:session*";
    const MINUTE: Duration = Duration::from_secs(60);
    for (redis, mut one, two, session) in sessions().await {
        let (sse, mut response, _) = one.begin(&session.post(call(1))).await;
        sse.finish(result(1)).await;
        rest(&mut response).await;
        assert!(redis.lasts(SESSIONS).is_some_and(|lasts| lasts > MINUTE));
        let deleted = session.delete().start(two.proxy.addr).await;
        if !is_own(&session) {
            one.upstream.expect("DELETE").await.status(204).await;
        }
        assert!(matches!(deleted.response().await.status, 200 | 204));
        until("nothing is left for long", async || redis.lasts(SESSIONS).is_some_and(|lasts| lasts <= MINUTE)).await;
    }
}

#[tokio::test]
async fn a_notification_in_a_session_goes_to_its_server() {
    let (_redis, mut one, two, session) = pair().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    let pending = session.post(changed).start(two.proxy.addr).await;
    one.upstream.expect("notifications/roots/list_changed").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_stranger_cannot_answer_cancel_or_end_anything_elsewhere() {
    for (_redis, mut one, mut two, session) in sessions().await {
        let (sse, mut response, _) = one.begin(&session.post(call(1))).await;
        sse.event(question("q")).await;
        while response.event().await.bytes() != question("q").as_bytes() {}
        for request in [session.post(answer("q")), session.post(cancelled(1)), session.delete()] {
            let is_delete = request.line().0 == "DELETE";
            let pending = request.with("Authorization", "Bearer other").start(two.proxy.addr).await;
            if !(is_own(&session) && is_delete) {
                // No stream here owns it: the server decides.
                two.upstream.next().await.status(404).await;
            }
            pending.response().await;
        }
        assert!(one.upstream.is_quiet() && !sse.is_closed());
        sse.finish(result(1)).await;
        assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    }
}

#[tokio::test]
async fn a_cancel_reaches_a_call_in_a_session_that_no_replica_opened() {
    let redis = Redis::start();
    let (mut one, two) = (Replica::start(&redis, "one").await, Replica::start(&redis, "two").await);
    let session = Session::opened_elsewhere(V2025_11, "s-1", None);
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    cancel(&two.proxy, &mut one.upstream, session.post(cancelled(1))).await;
    sse.end().await;
    until("the stream is over", async || one.send(session.resume(&place.at(0))).await.status == 204).await;
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

/// Servers that share their sessions run a call at the replica where its POST arrives.
#[tokio::test]
async fn a_cancel_goes_to_the_replica_that_runs_the_call_and_not_to_the_one_that_opened_the_session() {
    let (redis, mut one, mut two, session) = pair().await;
    let three = Replica::start(&redis, "three").await;
    for (n, comes_home) in [(1, true), (2, false)] {
        let (sse, response, place) = two.begin(&session.post(call(n))).await;
        drop(response);
        let at = if comes_home { &one.proxy } else { &three.proxy };
        cancel(at, &mut two.upstream, session.post(cancelled(n))).await;
        sse.end().await;
        until("the stream is over", async || two.send(session.resume(&place.at(0))).await.status == 204).await;
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet() && three.upstream.is_quiet());
    }
    // What runs nowhere is the business of the server that has the session.
    cancel(&three.proxy, &mut one.upstream, session.post(cancelled(9))).await;
    cancel(&one.proxy, &mut one.upstream, session.post(cancelled(9))).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_calls_at_every_replica() {
    for at_home in [true, false] {
        let (redis, mut one, mut two, session) = pair().await;
        let three = Replica::start(&redis, "three").await;
        let (sse, mut response, _) = two.begin(&session.post(call(1))).await;
        let at = if at_home { &one.proxy } else { &three.proxy };
        let deleted = session.delete().start(at.addr).await;
        one.upstream.expect("DELETE").await.status(204).await;
        assert_eq!(deleted.response().await.status, 204);
        two.upstream.expect("notifications/cancelled").await.status(202).await;
        sse.closed().await;
        let error: Value = serde_json::from_str(rest(&mut response).await.last().expect("an end")).expect("JSON");
        assert_fault(&error, 1, ABANDONED, "client");
        assert!(three.upstream.is_quiet());
        assert!(two.upstream.is_quiet(), "its server has not opened the session");
    }
}

/// The word of the server that has the session is waited for, and changes something only where it
/// is 2xx.
#[tokio::test]
async fn a_refusal_of_a_forwarded_request_keeps_its_status_and_changes_nothing() {
    let (_redis, mut one, mut two, _) = pair().await;
    let session = Session::open_as(&one.proxy, &mut one.upstream, V2025_11, "s-t", Some("Bearer t")).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(question("q")).await;
    while response.event().await.bytes() != question("q").as_bytes() {}
    // Its credentials end in mid-call.
    let pending = session.post(call(2)).start(one.proxy.addr).await;
    one.upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    let on_url = session.post(answer("q")).target(&url_of(&place));
    for (request, rpc) in [
        (session.post(answer("q")), "response"),
        (on_url.clone(), "response"),
        (session.post(cancelled(1)), "notifications/cancelled"),
        (session.delete(), "DELETE"),
    ] {
        let pending = request.start(two.proxy.addr).await;
        let judged = one.upstream.expect(rpc).await;
        let mut answer = std::pin::pin!(pending.response());
        tokio::select! {
            biased;
            _ = &mut answer => panic!("it was answered before the server was heard: {rpc}"),
            () = settle(&two.proxy, &mut two.upstream) => {}
        }
        judged.status_with(401, "www-authenticate: Bearer\r\n").await;
        let refused = answer.await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{rpc}");
        settle(&one.proxy, &mut one.upstream).await;
        assert!(!sse.is_closed(), "{rpc}");
    }
    // The question is open still, and the call runs.
    let pending = on_url.start(two.proxy.addr).await;
    one.upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 200);
    sse.finish(result(1)).await;
    while response.frame().await.is_some_and(|frame| frame.bytes() != result(1).as_bytes()) {}
}

/// A client's certificate goes along: it is no header that could be repeated.
#[tokio::test]
async fn an_answer_is_given_elsewhere_in_the_name_of_its_certificate() {
    let pki = Pki::new();
    let tls = |config: &mut Config| {
        config.listen.tls = Some(ListenTls { identity: pki.pair(), client_ca: Some(pki.ca()) });
    };
    let redis = Redis::start();
    let mut one = Replica::with(&redis, "one", tls).await;
    let two = Replica::with(&redis, "two", tls).await;
    let begun = Request::post(call(1)).with("MCP-Protocol-Version", V2025_11);
    let (first, sse) = tokio::join!(asked_with_certificate(&one.proxy, &pki, "a", &begun, "\"q\""), async {
        let sse = one.upstream.expect("tools/call").await.sse().await;
        sse.event(question("q")).await;
        sse
    });
    let id = first.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id");
    let given = Request::post(answer("q")).target(&url_of(&EventId::of(id)));
    let theirs = asked_with_certificate(&two.proxy, &pki, "b", &given, "error").await;
    assert!(theirs.contains(&GONE.to_string()), "{theirs}");
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    let (mine, ()) = tokio::join!(asked_with_certificate(&two.proxy, &pki, "a", &given, "\r\n\r\n"), async {
        one.upstream.expect("response").await.status(202).await;
    });
    assert!(mine.starts_with("HTTP/1.1 200"), "{mine}");
    assert!(two.upstream.is_quiet());
    sse.finish(result(1)).await;
}

/// Only the store knows whether it has arrived.
#[tokio::test]
async fn a_request_that_may_have_been_forwarded_is_not_sent_to_the_server_here() {
    let (redis, mut one, mut two, session) = pair().await;
    let (sse, response, _) = two.begin(&session.post(call(1))).await;
    drop(response);
    // It has had a message before.
    cancel(&one.proxy, &mut one.upstream, session.post(cancelled(9))).await;
    redis.lose_mail(true);
    for request in [session.post(cancelled(1)), session.post(answer("q"))] {
        let mut refused = one.send(request).await;
        assert_eq!(refused.status, 503);
        let message = refused.json().await;
        assert_eq!(message["error"]["message"], format!("{STORE_FAILED}{MAY_HAVE_BEEN_CARRIED_OUT}"), "{message}");
        assert_eq!(message["error"]["data"]["mayHaveRun"], true, "{message}");
    }
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    redis.lose_mail(false);
    cancel(&one.proxy, &mut two.upstream, session.post(cancelled(1))).await;
    sse.end().await;
}
