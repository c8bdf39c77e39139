//! Made-up sessions, and more real sessions than the limit.

use super::*;
use crate::client_responses::{answer, question};
use mcp_resume::config::Prime;
use std::ops::Range;

/// More than have a record.
const MANY: usize = 2_500;
/// Records of one caller, who may have a quarter of all.
const LIMIT_OF_SESSIONS: usize = 2_048;

/// Sends a POST in each of these made-up sessions. None goes upstream.
pub(crate) async fn make_up(proxy: &Proxy, session: &Session, numbers: Range<usize>) {
    let mut client = Client::connect(proxy.addr).await;
    let made_up = |n: &usize| session.post("no JSON").with("Mcp-Session-Id", &format!("made-up-{n}"));
    for numbers in numbers.collect::<Vec<_>>().chunks(100) {
        let posts: Vec<_> = numbers.iter().map(|n| made_up(n).bytes(proxy.addr)).collect();
        client.send(&posts.concat()).await;
        for _ in numbers {
            let mut refused = client.response().await;
            assert_eq!(refused.status, 400);
            refused.body().await;
            client = refused.into_client();
        }
    }
}

#[tokio::test]
async fn made_up_sessions_cost_no_other_what_is_known_of_it() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.delivery.prime = Prime::Since20251125;
        c.limits.sessions = 4 * LIMIT_OF_SESSIONS;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    // Opened before a restart, and in use.
    let old = Session::opened_elsewhere(V2025_11, "s-old", Some("Bearer neighbour"));
    let (sse, mut response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    sse.event(question("q")).await;
    assert_eq!(response.event().await.bytes(), question("q").as_bytes());

    for batch in 0..MANY / 100 {
        make_up(&proxy, &session, batch * 100..(batch + 1) * 100).await;
        neighbour.hears().await;
    }
    let kept = metric(&proxy, "mcp_resume_sessions_kept").await;
    assert!((1_024.0..=2_064.0).contains(&kept), "{kept}");
    let evicted = metric(&proxy, "mcp_resume_evicted_sessions_total").await;
    assert_eq!(kept + evicted, MANY as f64 + 3.0);

    // Only the record says that this session's client is one that is primed.
    let unsaid = neighbour.session.post(call(2)).without("MCP-Protocol-Version");
    let (of_unsaid, mut primed) = begin(&proxy, &mut upstream, &unsaid).await;
    primed.prime().await;
    of_unsaid.finish(result(2)).await;
    assert_eq!(primed.event().await.bytes(), result(2).as_bytes());
    // Only the record finds the stream that asked, and knows of the answer.
    let pending = old.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    assert_eq!(old.post(answer("q")).send(proxy.addr).await.status, 202);
    assert!(upstream.is_quiet());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    // A session that was forgotten is served as before.
    let back = session.post(call(3)).with("Mcp-Session-Id", "made-up-0");
    let (sse, mut response) = begin(&proxy, &mut upstream, &back).await;
    sse.finish(result(3)).await;
    assert_eq!(response.event().await.bytes(), result(3).as_bytes());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn of_too_many_sessions_the_one_that_was_used_longest_ago_is_forgotten_and_served() {
    let (mut upstream, proxy, _) = bounded(|c| {
        c.limits.sessions = 3;
        c.delivery.prime = Prime::Since20251125;
    })
    .await;
    let bearer = Some("Bearer flood");
    let used = Session::open_as(&proxy, &mut upstream, V2025_11, "s-used", bearer).await;
    let oldest = Session::open_as(&proxy, &mut upstream, V2025_11, "s-oldest", bearer).await;
    // Only the record says that the session's client is one that is primed.
    let unsaid = |session: &Session, id: u64| session.post(call(id)).without("MCP-Protocol-Version");
    let running = begin(&proxy, &mut upstream, &unsaid(&used, 1)).await;
    for n in 0..10 {
        Session::open_as(&proxy, &mut upstream, V2025_11, &format!("s-{n}"), bearer).await;
        assert!(metric(&proxy, "mcp_resume_sessions_kept").await <= 3.0);
    }
    // Of 13, with the one that the bounds were tried with.
    assert_eq!(metric(&proxy, "mcp_resume_evicted_sessions_total").await, 10.0);
    for (session, is_known) in [(&used, true), (&oldest, false)] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &unsaid(session, 2)).await;
        sse.finish(result(2)).await;
        let first = response.frame().await.expect("an event");
        assert_eq!(first.bytes().is_empty(), is_known, "{first:?}");
        response.events().await;
    }
    running.0.finish(result(1)).await;
}
