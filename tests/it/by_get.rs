//! Responses for clients that do not resume a POST: they go by the GET stream of the session.

use std::time::Duration;

use mcp_resume::config::Config;
use mcp_resume::protocol::client_names::ClientNames;
use serde_json::{Value, json};

use crate::support::stdio::StdioServers;
use crate::support::*;

/// Time in which a client may resume: twice its `retry`, and a second.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time after which a response on an open connection of the GET stream counts as delivered.
const SETTLED: Duration = Duration::from_secs(2);
/// Time after which a response on an open connection of its call counts as delivered.
const POST_SETTLED: Duration = Duration::from_secs(50);
const MINUTE: Duration = Duration::from_secs(60);

fn named(config: &mut Config) {
    config.delivery.by_get = ClientNames::of(&["raw"]);
}

fn notice(n: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{n}}}}}"#)
}

/// The session's GET stream, at both ends.
struct Get {
    server: Sse,
    client: Response,
    place: EventId,
}

impl Get {
    async fn open(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> Self {
        let pending = session.get().start(proxy.addr).await;
        let server = upstream.expect("GET").await.sse().await;
        let mut client = pending.response().await.sse();
        let place = EventId::of(client.prime().await.id());
        Self { server, client, place }
    }

    /// Asserts that the next event is this message, under an ID of the GET stream.
    async fn brings(&mut self, message: &str, seq: u64) {
        let event = self.client.event().await;
        assert_eq!((event.json(), event.id()), (json_of(message), &*self.place.at(seq)));
    }

    /// Asserts that nothing of the proxy's comes before the server's next message.
    async fn brings_nothing(&mut self, seq: u64) {
        self.server.event(notice(seq)).await;
        self.brings(&notice(seq), seq).await;
    }

    /// Cuts the connection of the client.
    async fn cut(self, proxy: &Proxy, upstream: &mut Upstream) -> CutGet {
        let Self { server, client, place } = self;
        client.reset();
        settle(proxy, upstream).await;
        CutGet { server, place }
    }
}

/// A GET stream without a client.
struct CutGet {
    server: Sse,
    place: EventId,
}

impl CutGet {
    /// Connects the client again, as one that has the event `seq`.
    async fn resume(self, proxy: &Proxy, session: &Session, seq: u64) -> Get {
        let mut client = session.resume(&self.place.at(seq)).send(proxy.addr).await.sse();
        client.prime().await;
        Get { server: self.server, client, place: self.place }
    }
}

fn json_of(message: &str) -> Value {
    serde_json::from_str(message).unwrap()
}

/// A call whose client is gone before the head. Returns it at the server.
async fn lost_call(proxy: &Proxy, upstream: &mut Upstream, post: &Request) -> Call {
    let client = post.start(proxy.addr).await;
    let call = upstream.next().await;
    client.reset();
    settle(proxy, upstream).await;
    call
}

#[tokio::test]
async fn a_response_before_whose_head_the_connection_broke_goes_by_get() {
    for form in FORMS {
        for id in [json!(7), json!("seven"), json!(7.5)] {
            let (mut upstream, proxy, session) = setup_with(named).await;
            let mut get = Get::open(&proxy, &mut upstream, &session).await;
            let call = lost_call(&proxy, &mut upstream, &session.post(call(id.clone()))).await;
            form.answer(call, result(id.clone())).await;
            settle(&proxy, &mut upstream).await;
            pass(PATIENCE - Duration::from_millis(100)).await;
            get.brings_nothing(1).await;
            pass(Duration::from_millis(100)).await;
            get.brings(&result(id.clone()), 2).await;
        }
    }
}

#[tokio::test]
async fn a_response_that_was_cut_goes_by_get() {
    for version in [V2025_03, V2025_06, V2025_11] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, named).await;
        let session = Session::open(&proxy, &mut upstream, version).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
        let place = EventId::of(response.any_frame().await.unwrap().id());
        sse.event(progress(1)).await;
        response.event().await;
        response.reset();
        settle(&proxy, &mut upstream).await;
        // Progress stays away.
        sse.event(progress(2)).await;
        pass(PATIENCE).await;
        get.brings_nothing(1).await;
        sse.finish(result(7)).await;
        get.brings(&result(7), 2).await;
        // A client that resumes the POST after all has the response.
        let late = session.resume(&place.at(1)).send(proxy.addr).await;
        assert_eq!(late.status, 204, "{version}");
        pass(SETTLED).await;
        settle(&proxy, &mut upstream).await;
        let late = session.resume(&place.at(1)).send(proxy.addr).await;
        assert_eq!(late.status, 204, "{version}, delivered");
        get.brings_nothing(3).await;
    }
}

