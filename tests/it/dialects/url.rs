//! The stream URL, SEP-1335.

use mcp_resume::config::{Config, Turns};
use serde_json::json;

use crate::client_responses::{answer, question};
use crate::support::*;

/// The target of a response's link, as a client resolves it.
pub(crate) fn target(response: &Response) -> String {
    let links = response.head.all("link");
    let ours = links.iter().find_map(|link| link.strip_prefix('<')?.strip_suffix(">; rel=\"stream\""));
    let ours = ours.unwrap_or_else(|| panic!("no link to the stream: {links:?}"));
    assert!(ours.starts_with('?'), "not relative to the endpoint: {ours}");
    assert_eq!(response.header("referrer-policy"), Some("no-referrer"));
    format!("/mcp{ours}")
}

/// A turn comes soon.
fn turns(turns: Turns) -> impl FnOnce(&mut Config) {
    move |config| {
        config.dialects.stream_url_turns = turns;
        config.dialects.input_grace = SOON;
    }
}

/// A call that is being answered.
struct Scene {
    upstream: Upstream,
    proxy: Proxy,
    session: Session,
    sse: Sse,
    response: Response,
    target: String,
    place: EventId,
}

async fn scene(change: impl FnOnce(&mut Config)) -> Scene {
    let (mut upstream, proxy, session) = setup_with(change).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let target = target(&response);
    let place = EventId::of(response.prime().await.id());
    Scene { upstream, proxy, session, sse, response, target, place }
}

impl Scene {
    fn get(&self) -> Request {
        self.session.get().target(&self.target)
    }

    fn post(&self, body: impl AsRef<[u8]>) -> Request {
        self.session.post(body).target(&self.target)
    }

    /// The server asks; the client is told.
    async fn ask(&mut self, id: &str) {
        self.sse.event(question(id)).await;
        assert_eq!(self.response.event().await.bytes(), question(id).as_bytes());
    }

    /// The response ends for the client's turn.
    async fn turn(&mut self) {
        let frames = self.response.frames().await;
        assert_eq!(frames.last().expect("a farewell").retry, Some(1000), "{frames:?}");
        assert!(frames.iter().all(|frame| !frame.is_event()), "{frames:?}");
    }

    /// The client POSTs these to the stream, and the upstream takes each of `given`.
    async fn answer(&mut self, body: &str, given: &[String]) {
        let pending = self.post(body).start(self.proxy.addr).await;
        for message in given {
            let call = self.upstream.expect("response").await;
            assert_eq!((call.target.as_str(), call.body.as_slice()), ("/mcp", message.as_bytes()));
            assert_eq!(call.header("mcp-session-id"), Some("s-1"));
            call.status(202).await;
        }
        self.response = pending.response().await.sse();
        assert_eq!(target(&self.response), self.target);
        self.response.prime().await;
    }

    async fn status(&self, request: Request) -> u16 {
        request.send(self.proxy.addr).await.status
    }

    /// The server answers; the client has it, and nothing else.
    async fn finish(mut self) {
        self.sse.finish(result(7)).await;
        let (events, end) = self.response.events().await;
        let events: Vec<&[u8]> = events.iter().map(Frame::bytes).collect();
        assert_eq!((events, end), (vec![result(7).as_bytes()], End::Complete));
        assert!(self.upstream.is_quiet());
    }
}

fn array(messages: &[String]) -> String {
    format!("[{}]", messages.join(","))
}

#[tokio::test]
async fn every_response_that_can_be_resumed_names_its_url() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(7)).target("/mcp?a=1&b").start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.target, "/mcp?a=1&b");
    let theirs = "link: </next>; rel=next, </theirs>; rel=\"stream\"\r\naccess-control-allow-origin: *\r\n";
    let sse = call.sse_with(theirs).await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    let url = format!("/mcp?a=1&b&mcp-stream={}", place.handle);
    assert_eq!(target(&response), url);
    let links = response.head.all("link");
    assert_eq!(links.last(), Some(&"</next>; rel=next"));
    assert_eq!(links.len(), 2, "{links:?}");
    let exposed = response.header("access-control-expose-headers").expect("a list");
    assert!(exposed.contains("Link"), "{exposed}");
    drop(response);
    for request in [session.get().target(&url), session.resume(&place.at(0)).target("/mcp?a=1&b")] {
        let mut back = request.send(proxy.addr).await.sse();
        assert_eq!(target(&back), url);
        back.prime().await;
    }
    drop(sse);
    // The session's own stream, and one more by its URL.
    let pending = session.get().start(proxy.addr).await;
    let own = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    let url = format!("/mcp?mcp-stream={}", place.handle);
    assert_eq!(target(&response), url);
    own.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    let mut back = session.get().target(&url).send(proxy.addr).await.sse();
    assert_eq!(target(&back), url);
    assert_eq!(back.event().await.id(), place.at(1));
}

