//! A token that was refreshed in mid-call: the caller is the same if the server says so.

use crate::support::*;
use serde_json::json;

const OLD: u32 = 1;
const NEW: u32 = 2;

fn cancelled() -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}).to_string()
}

fn question() -> String {
    json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {"messages": []}}).to_string()
}

fn answer() -> String {
    json!({"jsonrpc": "2.0", "id": "q", "result": {"role": "assistant"}}).to_string()
}

/// A session of `u` with its first token, and the same with another one.
struct Refreshed {
    upstream: Upstream,
    proxy: Proxy,
    old: Session,
    new: Session,
    token: String,
}

impl Refreshed {
    async fn start() -> Refreshed {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
        let (first, token) = (bearer("u", OLD), bearer("u", NEW));
        let old = Session::open_as(&proxy, &mut upstream, V2025_11, "s-1", Some(&first)).await;
        let new = Session::opened_elsewhere(V2025_11, "s-1", Some(&token));
        Refreshed { upstream, proxy, old, new, token }
    }

    /// A call with the old token whose client read one event and left.
    async fn left(&mut self) -> (Sse, EventId) {
        let request = self.old.post(call(1));
        let (sse, mut response) = begin(&self.proxy, &mut self.upstream, &request).await;
        sse.event(progress(1)).await;
        let place = EventId::of(response.event().await.id());
        response.reset();
        settle(&self.proxy, &mut self.upstream).await;
        (sse, place)
    }

    /// Sends `request`; the upstream is asked about the new token, as far as it goes.
    async fn judged(&mut self, request: Request, judge: Judge) -> Client {
        let pending = request.start(self.proxy.addr).await;
        self.upstream.judge(&self.token, judge).await;
        pending
    }

    fn with_token(&self, sub: &str, session: &str) -> Session {
        Session::opened_elsewhere(V2025_11, session, Some(&bearer(sub, NEW)))
    }
}

/// Asserts that a resume is told that nothing is there, and that the upstream is asked nothing.
async fn lost(proxy: &Proxy, upstream: &mut Upstream, request: &Request) {
    let mut response = request.send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    assert_eq!(events[0].json()["error"]["code"], GONE);
    settle(proxy, upstream).await;
}

#[tokio::test]
async fn a_refreshed_token_resumes_a_stream_of_the_previous_one() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    let pending = on.judged(on.new.resume(&place.at(1)), Judge::Verifies).await;
    let mut response = pending.response().await.sse();
    sse.event(progress(2)).await;
    assert_eq!(response.event().await.id(), place.at(2));
    response.reset();
    // A moment later it is still known; nothing is asked.
    let mut again = on.new.resume(&place.at(1)).send(on.proxy.addr).await.sse();
    sse.finish(result(1)).await;
    let (events, end) = again.events().await;
    assert_eq!((events.len(), end), (2, End::Complete));
    assert!(on.upstream.is_quiet());
}

