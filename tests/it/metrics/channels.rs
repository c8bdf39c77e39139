//! Processes of servers on stdio.

use super::Meter;
use crate::support::stdio::StdioServers;
use crate::support::*;

/// A proxy before servers on stdio.
async fn observed_on_stdio() -> (StdioServers, Proxy) {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    (servers, proxy)
}

pub(super) async fn a_session_on_stdio(channels: &Meter) {
    let (servers, proxy) = observed_on_stdio().await;
    assert_eq!(channels.read(&proxy).await, 0.0);
    let (_server, _session) = servers.open(&proxy).await;
    assert_eq!(channels.read(&proxy).await, 1.0);
}

pub(super) async fn the_start_of_a_server_on_stdio(starts: &Meter) {
    let (servers, proxy) = observed_on_stdio().await;
    assert_eq!(starts.of(&proxy, "outcome=opened").await, 0.0);
    let (_server, _session) = servers.open(&proxy).await;
    assert_eq!(starts.of(&proxy, "outcome=opened").await, 1.0);
    assert_eq!(starts.of(&proxy, "outcome=failed").await, 0.0);
}

pub(super) async fn the_end_of_a_session_on_stdio(ends: &Meter) {
    let (servers, proxy) = observed_on_stdio().await;
    let (server, session) = servers.open(&proxy).await;
    assert_eq!(ends.of(&proxy, "reason=client").await, 0.0);
    assert_eq!(session.delete().send(proxy.addr).await.status, 200);
    server.exit().await;
    until("the end is counted", async || ends.of(&proxy, "reason=client").await == 1.0).await;
    assert_eq!(ends.of(&proxy, "reason=lost").await, 0.0);
}

pub(super) async fn a_line_that_is_no_message(skipped: &Meter) {
    let (servers, proxy) = observed_on_stdio().await;
    let (mut server, _session) = servers.open(&proxy).await;
    assert_eq!(skipped.of(&proxy, "reason=not_json_rpc").await, 0.0);
    server.say("listening on stdio").await;
    until("the line is counted", async || skipped.of(&proxy, "reason=not_json_rpc").await == 1.0).await;
}

pub(super) async fn a_response_under_another_spelling_of_its_id(repaired: &Meter) {
    let (servers, proxy) = observed_on_stdio().await;
    let (mut server, session) = servers.open(&proxy).await;
    assert_eq!(repaired.of(&proxy, "kind=response_id").await, 0.0);
    let pending = session.post(call(7)).start(proxy.addr).await;
    server.message().await;
    server.say(r#"{"jsonrpc":"2.0","id":"7","result":{}}"#).await;
    assert_eq!(pending.response().await.sse().event().await.json()["id"], 7);
    assert_eq!(repaired.of(&proxy, "kind=response_id").await, 1.0);
}