#[tokio::test]
async fn a_response_at_whose_end_the_connection_broke_goes_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    response.prime().await;
    sse.finish(result(7)).await;
    settle(&proxy, &mut upstream).await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), 1).await;
    get.brings_nothing(2).await;
}

#[tokio::test]
async fn a_response_that_arrived_does_not_go_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    response.prime().await;
    sse.finish(result(7)).await;
    assert_eq!(response.event().await.json(), json_of(&result(7)));
    response.ends().await;
    response.fin();
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings_nothing(1).await;
}

/// A call whose response was written whole. Returns its connection.
async fn answered_call(proxy: &Proxy, upstream: &mut Upstream, session: &Session, form: Form) -> Response {
    let client = session.post(call(7)).start(proxy.addr).await;
    form.answer(upstream.next().await, result(7)).await;
    let mut response = client.response().await;
    response.body().await;
    settle(proxy, upstream).await;
    response
}

#[tokio::test]
async fn a_response_goes_by_get_if_its_connection_breaks_long_after_the_end() {
    for form in FORMS {
        for after in [SETTLED * 2, POST_SETTLED - Duration::from_secs(5)] {
            let (mut upstream, proxy, session) = setup_with(named).await;
            let mut get = Get::open(&proxy, &mut upstream, &session).await;
            let response = answered_call(&proxy, &mut upstream, &session, form).await;
            pass(after).await;
            settle(&proxy, &mut upstream).await;
            response.reset();
            settle(&proxy, &mut upstream).await;
            pass(PATIENCE - Duration::from_millis(100)).await;
            get.brings_nothing(1).await;
            pass(Duration::from_millis(100)).await;
            get.brings(&result(7), 2).await;
            get.brings_nothing(3).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_began_outside_the_session_is_the_clients_as_well() {
    for form in FORMS {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let pending = Request::post(call_tool(6, "probe")).start(proxy.addr).await;
        upstream.next().await.json(200, result(6)).await;
        let mut probed = pending.response().await;
        probed.body().await;
        let mut client = probed.into_client();
        client.send(&session.post(call(7)).bytes(proxy.addr)).await;
        form.answer(upstream.next().await, result(7)).await;
        let mut response = client.response().await;
        response.body().await;
        settle(&proxy, &mut upstream).await;
        pass(SETTLED * 2).await;
        settle(&proxy, &mut upstream).await;
        response.reset();
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings(&result(7), 1).await;
        get.brings_nothing(2).await;
    }
}

#[tokio::test]
async fn a_break_after_the_time_limit_brings_nothing() {
    for form in FORMS {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let response = answered_call(&proxy, &mut upstream, &session, form).await;
        pass(POST_SETTLED + Duration::from_secs(1)).await;
        settle(&proxy, &mut upstream).await;
        response.reset();
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(1).await;
    }
}

#[tokio::test]
async fn a_break_after_another_request_or_an_orderly_end_brings_nothing() {
    for form in FORMS {
        for has_request in [true, false] {
            let (mut upstream, proxy, session) = setup_with(named).await;
            let mut get = Get::open(&proxy, &mut upstream, &session).await;
            let response = answered_call(&proxy, &mut upstream, &session, form).await;
            pass(SETTLED * 2).await;
            if has_request {
                let mut client = response.into_client();
                client.send(&session.post(notice(9)).bytes(proxy.addr)).await;
                upstream.expect("notifications/message").await.status(202).await;
                let accepted = client.response().await;
                assert_eq!(accepted.status, 202);
                accepted.reset();
            } else {
                response.fin();
            }
            settle(&proxy, &mut upstream).await;
            pass(PATIENCE).await;
            get.brings_nothing(1).await;
        }
    }
}

#[tokio::test]
async fn a_call_is_not_given_up_while_its_client_reads_the_get_stream() {
    let with_wait = |config: &mut Config| {
        named(config);
        config.streams.max_wait = Some(Duration::from_secs(60));
    };
    let (mut upstream, proxy, session) = setup_with(with_wait).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    for seq in 1..=8 {
        pass(Duration::from_secs(20)).await;
        get.brings_nothing(seq).await;
    }
    Form::Events.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), 9).await;
}

#[tokio::test]
async fn a_client_in_the_dark_gets_it_when_its_get_stream_is_back() {
    for form in FORMS {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        get.brings_nothing(1).await;
        let post = session.post(call(7));
        let client = post.start(proxy.addr).await;
        let call = upstream.next().await;
        client.reset();
        let get = get.cut(&proxy, &mut upstream).await;
        form.answer(call, result(7)).await;
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        let mut get = get.resume(&proxy, &session, 1).await;
        get.brings(&result(7), 2).await;
        get.brings_nothing(3).await;
    }
}

#[tokio::test]
async fn each_cut_of_the_get_stream_is_resumed() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    let mut seq = 0;
    for _ in 0..3 {
        seq += 1;
        get.brings_nothing(seq).await;
        get = get.cut(&proxy, &mut upstream).await.resume(&proxy, &session, seq).await;
    }
    Form::Events.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), seq + 1).await;
    // A client that lacks it gets it again, and one that has it does not.
    let mut get = get.cut(&proxy, &mut upstream).await.resume(&proxy, &session, seq).await;
    get.brings(&result(7), seq + 1).await;
    let mut get = get.cut(&proxy, &mut upstream).await.resume(&proxy, &session, seq + 1).await;
    get.brings_nothing(seq + 2).await;
}