#[tokio::test]
async fn a_modern_call_is_asked_about_in_modern_words() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (first, token) = (bearer("u", OLD), bearer("u", NEW));
    let request = modern(1).with("Authorization", &first).with("X-Tenant", "t");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    let back = modern_resume(&place.at(0)).with("Authorization", &token).with("X-Tenant", "t");
    let pending = back.start(proxy.addr).await;
    for status in [200, 403, 200] {
        let asked = upstream.expect("server/discover").await;
        assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/mcp"));
        for (name, value) in [
            ("mcp-method", "server/discover"),
            ("mcp-protocol-version", V2026),
            ("x-tenant", "t"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ] {
            assert_eq!(asked.header(name), Some(value));
        }
        for name in ["last-event-id", "mcp-name", "mcp-session-id"] {
            assert_eq!(asked.header(name), None, "{name}");
        }
        let meta = &asked.json_body()["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], V2026);
        asked.json(status, "{}").await;
    }
    let mut response = pending.response().await.sse();
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_ping_is_asked_in_the_session_under_an_id_no_client_uses() {
    let mut on = Refreshed::start().await;
    let (_sse, place) = on.left().await;
    let _pending = on.new.resume(&place.at(1)).start(on.proxy.addr).await;
    let asked = on.upstream.expect("ping").await;
    assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
    assert!(asked.json_body()["id"].as_str().unwrap().starts_with("mcp-resume-"));
    assert_eq!(asked.header("last-event-id"), None);
}

/// A server may take a token in one session and not in another.
#[tokio::test]
async fn a_proof_in_one_session_opens_no_other() {
    let mut on = Refreshed::start().await;
    let (_sse, place) = on.left().await;
    let (first, token) = (bearer("u", OLD), on.token.clone());
    // In a session of the thief's own the token is as good as it says.
    let own = Session::open_as(&on.proxy, &mut on.upstream, V2025_11, "s-2", Some(&first)).await;
    let (sse, mut response) = begin(&on.proxy, &mut on.upstream, &own.post(call(2))).await;
    let own_place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    let own = Session::opened_elsewhere(V2025_11, "s-2", Some(&token));
    let pending = on.judged(own.resume(&own_place.at(0)), Judge::Verifies).await;
    pending.response().await.sse().prime().await;
    // In the other one the server is asked again.
    let pending = on.new.resume(&place.at(1)).start(on.proxy.addr).await;
    let asked = on.upstream.question().await;
    assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
    asked.status(403).await;
    assert_eq!(pending.response().await.status, 403);
}

#[tokio::test]
async fn the_token_is_judged_without_other_credentials_which_must_be_the_same() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (first, token) = (bearer("u", OLD), bearer("u", NEW));
    let with = |request: Request, token: &str, key: &str| {
        request.target("/mcp?tenant=t").with("Authorization", token).with("X-API-Key", key).with("Cookie", "sid=1")
    };
    let (sse, mut response) = begin(&proxy, &mut upstream, &with(modern(1), &first, "k")).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    let resume = modern_resume(&place.at(0));
    // With another key it is another caller, and nothing is asked.
    lost(&proxy, &mut upstream, &with(resume.clone(), &token, "other")).await;
    lost(&proxy, &mut upstream, &resume.clone().with("Authorization", &token)).await;
    // Refused without the others it is foreign: they may be what the refusal is for.
    let pending = with(resume.clone(), &token, "k").start(proxy.addr).await;
    upstream.question().await.status(401).await;
    assert_eq!(pending.response().await.sse().event().await.json()["error"]["code"], GONE);
    let pending = with(resume, &token, "k").start(proxy.addr).await;
    for status in [200, 401, 200] {
        let asked = upstream.question().await;
        assert_eq!((asked.target.as_str(), asked.header("x-api-key"), asked.header("cookie")), ("/mcp", None, None));
        asked.status(status).await;
    }
    assert_eq!(pending.response().await.sse().event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_server_that_accepts_any_token_proves_nothing() {
    let mut on = Refreshed::start().await;
    let (_sse, place) = on.left().await;
    let stranger = on.with_token("v", "s-1").resume(&place.at(1)).send(on.proxy.addr).await;
    let stranger = (stranger.status, stranger.sse().body().await);
    let pending = on.judged(on.new.resume(&place.at(1)), Judge::Accepts).await;
    let answer = pending.response().await;
    assert_eq!((answer.status, answer.sse().body().await), stranger);
    lost(&on.proxy, &mut on.upstream, &on.new.resume(&place.at(1))).await;
}

#[tokio::test]
async fn a_token_that_is_refused_halfway_is_not_good() {
    for statuses in [[200, 404, 0], [200, 401, 404], [400, 0, 0], [200, 302, 0]] {
        let mut on = Refreshed::start().await;
        let (_sse, place) = on.left().await;
        let pending = on.new.resume(&place.at(1)).start(on.proxy.addr).await;
        for status in statuses.into_iter().filter(|status| *status != 0) {
            on.upstream.question().await.json(status, "{}").await;
        }
        let (events, _) = pending.response().await.sse().events().await;
        assert_eq!(events[0].json()["error"]["code"], GONE, "{statuses:?}");
    }
}

#[tokio::test]
async fn the_servers_refusal_reaches_the_client_in_its_own_words() {
    for status in [401, 403] {
        let mut on = Refreshed::start().await;
        let (_sse, place) = on.left().await;
        for request in [on.new.resume(&place.at(1)), on.new.post(call(1)), on.new.delete(), on.new.post(cancelled())] {
            let pending = request.start(on.proxy.addr).await;
            on.upstream
                .question()
                .await
                .json_with(status, "www-authenticate: Bearer error=\"x\"\r\n", "{\"no\":1}")
                .await;
            let mut response = pending.response().await;
            assert_eq!(response.status, status);
            assert_eq!(response.header("www-authenticate"), Some("Bearer error=\"x\""));
            assert_eq!(response.body().await, b"{\"no\":1}");
        }
        settle(&on.proxy, &mut on.upstream).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_is_asked_again_later() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    for status in [429, 500, 503] {
        let pending = on.new.resume(&place.at(1)).start(on.proxy.addr).await;
        on.upstream.question().await.json(status, "{}").await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
        assert_fault(&response.json().await, serde_json::Value::Null, UPSTREAM_FAILED, "upstream");
    }
    on.upstream.refuse().await;
    assert_eq!(on.new.resume(&place.at(1)).send(on.proxy.addr).await.status, 503);
    let mut retried = on.new.post(call(1)).send(on.proxy.addr).await;
    assert_eq!(retried.status, 503);
    assert_fault(&retried.json().await, 1, UPSTREAM_FAILED, "upstream");
    on.upstream.listen_again().await;
    let pending = on.judged(on.new.resume(&place.at(1)), Judge::Verifies).await;
    let mut response = pending.response().await.sse();
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}

/// Two of its requests at once, of which the first is asking about it; the calls they come back to.
async fn two_at_once(on: &mut Refreshed) -> ([(Sse, EventId); 2], [Client; 2], Call) {
    let first = on.left().await;
    let (sse, mut response) = begin(&on.proxy, &mut on.upstream, &on.old.post(call(2))).await;
    let second = (sse, EventId::of(response.prime().await.id()));
    response.reset();
    settle(&on.proxy, &mut on.upstream).await;
    let one = on.new.resume(&first.1.at(0)).start(on.proxy.addr).await;
    let question = on.upstream.question().await;
    let other = on.new.resume(&second.1.at(0)).start(on.proxy.addr).await;
    // It has come, and asks nothing.
    settle(&on.proxy, &mut on.upstream).await;
    ([first, second], [one, other], question)
}

#[tokio::test]
async fn of_two_requests_at_once_one_asks_and_both_know() {
    for judge in [Judge::Verifies, Judge::Accepts] {
        let mut on = Refreshed::start().await;
        let (_calls, clients, question) = two_at_once(&mut on).await;
        question.json(200, "{}").await;
        match judge {
            Judge::Verifies => {
                on.upstream.question().await.status(401).await;
                on.upstream.question().await.json(200, "{}").await;
            }
            Judge::Accepts => on.upstream.question().await.json(200, "{}").await,
        }
        for client in clients {
            let mut response = client.response().await.sse();
            match judge {
                Judge::Verifies => assert_eq!(EventId::of(response.prime().await.id()).seq, "0"),
                Judge::Accepts => assert_eq!(response.event().await.json()["error"]["code"], GONE),
            }
        }
        settle(&on.proxy, &mut on.upstream).await;
    }
}

#[tokio::test]
async fn of_two_requests_at_once_both_know_that_there_is_no_answer() {
    let mut on = Refreshed::start().await;
    let (_calls, clients, question) = two_at_once(&mut on).await;
    question.status(500).await;
    for client in clients {
        assert_eq!(client.response().await.status, 503);
    }
    settle(&on.proxy, &mut on.upstream).await;
}

#[tokio::test]
async fn a_request_that_waited_for_a_client_that_left_asks_the_server_itself() {
    let mut on = Refreshed::start().await;
    let (calls, [one, other], question) = two_at_once(&mut on).await;
    one.reset();
    question.closed().await;
    on.upstream.judge(&on.token, Judge::Verifies).await;
    let mut response = other.response().await.sse();
    let [_, (sse, place)] = calls;
    sse.finish(result(2)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    response.ends().await;
}

#[tokio::test]
async fn the_server_is_not_asked_about_another_claim_another_session_or_no_claim() {
    let mut on = Refreshed::start().await;
    let (_sse, place) = on.left().await;
    let opaque = Session::opened_elsewhere(V2025_11, "s-1", Some("Bearer opaque"));
    let elsewhere = on.with_token("u", "s-2");
    for caller in [on.with_token("v", "s-1"), elsewhere, opaque] {
        lost(&on.proxy, &mut on.upstream, &caller.resume(&place.at(1))).await;
        let forged = place.forged();
        lost(&on.proxy, &mut on.upstream, &caller.resume(&forged.at(1))).await;
    }
    lost(&on.proxy, &mut on.upstream, &on.new.resume(&place.forged().at(1))).await;
}

#[tokio::test]
async fn a_retry_with_it_finds_the_call() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    let pending = on.judged(on.new.post(call(1)).resume_from(&place.at(1)), Judge::Verifies).await;
    let mut response = pending.response().await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).handle, place.handle);
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.id(), place.at(2));
    response.ends().await;
    assert!(on.upstream.is_quiet());
}

#[tokio::test]
async fn a_request_counts_as_its_callers_while_the_server_is_asked_about_its_token() {
    const BODY: usize = 200_000;
    let mut on = Refreshed::start().await;
    let heavy = format!("{}{}", call(1), " ".repeat(BODY));
    let (_sse, mut response) = begin(&on.proxy, &mut on.upstream, &on.old.post(heavy.clone())).await;
    response.prime().await;
    response.reset();
    settle(&on.proxy, &mut on.upstream).await;
    let held = async |proxy: &Proxy| metric(proxy, "mcp_resume_held_bytes").await as usize;
    let before = held(&on.proxy).await;
    let _retry = on.new.post(heavy).start(on.proxy.addr).await;
    let _question = on.upstream.question().await;
    let during = held(&on.proxy).await;
    assert!((BODY..BODY + 10_000).contains(&(during - before)), "{during} bytes after {before}");
}

#[tokio::test]
async fn a_retry_of_nothing_is_a_call_of_its_own_without_a_question() {
    let mut on = Refreshed::start().await;
    let (_sse, _) = on.left().await;
    let pending = on.new.post(call(2)).start(on.proxy.addr).await;
    on.upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(pending.response().await.status, 200);
    // And so is one that is no retry, because the token proves nothing.
    let pending = on.judged(on.new.post(call(1)), Judge::Accepts).await;
    on.upstream.expect("tools/call").await.json(200, "{\"new\":1}").await;
    assert_eq!(pending.response().await.body().await, b"{\"new\":1}");
}

#[tokio::test]
async fn an_idempotency_key_counts_for_it() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (first, token) = (bearer("u", OLD), bearer("u", NEW));
    let request = modern(1).with("Idempotency-Key", "k");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request.clone().with("Authorization", &first)).await;
    let place = EventId::of(response.prime().await.id());
    let pending = request.clone().with("Authorization", &token).start(proxy.addr).await;
    upstream.judge(&token, Judge::Verifies).await;
    let mut taken = pending.response().await.sse();
    assert_eq!(EventId::of(taken.prime().await.id()).handle, place.handle);
    sse.finish(result(1)).await;
    assert_eq!(taken.event().await.bytes(), result(1).as_bytes());
    let other = modern(2).with("Idempotency-Key", "k").with("Authorization", &token).send(proxy.addr).await;
    assert_eq!(other.status, 422);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_cancel_with_it_ends_the_call() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    let pending = on.judged(on.new.post(cancelled()), Judge::Verifies).await;
    on.upstream.expect("notifications/cancelled").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.end().await;
    settle(&on.proxy, &mut on.upstream).await;
    assert_eq!(on.new.resume(&place.at(1)).send(on.proxy.addr).await.status, 204);
}

