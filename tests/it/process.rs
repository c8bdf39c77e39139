//! The process as an operator sees it: probes, metrics, the end.

use crate::support::*;

async fn observed() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    (upstream, proxy)
}

async fn page(proxy: &Proxy, path: &str) -> (u16, String) {
    let admin = proxy.admin.expect("an admin listener");
    let mut response = Request::new("GET", path).send(admin).await;
    let body = response.body().await;
    (response.status, String::from_utf8(body).expect("text"))
}

/// The sum of all samples whose name contains `name`.
fn sum(metrics: &str, name: &str) -> f64 {
    let samples: Vec<f64> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter(|line| line.split(['{', ' ']).next().is_some_and(|n| n.contains(name)))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    samples.iter().sum()
}

#[tokio::test]
async fn it_says_that_it_lives_and_when_it_is_ready() {
    let (mut upstream, proxy) = observed().await;
    assert_eq!(page(&proxy, "/healthz").await.0, 200);
    Session::open(&proxy, &mut upstream, V2025_11).await;
    assert_eq!(page(&proxy, "/readyz").await.0, 200);
    assert_eq!(page(&proxy, "/nothing").await.0, 404);
}

#[tokio::test]
async fn it_is_not_ready_before_its_upstream_was_there_once() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    assert_eq!(page(&proxy, "/readyz").await.0, 503);
    assert_eq!(page(&proxy, "/healthz").await.0, 200);
}

#[tokio::test]
async fn a_resume_and_its_outcome_show_in_the_metrics() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let before = page(&proxy, "/metrics").await;
    assert_eq!(before.0, 200);
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    session.resume(&place.forged().at(0)).send(proxy.addr).await;
    let after = page(&proxy, "/metrics").await;
    let resumes = |(_, text): &(u16, String)| sum(text, "resumes");
    assert_eq!(resumes(&after) - resumes(&before), 2.0, "{}", after.1);
    for secret in [place.handle.as_str(), session.id.as_str()] {
        assert!(!after.1.contains(secret), "{secret} in the metrics");
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn delivered_events_are_counted_one_by_one() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let delivered = |(_, text): (u16, String)| sum(&text, "delivered_events_total");
    assert_eq!(delivered(page(&proxy, "/metrics").await), 0.0, "a prime is no event");
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.bytes((1..=9).map(|n| format!("data: {}\n\n", progress(n))).collect::<String>()).await;
    sse.finish(result(1)).await;
    // In one piece, or nearly: all of it was there before the client.
    settle(&proxy, &mut upstream).await;
    for times in [10.0, 20.0] {
        let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        assert_eq!(back.events().await.0.len(), 10);
        assert_eq!(delivered(page(&proxy, "/metrics").await), times);
    }
}

#[tokio::test]
async fn the_streams_page_holds_no_secret() {
    let (mut upstream, proxy) = observed().await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-secret", Some("Bearer hidden")).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call("payload-id"))).await;
    let place = EventId::of(response.prime().await.id());
    let (status, text) = page(&proxy, "/streams").await;
    if status == 200 {
        for secret in [place.handle.as_str(), "s-secret", "hidden"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
    sse.finish(result("payload-id")).await;
}

#[tokio::test]
async fn asked_to_stop_it_stops() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    response.events().await;
    proxy.stop().await;
}

#[tokio::test]
async fn what_runs_when_it_is_asked_to_stop_comes_to_its_end() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    let stopped = proxy.ask_to_stop();
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    stopped.await;
}

#[tokio::test]
async fn a_large_answer_that_is_cut_shows_in_the_metrics() {
    let (mut upstream, proxy) = observed().await;
    let left = "mcp_resume_disconnects_total{can_resume=\"no\"}";
    let broke = "mcp_resume_upstream_failures_total{reason=\"upstream_broke\"}";
    let large = "x".repeat(100_000);
    for head in ["content-length: 100000\r\n\r\n", "transfer-encoding: chunked\r\n\r\n186a0\r\n"] {
        let pending = Request::post(call(1)).start(proxy.addr).await;
        let end = if head.contains("chunked") { "\r\n0\r\n\r\n" } else { "" };
        let whole = format!("HTTP/1.1 200 X\r\ncontent-type: application/json\r\n{head}{large}{end}");
        upstream.next().await.whole(whole).await;
        assert_eq!(pending.response().await.body().await.len(), 100_000);
    }
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (0.0, 0.0));

    let half = format!("HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n{large}");
    let pending = Request::post(call(2)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write(&half).await;
    pending.response().await.reset();
    upstream_call.closed().await;
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (1.0, 0.0));

    let pending = Request::post(call(3)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write(&half).await;
    let mut response = pending.response().await;
    upstream_call.reset().await;
    assert_eq!(response.try_body().await.1, End::Broken);
    assert_eq!((metric(&proxy, left).await, metric(&proxy, broke).await), (1.0, 1.0));
}
