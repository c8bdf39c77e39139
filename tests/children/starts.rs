//! Bounds of starts, as a client meets them in a session that is opened again.

use super::*;
use crate::table::kill;

/// Answers every request of a client, `initialize` included, under its ID: whole numbers and the
/// texts of the proxy's own.
const ANSWERS: &str = r#"while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
    [ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id"
done"#;

#[tokio::test]
async fn a_session_that_finds_no_room_is_refused_for_now_and_not_for_good() {
    let bounds = [("UPSTREAM__STARTS_PER_MINUTE", "1"), ("UPSTREAM__START_SECS", "2")];
    let adapter = Adapter::start(ANSWERS, &bounds).await;
    let session = adapter.open().await;
    let [leader] = adapter.mark.until_leaders().await;
    kill(leader).await;
    adapter.all_gone().await;
    // More often than a session may be opened again within a minute.
    for id in 1..=4 {
        let mut refused = session.post(call(id)).with("accept", "application/json").send(adapter.proxy.addr).await;
        let body = refused.json().await;
        assert_eq!((refused.status, &body["id"], &body["error"]["code"]), (503, &json!(id), &json!(-32013)), "{body}");
        assert!(refused.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn a_session_that_is_opened_again_counts_for_its_caller() {
    let bounds = [("UPSTREAM__MAX_CHILDREN_PER_PRINCIPAL", "1"), ("AUTH__PRINCIPAL", "header:x-user")];
    let adapter = Adapter::start(ANSWERS, &bounds).await;
    let as_user = |request: Request| request.and("x-user", "a");
    let opened = as_user(Request::post(initialize(V2025_11))).send(adapter.proxy.addr).await;
    let id = opened.header("mcp-session-id").expect("a session").to_owned();
    let session = Session::opened_elsewhere(V2025_11, &id, None);
    let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(as_user(ready).send(adapter.proxy.addr).await.status, 202);
    let [first] = adapter.mark.until_leaders().await;
    let other = as_user(Request::post(initialize(V2025_11))).send(adapter.proxy.addr).await;
    assert_eq!(other.status, 200);
    // The first session has made room.
    let [second] = adapter.mark.until_leaders().await;
    assert_ne!(first, second);
    // The first session is opened again, in place of the second.
    let answer = as_user(session.post(call(7))).send(adapter.proxy.addr).await;
    assert_eq!(answer.status, 200);
    // Its response may begin before that.
    until(
        "the second session has made room",
        async || matches!(adapter.mark.leaders()[..], [third] if third != second),
    )
    .await;
}