#[tokio::test]
async fn an_answer_with_it_answers_the_question() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    sse.event(question()).await;
    let pending = on.judged(on.new.resume(&place.at(1)), Judge::Verifies).await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.event().await.bytes(), question().as_bytes());
    let pending = on.new.post(answer()).start(on.proxy.addr).await;
    on.upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    // Answered once, it is neither passed on nor asked again.
    assert_eq!(on.new.post(answer()).send(on.proxy.addr).await.status, 202);
    response.reset();
    let mut again = on.new.resume(&place.at(1)).send(on.proxy.addr).await.sse();
    sse.finish(result(1)).await;
    assert_eq!(again.event().await.bytes(), result(1).as_bytes());
    assert!(on.upstream.is_quiet());
}

#[tokio::test]
async fn a_delete_with_it_ends_the_sessions_streams() {
    let mut on = Refreshed::start().await;
    let (sse, place) = on.left().await;
    let pending = on.judged(on.new.delete(), Judge::Verifies).await;
    on.upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    sse.closed().await;
    let mut late = on.old.resume(&place.at(1)).send(on.proxy.addr).await.sse();
    assert_eq!(late.event().await.json()["error"]["code"], ABANDONED);
}

#[tokio::test]
async fn the_standalone_stream_goes_on_with_it() {
    let mut on = Refreshed::start().await;
    let pending = on.old.get().start(on.proxy.addr).await;
    let sse = on.upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    let pending = on.judged(on.new.get(), Judge::Verifies).await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    let mut again = on.new.resume(&place.at(0)).send(on.proxy.addr).await.sse();
    assert_eq!(again.event().await.id(), place.at(1));
    assert!(on.upstream.is_quiet());
}