#[tokio::test]
async fn a_response_that_no_connection_of_the_get_stream_kept_is_read_again() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.finish(result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), 1).await;
    drop(get.cut(&proxy, &mut upstream).await);
    // The GET stream does not come back: the client may still resume the POST.
    pass(PATIENCE).await;
    let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(resumed.event().await.json(), json_of(&result(7)));
}

#[tokio::test]
async fn a_resume_that_comes_first_takes_the_response() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    resumed.prime().await;
    sse.finish(result(7)).await;
    assert_eq!(resumed.event().await.json(), json_of(&result(7)));
    resumed.ends().await;
    resumed.fin();
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings_nothing(1).await;
}

#[tokio::test]
async fn a_retry_that_comes_first_takes_the_response() {
    for form in FORMS {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let post = session.post(call(7));
        let call = lost_call(&proxy, &mut upstream, &post).await;
        pass(PATIENCE).await;
        let pending = post.start(proxy.addr).await;
        settle(&proxy, &mut upstream).await;
        form.answer(call, result(7)).await;
        let mut response = pending.response().await;
        let message = if response.is_sse() { response.event().await.json() } else { response.json().await };
        assert_eq!(message, json_of(&result(7)), "{form:?}");
        response.fin();
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(1).await;
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn of_two_get_streams_the_one_opened_last_brings_it() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let newer = session.get().send(proxy.addr).await.sse();
    let mut older = std::mem::replace(&mut get.client, newer);
    get.client.prime().await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    Form::Events.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), 1).await;
    older.ends().await;
}

#[tokio::test]
async fn no_other_session_and_no_other_caller_gets_it() {
    for is_other_session in [true, false] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, named).await;
        let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-1", Some("Bearer one")).await;
        let other = if is_other_session {
            Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", Some("Bearer one")).await
        } else {
            Session::opened_elsewhere(V2025_11, "s-1", Some("Bearer two"))
        };
        let mut get = Get::open(&proxy, &mut upstream, &other).await;
        let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
        Form::Json.answer(call, result(7)).await;
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(1).await;
        let mut own = Get::open(&proxy, &mut upstream, &session).await;
        own.brings(&result(7), 1).await;
    }
}

#[tokio::test]
async fn other_clients_get_nothing_by_get() {
    let (mut upstream, proxy, session) = setup().await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    Form::Events.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings_nothing(1).await;
}