#[tokio::test]
async fn a_response_that_the_proxy_begins_names_its_url() {
    let (mut upstream, proxy, session) = setup_with(|config| config.delivery.commit_after = Some(SOON)).await;
    let pending = session.post(call(7)).start(proxy.addr).await;
    let silent = upstream.expect("tools/call").await;
    let response = pending.response().await.sse();
    let url = target(&response);
    // Cut before anything came: the URL is enough.
    response.reset();
    let mut back = session.get().target(&url).send(proxy.addr).await.sse();
    back.prime().await;
    silent.sse().await.finish(result(7)).await;
    assert_eq!(back.event().await.bytes(), result(7).as_bytes());
}

#[tokio::test]
async fn without_the_dialect_links_and_targets_pass_unchanged() {
    let (mut upstream, proxy, session) = setup_with(|config| config.dialects.stream_url = false).await;
    let pending = session.post(call(7)).target("/mcp?mcp-stream=theirs").start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.target, "/mcp?mcp-stream=theirs");
    let sse = call.sse_with("link: </theirs>; rel=stream\r\n").await;
    let response = pending.response().await.sse();
    assert_eq!(response.header("link"), Some("</theirs>; rel=stream"));
    assert_eq!(response.header("referrer-policy"), None);
    drop(sse);
}

#[tokio::test]
async fn the_parameter_goes_no_further() {
    let (mut upstream, proxy, session) = setup().await;
    let url = "/mcp?a=1&mcp-stream=x";
    let deleted = session.delete().target(url).start(proxy.addr).await;
    let call = upstream.expect("DELETE").await;
    assert_eq!(call.target, "/mcp?a=1");
    call.status(200).await;
    assert_eq!(deleted.response().await.status, 200);
    let preflight = Request::new("OPTIONS", url).start(proxy.addr).await;
    let call = upstream.expect("OPTIONS").await;
    assert_eq!(call.target, "/mcp?a=1");
    call.status(204).await;
    assert_eq!(preflight.response().await.status, 204);
}

#[tokio::test]
async fn a_get_goes_on_after_its_event_and_else_from_the_start() {
    let scene = scene(|_| ()).await;
    for n in 1..=2 {
        scene.sse.event(progress(n)).await;
    }
    let mut all = scene.get().send(scene.proxy.addr).await.sse();
    let first = EventId::of(all.prime().await.id());
    assert_eq!((first.seq.as_str(), first.attach.is_some()), ("0", true));
    for n in 1..=2 {
        let event = all.event().await;
        assert_eq!((event.id(), event.bytes()), (scene.place.at(n).as_str(), progress(n).as_bytes()));
    }
    let mut rest = scene.get().resume_from(&scene.place.at(1)).send(scene.proxy.addr).await.sse();
    rest.prime().await;
    assert_eq!(rest.event().await.id(), scene.place.at(2));
    // It took over.
    assert_eq!(all.events().await, (vec![], End::Complete));
    scene.sse.finish(result(7)).await;
    assert_eq!(rest.event().await.id(), scene.place.at(3));
    rest.ends().await;
    let end = scene.session.get().target(&scene.target).resume_from(&scene.place.at(3));
    assert_eq!(end.clone().send(scene.proxy.addr).await.status, 204);
    let posted = scene.session.post(answer("q")).target(&scene.target).resume_from(&scene.place.at(3));
    assert_eq!(posted.send(scene.proxy.addr).await.status, 204, "no response waits for it");
    let mut again = scene.session.get().target(&scene.target).send(scene.proxy.addr).await.sse();
    assert_eq!(again.events().await.0.len(), 3);
}

