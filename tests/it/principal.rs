//! A stream belongs to who opened it.

use crate::support::*;
use http::HeaderName;
use mcp_resume::config::PrincipalSource;

async fn stage_of(source: PrincipalSource) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.auth.principal = source).await;
    (upstream, proxy)
}

/// A finished call of this caller; its place is before the response.
async fn finished(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> EventId {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    place
}

/// Whether a caller with these headers can read the stream.
async fn reads(proxy: &Proxy, place: &EventId, headers: &[(&str, &str)]) -> bool {
    let mut request = modern_resume(&place.at(0));
    for (name, value) in headers {
        request = request.with(name, value);
    }
    let mut response = request.send(proxy.addr).await.sse();
    let (events, _) = response.events().await;
    assert_eq!(events.len(), 1);
    let message = events[0].json();
    match message["error"]["code"].as_i64() {
        None => true,
        Some(code) => {
            assert_eq!(code, GONE);
            false
        }
    }
}

#[tokio::test]
async fn it_is_the_authorization_unless_said_otherwise() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::Auto).await;
    let mine = ("Authorization", "Bearer mine");
    let place = finished(&proxy, &mut upstream, &modern(1).with(mine.0, mine.1)).await;
    assert!(reads(&proxy, &place, &[mine]).await);
    assert!(reads(&proxy, &place, &[mine, ("Cookie", "lb=2"), ("X-API-Key", "any")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer other")]).await);
    assert!(!reads(&proxy, &place, &[("X-API-Key", "Bearer mine")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn an_api_key_names_a_caller_too() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::Auto).await;
    let mine = ("X-API-Key", "mine");
    let place = finished(&proxy, &mut upstream, &modern(1).with(mine.0, mine.1)).await;
    assert!(reads(&proxy, &place, &[mine]).await);
    assert!(!reads(&proxy, &place, &[("X-API-Key", "other")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "mine")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn of_an_anonymous_stream_the_event_id_is_the_only_key() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::Auto).await;
    let place = finished(&proxy, &mut upstream, &modern(1)).await;
    assert!(reads(&proxy, &place, &[]).await);
    assert!(reads(&proxy, &place, &[("Cookie", "a=1")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer x")]).await);
}

#[tokio::test]
async fn it_can_be_a_header_that_outlives_a_token() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::Header(HeaderName::from_static("x-user"))).await;
    let request = modern(1).with("X-User", "u").with("Authorization", "Bearer 1");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("X-User", "u"), ("Authorization", "Bearer 2")]).await);
    assert!(!reads(&proxy, &place, &[("X-User", "v"), ("Authorization", "Bearer 1")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer 1")]).await);
}

#[tokio::test]
async fn it_can_be_a_cookie() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::Cookie("sid".to_owned())).await;
    let request = modern(1).with("Cookie", "lb=1; sid=abc; x=y");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("Cookie", "sid=abc")]).await);
    assert!(reads(&proxy, &place, &[("Cookie", "lb=2; sid=abc")]).await);
    assert!(!reads(&proxy, &place, &[("Cookie", "sid=abcd")]).await);
    assert!(!reads(&proxy, &place, &[("Cookie", "xsid=abc")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn it_can_be_nobody() {
    let (mut upstream, proxy) = stage_of(PrincipalSource::None).await;
    let request = modern(1).with("Authorization", "Bearer 1");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("Authorization", "Bearer 2")]).await);
    assert!(reads(&proxy, &place, &[]).await);
}