#[tokio::test]
async fn a_later_request_with_the_same_id_gets_no_earlier_response() {
    // Of the later request, and whether it ends before the earlier one.
    for has_ended in [true, false] {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
        let pending = session.post(call_tool(7, "other")).start(proxy.addr).await;
        let later = upstream.next().await;
        let finish = async |later: Call, pending: Client| {
            later.json(200, result(7)).await;
            let mut response = pending.response().await;
            response.json().await;
            response.fin();
        };
        if has_ended {
            finish(later, pending).await;
            Form::Events.answer(call, result(7)).await;
        } else {
            Form::Events.answer(call, result(7)).await;
            settle(&proxy, &mut upstream).await;
            pass(PATIENCE).await;
            get.brings_nothing(1).await;
            finish(later, pending).await;
        }
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(if has_ended { 1 } else { 2 }).await;
        // The client uses IDs freely.
        let call = lost_call(&proxy, &mut upstream, &session.post(call_tool(8, "third"))).await;
        Form::Events.answer(call, result(8)).await;
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(if has_ended { 2 } else { 3 }).await;
    }
}

#[tokio::test]
async fn server_requests_that_were_never_written_go_by_get() {
    let ask =
        |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": {}}).to_string();
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(ask(100)).await;
    response.event().await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(ask(101)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    // The first was written.
    get.brings(&ask(101), 1).await;
    sse.event(ask(102)).await;
    get.brings(&ask(102), 2).await;
    for id in [101, 102] {
        let said = json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string();
        let pending = session.post(&said).start(proxy.addr).await;
        let passed = upstream.next().await;
        assert_eq!(passed.json_body(), json_of(&said));
        passed.status(202).await;
        assert_eq!(pending.response().await.status, 202);
    }
    // They are not sent again.
    let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    resumed.prime().await;
    assert_eq!(resumed.event().await.json(), json_of(&ask(100)));
    sse.finish(result(7)).await;
    assert_eq!(resumed.event().await.json(), json_of(&result(7)));
}

#[tokio::test]
async fn an_error_goes_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let calls = [
        lost_call(&proxy, &mut upstream, &session.post(call(7))).await,
        lost_call(&proxy, &mut upstream, &session.post(call(8))).await,
        lost_call(&proxy, &mut upstream, &session.post(call(9))).await,
    ];
    let [broken, refused, told] = calls;
    broken.reset().await;
    refused.status(500).await;
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no"}});
    told.json(400, error.to_string()).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(get.client.event().await.json());
    }
    seen.sort_by_key(|message| message["id"].as_i64());
    assert_fault(&seen[0], 7, UPSTREAM_FAILED, "upstream");
    assert_fault(&seen[1], 8, UPSTREAM_FAILED, "upstream");
    assert_eq!(seen[1]["error"]["data"]["httpStatus"], 500);
    assert_eq!((&seen[2]["id"], &seen[2]["error"]["message"]), (&json!(9), &json!("no")));
}

/// A call whose client is gone, before the head or behind an event.
async fn lost_call_in_part(proxy: &Proxy, upstream: &mut Upstream, session: &Session, has_begun: bool) {
    if !has_begun {
        lost_call(proxy, upstream, &session.post(call(7))).await;
        return;
    }
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(7))).await;
    sse.event(progress(1)).await;
    response.event().await;
    response.reset();
    settle(proxy, upstream).await;
}

#[tokio::test]
async fn a_call_that_ended_at_a_time_limit_brings_its_error_by_get() {
    for (name, max_wait, call_timeout) in [("abandoned", Some(MINUTE), None), ("call_timed_out", None, Some(MINUTE))] {
        for has_begun in [false, true] {
            let with_limit = |config: &mut Config| {
                named(config);
                config.streams.max_wait = max_wait;
                config.streams.call_timeout = call_timeout;
            };
            let (mut upstream, proxy, session) = setup_with(with_limit).await;
            lost_call_in_part(&proxy, &mut upstream, &session, has_begun).await;
            pass(MINUTE).await;
            upstream.expect("notifications/cancelled").await.status(202).await;
            settle(&proxy, &mut upstream).await;
            let mut get = Get::open(&proxy, &mut upstream, &session).await;
            let message = get.client.event().await.json();
            assert_eq!((&message["id"], &message["error"]["code"]), (&json!(7), &json!(ABANDONED)), "{name}");
            assert_eq!(message["error"]["data"]["error"], name);
            get.brings_nothing(2).await;
        }
    }
}