#[tokio::test]
async fn a_gap_before_the_first_kept_event_is_reported() {
    let scene = scene(|config| {
        config.streams.max_events = 2;
        config.admin.address = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    let mut response = scene.response;
    for n in 1..=3 {
        scene.sse.event(progress(n)).await;
        response.event().await;
    }
    let mut back = scene.session.get().target(&scene.target).send(scene.proxy.addr).await.sse();
    assert_eq!(EventId::of(back.prime().await.id()).seq, "1");
    let told = back.any_frame().await.expect("a comment");
    assert_eq!(told.comments, ["events before this were lost"]);
    assert_eq!(back.event().await.id(), scene.place.at(2));
    assert_eq!(metric(&scene.proxy, "mcp_resume_gaps_total").await, 1.0);
    let served = r#"mcp_resume_resumes_total{dialect="stream_url",outcome="served"}"#;
    assert_eq!(metric(&scene.proxy, served).await, 1.0);
}

#[tokio::test]
async fn a_url_that_leads_nowhere_gets_the_one_event_of_a_lost_stream() {
    let mut scene = scene(|_| ()).await;
    scene.ask("q").await;
    let forged = scene.target.replace(&scene.place.handle, &scene.place.forged().handle);
    let elsewhere = |session: &str, token: Option<&str>| Session::opened_elsewhere(V2025_11, session, token);
    let ours = scene.target.as_str();
    let id_in = |target: &str| format!("{}.1", target.split('=').nth(1).expect("a handle"));
    for (target, session) in [
        (forged.as_str(), scene.session.clone()),
        (ours, elsewhere("s-2", None)),
        (ours, elsewhere("s-1", Some("Bearer other"))),
    ] {
        for request in [session.get(), session.post(answer("q")), session.get().resume_from(&id_in(target))] {
            let mut lost = request.target(target).send(scene.proxy.addr).await.sse();
            assert_eq!(lost.header("link"), None);
            let (frames, end) = lost.events().await;
            let [only] = frames.as_slice() else { panic!("{frames:?}") };
            assert_fault(&only.json(), 7, GONE, "client");
            assert!(only.id().ends_with(".end"));
            assert_eq!(end, End::Complete);
        }
    }
    assert!(scene.upstream.is_quiet(), "a foreign answer goes nowhere");
    let end = format!("{}.end", scene.place.handle);
    assert_eq!(scene.status(scene.get().resume_from(&end)).await, 204);
    scene.answer(&answer("q"), &[answer("q")]).await;
    scene.finish().await;
}

#[tokio::test]
async fn requests_that_a_stream_url_does_not_serve_are_refused() {
    let mut scene = scene(|_| ()).await;
    let (_other, mut response) = begin(&scene.proxy, &mut scene.upstream, &scene.session.post(call(8))).await;
    let other = response.prime().await.id().to_owned();
    let note = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    let without_id = r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"},"id":null}"#;
    for (request, status) in [
        (scene.get().resume_from(&other), 400),
        (scene.get().resume_from("x"), 400),
        (scene.get().target("/mcp?mcp-stream=x"), 400),
        (scene.get().target(&format!("{}&mcp-stream=x", scene.target)), 400),
        (scene.get().with("Accept", "application/json"), 406),
        (scene.post("[]"), 400),
        (scene.post("nonsense"), 400),
        (scene.post(call(9)), 400),
        (scene.post(note), 400),
        (scene.post(without_id), 400),
        (scene.post(array(&[answer("q"), call(9)])), 400),
        (scene.post(answer("q")).resume_from(&other), 400),
        (scene.post(answer("q")).with("Content-Type", "text/plain"), 400),
    ] {
        assert_eq!(scene.status(request.clone()).await, status, "{request:?}");
    }
    scene.finish().await;
}

/// As the proposal has it: the connection ends, a GET says that nothing more comes, a POST brings
/// the answers and goes on.
async fn exchange(mut scene: Scene) {
    scene.ask("q1").await;
    scene.ask("q2").await;
    scene.turn().await;
    let after = scene.place.at(2);
    assert_eq!(scene.status(scene.get().resume_from(&after)).await, 204);
    assert_eq!(scene.status(scene.get()).await, 204, "after such an end it has everything");
    // One of two: the other opens a further turn, and is not asked again.
    let first = array(&[answer("q1")]);
    scene.answer(&first, &[answer("q1")]).await;
    scene.turn().await;
    assert_eq!(scene.status(scene.get()).await, 204);
    // The same again gets a stream again, and the upstream nothing.
    scene.answer(&first, &[]).await;
    scene.turn().await;
    scene.sse.event(progress(1)).await;
    settle(&scene.proxy, &mut scene.upstream).await;
    scene.response = scene.get().resume_from(&after).send(scene.proxy.addr).await.sse();
    assert_eq!(scene.response.event().await.id(), scene.place.at(3), "what came in between");
    scene.turn().await;
    let both = array(&[answer("q1"), answer("q2")]);
    scene.answer(&both, &[answer("q2")]).await;
    scene.answer(&both, &[]).await;
    scene.sse.event(progress(2)).await;
    assert_eq!(scene.response.event().await.bytes(), progress(2).as_bytes());
    scene.finish().await;
}

#[tokio::test]
async fn a_multi_turn_exchange_with_any_client() {
    exchange(scene(turns(Turns::All)).await).await;
}

#[tokio::test]
async fn a_multi_turn_exchange_with_a_client_that_has_used_a_stream_url() {
    let mut scene = scene(turns(Turns::Seen)).await;
    scene.response = scene.get().send(scene.proxy.addr).await.sse();
    // The next call of the session begins with turns.
    let (sse, mut response) = begin(&scene.proxy, &mut scene.upstream, &scene.session.post(call(8))).await;
    sse.event(question("other")).await;
    response.event().await;
    assert_eq!(response.frames().await.len(), 1, "a farewell");
    exchange(scene).await;
}

#[tokio::test]
async fn without_turns_a_stream_url_keeps_its_connection() {
    let mut scene = scene(turns(Turns::Off)).await;
    scene.ask("q").await;
    pass(LATER).await;
    scene.response = scene.get().resume_from(&scene.place.at(1)).send(scene.proxy.addr).await.sse();
    pass(LATER).await;
    scene.sse.event(progress(1)).await;
    assert_eq!(scene.response.event().await.bytes(), progress(1).as_bytes());
    scene.answer(&answer("q"), &[answer("q")]).await;
    assert_eq!(scene.response.event().await.bytes(), progress(1).as_bytes(), "there was no turn to go on after");
    scene.finish().await;
}

#[tokio::test]
async fn a_client_of_the_endpoint_loses_nothing() {
    for mode in [Turns::Seen, Turns::All, Turns::Off] {
        let mut scene = scene(turns(mode)).await;
        scene.ask("q").await;
        if mode == Turns::All {
            scene.turn().await;
            scene.response = scene.session.resume(&scene.place.at(1)).send(scene.proxy.addr).await.sse();
        }
        pass(LATER).await;
        // On the endpoint it is held, and answered.
        let pending = scene.session.post(answer("q")).start(scene.proxy.addr).await;
        scene.upstream.expect("response").await.status(202).await;
        assert_eq!(pending.response().await.status, 202);
        scene.sse.event(progress(1)).await;
        assert_eq!(scene.response.event().await.id(), scene.place.at(2), "{mode:?}");
        scene.finish().await;
    }
}

#[tokio::test]
async fn the_upstreams_word_on_an_answer_counts_where_the_client_can_act_on_it() {
    let mut scene = scene(turns(Turns::All)).await;
    scene.ask("q1").await;
    scene.ask("q2").await;
    scene.turn().await;
    let both = array(&[answer("q1"), answer("q2")]);
    for status in [401, 403, 404] {
        let pending = scene.post(&both).start(scene.proxy.addr).await;
        let call = scene.upstream.expect("response").await;
        assert_eq!(call.body, answer("q1").into_bytes());
        call.status_with(status, "www-authenticate: Bearer\r\n").await;
        let refused = pending.response().await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (status, Some("Bearer")));
    }
    // Nothing of it was given; the same again gives all of it. Another status is the server's own
    // affair.
    let pending = scene.post(&both).start(scene.proxy.addr).await;
    scene.upstream.expect("response").await.status(500).await;
    scene.upstream.expect("response").await.status(202).await;
    scene.response = pending.response().await.sse();
    pass(LATER).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_client_response_waits_while_the_upstream_refuses() {
    let mut scene = scene(turns(Turns::All)).await;
    scene.ask("q").await;
    scene.turn().await;
    scene.upstream.refuse().await;
    scene.response = scene.post(answer("q")).send(scene.proxy.addr).await.sse();
    scene.upstream.listen_again().await;
    scene.upstream.expect("response").await.status(202).await;
    scene.finish().await;
}

#[tokio::test]
async fn an_answer_is_that_of_its_stream_without_a_session_too() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, turns(Turns::All)).await;
    // Two calls at once, and a server that calls every first question by one name.
    let mut asked = Vec::new();
    for id in [1, 2] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &Request::post(call(id))).await;
        sse.event(question("0")).await;
        response.event().await;
        let url = target(&response);
        assert_eq!(response.frames().await.len(), 1, "a farewell");
        asked.push((sse, url, id));
    }
    for (sse, url, id) in asked.into_iter().rev() {
        let post = Request::post(json!([{ "jsonrpc": "2.0", "id": "0", "result": { "of": id } }]).to_string());
        let pending = post.target(&url).start(proxy.addr).await;
        let given = upstream.expect("response").await;
        assert_eq!((given.target.as_str(), &given.json_body()["result"]["of"]), ("/mcp", &json!(id)));
        given.status(202).await;
        let mut response = pending.response().await.sse();
        sse.finish(result(id)).await;
        assert_eq!(response.event().await.bytes(), result(id).as_bytes());
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn an_answer_to_something_else_is_the_upstreams_to_judge() {
    let mut scene = scene(turns(Turns::All)).await;
    scene.answer(&answer("unknown"), &[answer("unknown")]).await;
    scene.finish().await;
}
