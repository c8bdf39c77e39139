//! The streams page and the live page.

use crate::client_responses::question;
use crate::support::*;
use serde_json::Value;

async fn page(proxy: &Proxy, path: &str) -> Response {
    Request::new("GET", path).send(proxy.admin.expect("an admin listener")).await
}

async fn streams(proxy: &Proxy) -> Value {
    page(proxy, "/streams").await.json().await
}

#[tokio::test]
async fn the_streams_page_follows_a_call_and_holds_no_secret() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-secret", Some("Bearer hidden")).await;
    assert_eq!(streams(&proxy).await["total"], 0);

    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call("request-id"))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    response.event().await;
    let list = streams(&proxy).await;
    assert_eq!((&list["total"], &list["open"], &list["detached"]), (&1.into(), &1.into(), &0.into()), "{list}");
    let stream = &list["streams"][0];
    assert_eq!((&stream["state"], &stream["attached"]), (&"working".into(), &true.into()));
    assert_eq!((&stream["events"], &stream["kind"], &stream["era"]), (&1.into(), &"request".into(), &"legacy".into()));
    assert!(stream["bufferedBytes"].as_u64() > Some(0));
    assert_eq!((&stream["method"], &stream["tool"]), (&"tools/call".into(), &"slow".into()), "{stream}");
    assert_eq!((&stream["resumes"], &stream["ended"], &stream["error"]), (&0.into(), &false.into(), &Value::Null));
    for secret in [place.handle.as_str(), "s-secret", "hidden", "request-id"] {
        assert!(!list.to_string().contains(secret), "{secret}: {list}");
    }

    response.reset();
    sse.event(question("q")).await;
    let list = loop {
        let list = streams(&proxy).await;
        if list["detached"] == 1 && list["streams"][0]["events"] == 2 {
            break list;
        }
    };
    assert_eq!(list["streams"][0]["state"], "awaiting input");
    sse.finish(result("request-id")).await;
    while streams(&proxy).await["streams"][0]["state"] != "completed" {}
    assert_eq!(streams(&proxy).await["open"], 0);
    let again = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let list = streams(&proxy).await;
    let stream = &list["streams"][0];
    assert_eq!((&stream["resumes"], &stream["ended"]), (&1.into(), &true.into()), "{stream}");
    drop(again);
}

#[tokio::test]
async fn the_streams_page_says_by_which_error_a_call_has_ended() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    sse.reset().await;
    assert_fault(&response.event().await.json(), 1, UPSTREAM_FAILED, "upstream");
    response.ends().await;
    let list = streams(&proxy).await;
    let stream = &list["streams"][0];
    assert_eq!((&stream["ended"], &stream["state"]), (&true.into(), &"failed".into()), "{stream}");
    assert_eq!(stream["error"], "upstream_broke", "{stream}");
}

#[tokio::test]
async fn the_live_page_and_its_parts_are_there() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    for (path, kind) in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")] {
        let mut part = page(&proxy, path).await;
        assert_eq!(part.status, 200, "{path}");
        assert!(part.header("content-type").expect("a type").starts_with(kind), "{path}");
        assert!(part.header("content-security-policy").expect("a policy").contains("default-src 'self'"));
        assert!(!part.body().await.is_empty());
    }
}
