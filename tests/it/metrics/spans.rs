//! Spans for a collector.

use super::Meter;
use crate::support::*;

pub(super) async fn a_collector_that_refuses_and_takes_spans(spans: &Meter) {
    let collector = Collector::start().await;
    collector.answer(400);
    let gets_spans = collector.gets_spans();
    let (mut upstream, proxy, session) = setup_with(|config| {
        gets_spans(config);
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    let mut call = async |id: u64| {
        let client = session.post(call_tool(id, "slow")).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(id)).await;
        assert_eq!(client.response().await.status, 200);
    };
    call(1).await;
    until("spans have failed", async || spans.of(&proxy, "outcome=failed").await >= 3.0).await;
    collector.answer(0);
    call(2).await;
    until("spans are exported", async || spans.of(&proxy, "outcome=exported").await >= 3.0).await;
    assert_eq!(spans.of(&proxy, "outcome=dropped").await, 0.0);
    assert!(!collector.spans().is_empty());
}
