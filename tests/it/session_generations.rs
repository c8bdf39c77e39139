//! Requests of a server, and responses and cancels of a client, in a session that was opened again.

use crate::revival::*;
use crate::support::*;

/// The request was sent again, and has no response head yet.
#[tokio::test]
async fn the_cancel_of_a_call_that_was_sent_again_goes_to_the_new_session() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-session-id"), Some("s-2"));
    let ending = session.delete().start(proxy.addr).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    assert_eq!(ending.response().await.status, 200);
    let cancel = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancel.header("mcp-session-id"), Some("s-2"));
    cancel.status(202).await;
    assert_eq!(pending.response().await.status, 504);
}
