//! Events from the upstream, and events to clients.

use super::{Meter, finish, observed};
use crate::support::*;

/// Three events and the answer; what they hold.
pub(super) async fn four_events(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (EventId, usize) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=3 {
        sse.event(progress(n)).await;
        response.event().await;
    }
    finish(sse, &mut response).await;
    (place, 3 * progress(1).len() + result(1).len())
}

pub(super) async fn events_of_the_upstream(events: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = events.read(&proxy).await;
    four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(events.read(&proxy).await, before + 4.0);
}

pub(super) async fn the_data_of_events(bytes: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = bytes.read(&proxy).await;
    let (_, data) = four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(bytes.read(&proxy).await, before + data as f64);
}

pub(super) async fn events_that_are_written_and_written_again(events: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = events.read(&proxy).await;
    let (place, _) = four_events(&proxy, &mut upstream, &session).await;
    assert_eq!(events.read(&proxy).await, before + 4.0);
    let (again, _) = session.resume(&place.at(2)).send(proxy.addr).await.events().await;
    assert_eq!((again.len(), events.read(&proxy).await), (2, before + 6.0));
}

pub(super) async fn the_bytes_of_a_response(bytes: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (place, _) = four_events(&proxy, &mut upstream, &session).await;
    let before = bytes.read(&proxy).await;
    let body = session.resume(&place.at(0)).send(proxy.addr).await.sse().body().await;
    assert_eq!(bytes.read(&proxy).await, before + body.len() as f64);
}

pub(super) async fn the_head_of_an_answer(seconds: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let before = seconds.count(&proxy).await;
    let (_sse, _response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(seconds.count(&proxy).await, before + 1.0);
}

pub(super) async fn an_event_for_a_client_that_waits(seconds: &Meter) {
    let (mut upstream, proxy, session) = observed().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let before = seconds.count(&proxy).await;
    sse.event(progress(1)).await;
    response.event().await;
    assert_eq!(seconds.count(&proxy).await, before + 1.0);
}
