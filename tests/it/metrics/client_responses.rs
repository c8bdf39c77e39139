//! Messages from clients while a call runs, and messages withheld from them.

use super::{Meter, observed};
use crate::client_responses::{answer, question};
use crate::support::*;

/// A call that has asked its client something.
async fn asking(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    assert_eq!(response.event().await.bytes(), question("q").as_bytes());
    (sse, response)
}

pub(super) async fn an_answer_that_the_upstream_cannot_take(held: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, _response) = asking(&proxy, &mut upstream, &session).await;
    assert_eq!(held.read(&proxy).await, 0.0);
    upstream.refuse().await;
    assert_eq!(session.post(answer("q")).send(proxy.addr).await.status, 202);
    assert_eq!(held.read(&proxy).await, 1.0);
}

pub(super) async fn an_answer_given_twice(repeated: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (_sse, _response) = asking(&proxy, &mut upstream, &session).await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    assert_eq!(repeated.read(&proxy).await, 0.0);
    assert_eq!(session.post(answer("q")).send(proxy.addr).await.status, 202);
    assert_eq!(repeated.read(&proxy).await, 1.0);
}

pub(super) async fn events_for_a_client_that_takes_json_only(withheld: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    assert_eq!(withheld.read(&proxy).await, 0.0);
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    for n in 1..=3 {
        sse.event(progress(n)).await;
    }
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    assert_eq!(withheld.read(&proxy).await, 3.0);
}