/// A caller that opened something under a claim may have made the claim up.
#[tokio::test]
async fn a_stream_of_the_new_token_is_not_the_old_ones() {
    let mut on = Refreshed::start().await;
    let (_sse, place) = on.left().await;
    let pending = on.judged(on.new.resume(&place.at(1)), Judge::Verifies).await;
    pending.response().await.sse().prime().await;
    // The old token was forged, and the server took it for `initialize`. Now it looks at tokens.
    let (_sse, mut response) = begin(&on.proxy, &mut on.upstream, &on.new.post(call(2))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&on.proxy, &mut on.upstream).await;
    for request in [on.old.resume(&place.at(0)), on.old.post(call(2)), on.old.delete()] {
        let pending = request.start(on.proxy.addr).await;
        on.upstream.question().await.status(401).await;
        assert_eq!(pending.response().await.status, 401);
    }
    // Its own it finds without a question.
    on.new.resume(&place.at(0)).send(on.proxy.addr).await.sse().prime().await;
    assert!(on.upstream.is_quiet());
}

#[tokio::test]
async fn a_token_resumes_its_own_stream_without_a_probe() {
    let mut on = Refreshed::start().await;
    let (_sse, mut response) = begin(&on.proxy, &mut on.upstream, &on.new.post(call(2))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    on.upstream.refuse().await;
    on.new.resume(&place.at(0)).send(on.proxy.addr).await.sse().prime().await;
}

#[tokio::test]
async fn a_principal_that_is_a_header_needs_no_claim() {
    use mcp_resume::config::PrincipalSource;
    let mut upstream = Upstream::start().await;
    let user = http::HeaderName::from_static("x-user");
    let proxy = Proxy::start(&upstream, |c| c.auth.principal = PrincipalSource::Header(user)).await;
    let of = |user: &str, serial| modern(1).with("X-User", user).with("Authorization", &bearer("u", serial));
    let (_sse, mut response) = begin(&proxy, &mut upstream, &of("a", OLD)).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let resume = |user: &str| modern_resume(&place.at(0)).with("X-User", user).with("Authorization", &bearer("u", NEW));
    resume("a").send(proxy.addr).await.sse().prime().await;
    lost(&proxy, &mut upstream, &resume("b")).await;
}