#[tokio::test]
async fn a_deleted_session_brings_nothing_by_get() {
    for has_begun in [false, true] {
        for after in [Duration::ZERO, PATIENCE] {
            let (mut upstream, proxy, session) = setup_with(named).await;
            let mut get = Get::open(&proxy, &mut upstream, &session).await;
            lost_call_in_part(&proxy, &mut upstream, &session, has_begun).await;
            pass(after).await;
            let pending = session.delete().start(proxy.addr).await;
            upstream.expect("DELETE").await.status(200).await;
            assert_eq!(pending.response().await.status, 200);
            pass(PATIENCE).await;
            let (frames, end) = get.client.events().await;
            assert_eq!((frames.iter().filter(|frame| frame.is_event()).count(), end), (0, End::Complete));
        }
    }
}

#[tokio::test]
async fn a_call_that_was_accepted_without_a_response_brings_the_servers_alone() {
    for status in [202, 204] {
        let (mut upstream, proxy, session) = setup_with(named).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
        call.status(status).await;
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings_nothing(1).await;
        get.server.event(result(7)).await;
        get.brings(&result(7), 2).await;
        get.brings_nothing(3).await;
    }
}

#[tokio::test]
async fn a_response_with_the_status_202_goes_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    call.json(202, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&result(7), 1).await;
}

#[tokio::test]
async fn a_cancelled_call_brings_nothing_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    let pending = session.post(cancel.to_string()).start(proxy.addr).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    pending.response().await;
    Form::Events.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings_nothing(1).await;
}

#[tokio::test]
async fn a_large_body_that_no_client_waits_for_goes_by_get() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let mut get = Get::open(&proxy, &mut upstream, &session).await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    let large = json!({"jsonrpc": "2.0", "id": 7, "result": {"text": "x".repeat(300_000)}}).to_string();
    Form::Json.answer(call, large.clone()).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    get.brings(&large, 1).await;
}

#[tokio::test]
async fn each_response_of_an_array_is_an_event() {
    for form in FORMS {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, named).await;
        let session = Session::open(&proxy, &mut upstream, V2025_03).await;
        let mut get = Get::open(&proxy, &mut upstream, &session).await;
        let batch = format!("[{},{}]", call(7), call(8));
        let call = lost_call(&proxy, &mut upstream, &session.post(batch)).await;
        form.answer(call, format!("[{},{}]", result(8), result(7))).await;
        settle(&proxy, &mut upstream).await;
        pass(PATIENCE).await;
        get.brings(&result(8), 1).await;
        get.brings(&result(7), 2).await;
    }
}

#[tokio::test]
async fn a_server_without_a_get_stream_has_one_for_these_clients() {
    let (mut upstream, proxy, session) = setup_with(named).await;
    let pending = session.get().start(proxy.addr).await;
    upstream.expect("GET").await.status(405).await;
    let mut get = pending.response().await.sse();
    get.prime().await;
    let call = lost_call(&proxy, &mut upstream, &session.post(call(7))).await;
    Form::Json.answer(call, result(7)).await;
    settle(&proxy, &mut upstream).await;
    pass(PATIENCE).await;
    assert_eq!(get.event().await.json(), json_of(&result(7)));
}

#[tokio::test]
async fn a_call_on_stdio_goes_by_get() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(named).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut get = session.get().send(proxy.addr).await.sse();
    get.prime().await;
    let client = session.post(call(7)).start(proxy.addr).await;
    server.message().await;
    client.reset();
    server.say(result(7)).await;
    // The messages of a process come in order.
    let pending = session.post(call(8)).start(proxy.addr).await;
    server.message().await;
    server.say(result(8)).await;
    pending.response().await.sse().events().await;
    pass(PATIENCE).await;
    assert_eq!(get.event().await.json(), json_of(&result(7)));
}
