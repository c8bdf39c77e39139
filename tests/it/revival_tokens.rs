//! Sessions that a caller with a refreshed token opens again.

use serde_json::json;

use crate::revival::*;
use crate::support::*;

const OLD: u32 = 1;
const NEW: u32 = 2;

/// A session that `u` opened with its first token, and the same with a later one.
async fn refreshed() -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let _old = open_as(&proxy, &mut upstream, json!({}), Some(&bearer("u", OLD))).await;
    (upstream, proxy, Session::opened_elsewhere(V2025_11, "s-1", Some(&bearer("u", NEW))))
}

/// Begins a call that the server refuses with its session.
async fn refused(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> Client {
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse(upstream, "tools/call", "s-1").await;
    pending
}

/// Answers the questions about a token, each in the session and with this status; a 404 refuses the
/// session.
async fn judge(upstream: &mut Upstream, statuses: &[u16]) {
    for (number, status) in statuses.iter().enumerate() {
        let asked = upstream.question().await;
        assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
        assert_eq!(asked.header("accept"), Some("application/json, text/event-stream"));
        assert_eq!(asked.header("authorization") == Some(bearer("u", NEW).as_str()), number != 1);
        match status {
            404 => asked.json(404, FORGOTTEN).await,
            status => asked.json(*status, "{}").await,
        }
    }
}

/// The refusal reaches the client, and nothing more is sent.
async fn passes(mut upstream: Upstream, proxy: Proxy, pending: Client) {
    let mut response = pending.response().await;
    assert_eq!((response.status, response.body().await.as_slice()), (404, FORGOTTEN.as_bytes()));
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

/// The server checks credentials before sessions.
#[tokio::test]
async fn a_refreshed_token_opens_the_session_again() {
    let (mut upstream, proxy, session) = refreshed().await;
    let pending = refused(&mut upstream, &proxy, &session).await;
    judge(&mut upstream, &[404, 401, 404]).await;
    deny(&mut upstream, "s-1").await;
    let opening = upstream.expect("initialize").await;
    assert_eq!(opening.header("authorization"), Some(bearer("u", NEW).as_str()));
    answer_initialize(opening, "s-2").await;
    complete(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    let mut response = pending.response().await;
    assert_eq!(response.header("mcp-session-id"), Some("s-1"));
    assert_eq!(response.body().await, result(1).as_bytes());
    assert_eq!(metric(&proxy, r#"mcp_resume_token_probes_total{outcome="genuine"}"#).await, 1.0);
    // From now on the token is known in the session.
    let pending = session.post(call(2)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-2").await;
    open_again(&mut upstream, "s-3").await;
    answer(&mut upstream, 2, "s-3").await;
    assert_eq!(pending.response().await.status, 200);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_get_with_a_refreshed_token_opens_the_session_again() {
    let (mut upstream, proxy, session) = refreshed().await;
    let pending = session.get().start(proxy.addr).await;
    refuse(&mut upstream, "GET", "s-1").await;
    judge(&mut upstream, &[404, 403, 404]).await;
    deny(&mut upstream, "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let get = upstream.expect("GET").await;
    assert_eq!(get.header("mcp-session-id"), Some("s-2"));
    let _sse = get.sse().await;
    pending.response().await.sse().prime().await;
}

/// The server looks for the session first, or accepts any token, or refuses this one. None of that
/// proves a token: who has stolen the name of a session, and has made up a token, sees the refusal
/// that the server gives to anyone.
#[tokio::test]
async fn a_token_that_the_server_does_not_judge_opens_nothing() {
    for statuses in [&[404, 404][..], &[404, 200], &[200, 200], &[401], &[403], &[404, 400], &[404, 401, 401], &[503]] {
        let (mut upstream, proxy, session) = refreshed().await;
        let pending = refused(&mut upstream, &proxy, &session).await;
        judge(&mut upstream, statuses).await;
        passes(upstream, proxy, pending).await;
    }
}

#[tokio::test]
async fn a_token_that_the_handshake_refuses_opens_nothing() {
    let (mut upstream, proxy, session) = refreshed().await;
    let pending = refused(&mut upstream, &proxy, &session).await;
    judge(&mut upstream, &[404, 401, 404]).await;
    deny(&mut upstream, "s-1").await;
    upstream.expect("initialize").await.status_with(401, "WWW-Authenticate: Bearer x\r\n").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer x")));
    // The token is asked about again.
    let pending = refused(&mut upstream, &proxy, &session).await;
    judge(&mut upstream, &[404, 404]).await;
    passes(upstream, proxy, pending).await;
}

#[tokio::test]
async fn the_server_is_not_asked_about_the_token_of_another_user_or_client() {
    let (mut upstream, proxy, _) = refreshed().await;
    let of_client = bearer_of_client("u", NEW, "c");
    for token in [bearer("v", NEW), of_client, "Bearer opaque".to_owned()] {
        let other = Session::opened_elsewhere(V2025_11, "s-1", Some(&token));
        let pending = refused(&mut upstream, &proxy, &other).await;
        assert_eq!(pending.response().await.status, 404);
        settle(&proxy, &mut upstream).await;
    }
    assert!(upstream.is_quiet());
}

/// A row for the configuration may name the status with which credentials are refused.
#[tokio::test]
async fn a_refusal_of_the_session_refuses_no_token() {
    let mut upstream = Upstream::start().await;
    let gone = r#"{"error":"session expired"}"#;
    let proxy = Proxy::start(&upstream, |c| c.sessions.refusals = vec!["401 session expired".parse().unwrap()]).await;
    let _old = open_as(&proxy, &mut upstream, json!({}), Some(&bearer("u", OLD))).await;
    let session = Session::opened_elsewhere(V2025_11, "s-1", Some(&bearer("u", NEW)));
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(401, gone).await;
    for _ in 0..2 {
        upstream.question().await.json(401, gone).await;
    }
    assert_eq!(pending.response().await.body().await, gone.as_bytes());
    assert!(upstream.is_quiet());
}
