//! Traces of calls, as a collector gets them.

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

use crate::revival;
use crate::stores::Replica;
use crate::support::*;
use crate::tasks;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// Returns the trace and the span that a request to the server names.
fn named(call: &Call) -> (String, String) {
    let header = call.header("traceparent").expect("a traceparent");
    let mut fields = header.split('-').skip(1).map(str::to_owned);
    (fields.next().unwrap(), fields.next().unwrap())
}

/// A proxy whose spans go to a collector, in front of a server, with a session.
async fn traced() -> (Collector, Upstream, Proxy, Session) {
    let collector = Collector::start().await;
    let (upstream, proxy, session) = setup_with(collector.gets_spans()).await;
    (collector, upstream, proxy, session)
}

#[tokio::test]
async fn a_call_is_a_span_with_its_request_and_its_delivery() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let request = session.post(call_tool(1, "slow")).with("traceparent", &traceparent("01"));
    let client = request.with("tracestate", "vendor=1").start(proxy.addr).await;
    let at_server = upstream.expect("tools/call").await;
    let named = named(&at_server);
    assert_eq!(at_server.header("tracestate"), Some("vendor=1"));
    let sse = at_server.sse().await;
    let mut response = client.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    sse.finish(result(1)).await;
    response.events().await;
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((call.trace.as_str(), call.parent.as_str(), call.kind), (TRACE, PARENT, SpanKind::Server));
    assert_eq!(call.attribute("mcp.method.name"), "tools/call");
    assert_eq!(call.attribute("gen_ai.tool.name"), "slow");
    assert_eq!(call.attribute("mcp_resume.outcome"), "completed");
    assert_eq!(call.attribute("mcp_resume.events"), "2");
    assert_eq!(call.attribute("mcp_resume.connections"), "1");
    assert!(!call.is_error);
    assert_eq!(call.resource["service.name"], "mcp-resume");
    assert_eq!(call.resource["service.version"], env!("CARGO_PKG_VERSION"));
    let spans = collector.spans();
    let of_trace = |name: &str| spans.iter().find(|span| span.name == name && span.trace == TRACE).cloned().unwrap();
    let sent = of_trace("upstream");
    assert_eq!((named.0.as_str(), &named.1), (TRACE, &sent.id), "the server goes on below the span of its request");
    assert_eq!(
        (&sent.parent, sent.kind, sent.attribute("http.response.status_code")),
        (&call.id, SpanKind::Client, "200")
    );
    assert_eq!(sent.attribute("server.address"), "127.0.0.1");
    let delivery = of_trace("delivery");
    assert_eq!((&delivery.parent, delivery.attribute("mcp_resume.delivery.end")), (&call.id, "complete"));
    assert_eq!(delivery.attribute("mcp_resume.delivery.written"), "2");
    assert!(spans.iter().filter(|span| span.trace == TRACE).count() == 3, "{spans:#?}");
    assert!(call.began <= sent.began && sent.ended <= call.ended);
}

#[tokio::test]
async fn a_message_names_the_trace_of_a_call() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let mut body: serde_json::Value = serde_json::from_str(&call_tool(1, "slow")).unwrap();
    body["params"]["_meta"]["traceparent"] = json!(traceparent("01"));
    let client = session.post(body.to_string()).start(proxy.addr).await;
    let at_server = upstream.expect("tools/call").await;
    assert_eq!(at_server.json_body(), body, "the body is the client's");
    assert_eq!(named(&at_server).0, TRACE);
    at_server.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((call.trace.as_str(), call.parent.as_str()), (TRACE, PARENT));
    assert_eq!((call.attribute("mcp_resume.outcome"), call.attribute("http.response.status_code")), ("passed", "200"));
}

#[tokio::test]
async fn a_header_of_another_trace_is_beside_the_message() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let mut body: serde_json::Value = serde_json::from_str(&call_tool(1, "slow")).unwrap();
    body["params"]["_meta"]["traceparent"] = json!(traceparent("01"));
    let (other, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let request = session.post(body.to_string()).with("traceparent", &format!("00-{other}-{span}-01"));
    let client = request.with("tracestate", "vendor=1").start(proxy.addr).await;
    let at_server = upstream.expect("tools/call").await;
    assert_eq!(
        (named(&at_server).0.as_str(), at_server.header("tracestate")),
        (TRACE, None),
        "the state is another trace's"
    );
    at_server.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((call.trace.as_str(), call.parent.as_str()), (TRACE, PARENT));
    assert_eq!(call.links, [(other.to_owned(), span.to_owned())]);
}

#[tokio::test]
async fn a_call_that_fails_before_its_head_is_an_error() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let client = session.post(call_tool(1, "slow")).start(proxy.addr).await;
    upstream.expect("tools/call").await.reset().await;
    assert_eq!(client.response().await.status, 502);
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((call.attribute("mcp_resume.outcome"), call.attribute("error.type")), ("failed", "upstream_broke"));
    assert_eq!((call.attribute("http.response.status_code"), call.is_error), ("502", true));
    let [sent] = collector.wait_for("upstream").await;
    assert_eq!((sent.attribute("error.type"), sent.is_error), ("upstream_broke", true));
}

#[tokio::test]
async fn the_spans_of_a_response_that_passes_end_with_its_body() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n";
    for (id, is_read) in [(1, true), (2, false)] {
        let client = session.post(call_tool(id, "slow")).start(proxy.addr).await;
        let at_server = upstream.expect("tools/call").await;
        at_server.write(head).await;
        at_server.write(vec![b' '; 100_000]).await;
        let mut response = client.response().await;
        if is_read {
            at_server.write(vec![b' '; 100_000]).await;
            assert_eq!(response.body().await.len(), 200_000);
        } else {
            response.reset();
            at_server.closed().await;
        }
        let ends = async || collector.spans().iter().filter(|span| span.name == "tools/call slow").count();
        until("the call is over", async || ends().await == id as usize).await;
    }
    let deliveries = collector.wait_for::<2>("delivery").await;
    assert_eq!(
        deliveries.each_ref().map(|span| span.attribute("mcp_resume.delivery.end")),
        ["complete", "interrupted"]
    );
    for call in collector.wait_for::<2>("tools/call slow").await {
        assert_eq!((call.attribute("mcp_resume.outcome"), call.is_error), ("passed", false));
    }
}

#[tokio::test]
async fn a_call_that_is_cut_and_finished_at_another_replica_is_one_trace() {
    let (redis, collector) = (Redis::start(), Collector::start().await);
    let mut one = Replica::with(&redis, "one", collector.gets_spans()).await;
    let two = Replica::with(&redis, "two", collector.gets_spans()).await;
    let session = one.open(V2025_11).await;
    let (sse, mut response, place) =
        one.begin(&session.post(call_tool(1, "slow")).with("traceparent", &traceparent("01"))).await;
    sse.event(progress(1)).await;
    response.event().await;
    response.reset();
    let [cut] = collector.wait_for("delivery").await;
    assert_eq!(cut.attribute("mcp_resume.delivery.end"), "interrupted");
    // The client's request to come back is in a trace of its own.
    let (other, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let back = session.resume(&place.at(1)).with("traceparent", &format!("00-{other}-{span}-01"));
    let mut back = two.send(back).await.sse();
    back.prime().await;
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    let [call] = collector.wait_for("tools/call slow").await;
    let [_, rest] = collector.wait_for("delivery").await;
    let [resume] = collector.wait_for("resume").await;
    let [sent] = collector.wait_for("upstream").await;
    for span in [&cut, &rest, &sent] {
        assert_eq!((span.trace.as_str(), &span.parent), (TRACE, &call.id), "{span:?}");
    }
    assert_eq!(call.trace, TRACE);
    assert_eq!((resume.trace.as_str(), resume.parent.as_str()), (other, span));
    assert_eq!(resume.links, [(TRACE.to_owned(), call.id.clone())]);
    assert_eq!(
        (resume.attribute("mcp_resume.resume.by"), resume.attribute("mcp_resume.resume.after")),
        ("last_event_id", "1")
    );
    assert_eq!(rest.links, [(resume.trace.clone(), resume.id.clone())]);
    assert_eq!(
        (rest.attribute("mcp_resume.delivery.after"), rest.attribute("mcp_resume.delivery.end")),
        ("1", "complete")
    );
    let replica = |span: &Span| span.resource["service.instance.id"].clone();
    assert_eq!([&call, &cut, &rest, &resume].map(replica), ["one", "one", "two", "two"]);
}

#[tokio::test]
async fn a_return_without_a_trace_is_in_that_of_its_call() {
    let (collector, mut upstream, proxy, session) = traced().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call_tool(1, "slow"))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    collector.wait_for::<1>("delivery").await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    sse.finish(result(1)).await;
    back.events().await;
    // After its end as well.
    let mut late = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    late.events().await;
    let [call] = collector.wait_for("tools/call slow").await;
    for resume in collector.wait_for::<2>("resume").await {
        assert_eq!((&resume.trace, &resume.parent), (&call.trace, &call.id));
    }
    assert!(call.parent.is_empty() && call.trace.len() == 32, "a trace of its own: {call:?}");
}

#[tokio::test]
async fn the_replica_that_ends_the_call_of_a_dead_one_ends_its_span() {
    let (redis, collector) = (Redis::start(), Collector::start().await);
    let mut one = Replica::process(&redis, "one", &[("MCP_RESUME_OTEL__ENDPOINT", &collector.url())]).await;
    let two = Replica::with(&redis, "two", collector.gets_spans()).await;
    let session = one.open(V2025_11).await;
    let (sse, response, place) = one.begin(&session.post(call_tool(1, "slow"))).await;
    sse.event(progress(1)).await;
    response.reset();
    // The first replica dies when its part of the trace is there.
    let [cut] = collector.wait_for("delivery").await;
    assert_eq!(cut.attribute("mcp_resume.delivery.end"), "interrupted");
    one.proxy.kill().await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.events().await;
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((&cut.trace, &cut.parent), (&call.trace, &call.id));
    assert_eq!((call.attribute("error.type"), call.is_error), ("owner_died", true));
    assert_eq!(call.resource["service.instance.id"], "two");
    let [resume] = collector.wait_for("resume").await;
    assert_eq!((&resume.trace, &resume.parent), (&call.trace, &call.id));
}

#[tokio::test]
async fn a_session_that_is_opened_again_is_a_span_of_the_call_that_needed_it() {
    let collector = Collector::start().await;
    let (mut upstream, proxy, session) = revival::with(json!({}), collector.gets_spans()).await;
    let pending = session.post(call_tool(1, "slow")).start(proxy.addr).await;
    revival::forget(&mut upstream, "tools/call", "s-1").await;
    revival::open_again(&mut upstream, "s-2").await;
    revival::answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
    let [call] = collector.wait_for("tools/call slow").await;
    let [revived] = collector.wait_for("session revival").await;
    assert_eq!((&revived.parent, revived.attribute("mcp_resume.outcome")), (&call.id, "revived"));
    let sent = collector.spans().into_iter().filter(|span| span.name == "upstream" && span.parent == call.id);
    let statuses: Vec<String> = sent.map(|span| span.attribute("http.response.status_code").to_owned()).collect();
    assert_eq!(statuses.last().map(String::as_str), Some("200"), "{statuses:?}");
    assert_eq!(statuses.len(), 2, "{statuses:?}");
}

#[tokio::test]
async fn a_task_is_a_span_below_that_of_its_call() {
    let collector = Collector::start().await;
    let (mut upstream, proxy) = tasks::stage(collector.gets_spans()).await;
    let (sse, handle) = tasks::promoted(&mut upstream, &proxy).await;
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!(call.attribute("mcp_resume.outcome"), "task");
    sse.finish(result(5)).await;
    let [task] = collector.wait_for("task tools/call slow").await;
    assert_eq!((&task.trace, &task.parent, task.kind), (&call.trace, &call.id, SpanKind::Internal));
    assert_eq!(task.attribute("mcp_resume.outcome"), "completed");
    assert!(!tasks::id_of(&handle).is_empty());
}

#[tokio::test]
async fn a_call_that_is_not_sampled_has_no_span_and_an_unchanged_head() {
    let collector = Collector::start().await;
    let gets_spans = collector.gets_spans();
    let (mut upstream, proxy, session) = setup_with(|config| {
        gets_spans(config);
        config.otel.as_mut().unwrap().sample_percent = 0;
    })
    .await;
    for (id, header, expected) in [(1, Some("00"), Some(traceparent("00"))), (2, None, None)] {
        let mut request = session.post(call(id));
        if let Some(flags) = header {
            request = request.with("traceparent", &traceparent(flags));
        }
        let client = request.start(proxy.addr).await;
        let at_server = upstream.expect("tools/call").await;
        assert_eq!(at_server.header("traceparent"), expected.as_deref());
        at_server.json(200, result(id)).await;
        assert_eq!(client.response().await.status, 200);
    }
    // A client that samples decides for its own calls.
    let client = session.post(call_tool(3, "slow")).with("traceparent", &traceparent("01")).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(500, "{}").await;
    assert_eq!(client.response().await.status, 500);
    let [call] = collector.wait_for("tools/call slow").await;
    assert_eq!((call.attribute("error.type"), call.is_error), ("500", true));
    assert!(collector.spans().iter().all(|span| span.trace == TRACE));
}

#[tokio::test]
async fn the_last_spans_are_sent_at_the_end_with_the_configured_headers() {
    let collector = Collector::start().await;
    let gets_spans = collector.gets_spans();
    let (mut upstream, proxy, session) = setup_with(|config| {
        gets_spans(config);
        config.otel.as_mut().unwrap().headers = vec![("Authorization".to_owned(), "Basic a".to_owned())];
    })
    .await;
    let client = session.post(call_tool(1, "slow")).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
    proxy.stop().await;
    assert!(collector.spans().iter().any(|span| span.name == "tools/call slow"));
    assert!(collector.tokens().iter().all(|token| token == "Basic a") && !collector.tokens().is_empty());
}

#[tokio::test]
async fn a_proxy_whose_collector_is_not_there_serves_and_ends() {
    let (mut upstream, proxy, session) =
        setup_with(|config| config.otel = Some(Box::new(collector::otel("http://127.0.0.1:1")))).await;
    let client = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
    within("the end", async { proxy.stop().await }).await;
}
