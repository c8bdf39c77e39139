//! Sessions that share a server.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::super::body::Events;
use super::super::{Body, Caller, Response, Sharing};
use super::{KEEP, Server, Setup, caller_of, give_up, outcome, within};
use crate::clock;
use crate::event_log::{Principal, QuotaKey};
use crate::sync;

const IDLE: Duration = Duration::from_secs(300);

fn setup() -> Setup {
    Setup::new(|settings| (settings.sharing, settings.idle) = (Sharing::All, Some(IDLE)))
}

/// Opens sessions that share a server.
async fn open<const N: usize>(setup: &mut Setup) -> (Server, [String; N]) {
    let opening: Vec<_> = (0..N as u64).map(|id| setup.initialize(id, 1, "a")).collect();
    let mut server = setup.server().await;
    server.accept().await;
    let mut names = Vec::new();
    for (id, opening) in opening.into_iter().enumerate() {
        let outcome = outcome(opening).await;
        assert_eq!((outcome.status, &outcome.body["id"]), (200, &json!(id)));
        assert_eq!(outcome.body["result"]["protocolVersion"], "2025-11-25");
        names.push(outcome.session.expect("a name"));
    }
    setup.starts_none();
    (server, names.try_into().expect("as many"))
}

fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

fn result(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn events(response: Response) -> Events {
    assert_eq!(response.status(), 200);
    match response.into_body() {
        Body::Events(events) => events,
        Body::Whole(body) => panic!("no events: {body:?}"),
    }
}

async fn next(events: &Events) -> Option<Value> {
    let message = within(events.first_message()).await?;
    Some(serde_json::from_slice(&message).expect("JSON"))
}

async fn call(setup: &Setup, session: &str, message: Value) -> Events {
    events(setup.send(Method::POST, session, message).await)
}

async fn post(setup: &Setup, session: &str, message: Value) {
    assert_eq!(setup.send(Method::POST, session, message).await.status(), 202);
}

async fn listen(setup: &Setup, session: &str) -> Events {
    events(setup.send(Method::GET, session, "").await)
}

#[tokio::test(start_paused = true)]
async fn sessions_of_a_caller_with_equal_parameters_share_a_server() {
    let mut setup = setup();
    let (_server, [one, two]) = open(&mut setup).await;
    assert_ne!(one, two);
    let third = outcome(setup.initialize(7, 1, "a")).await;
    assert_eq!((third.status, &third.body["id"]), (200, &json!(7)));
    assert!(third.session.is_some_and(|third| third != one && third != two));
    setup.starts_none();
    for other in [setup.initialize(1, 2, "a"), setup.initialize(1, 1, "b")] {
        let mut server = setup.server().await;
        server.accept().await;
        assert_eq!(outcome(other).await.status, 200, "another caller, or another client, has another server");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_without_credentials_share_where_they_are_one_person() {
    for (sharing, servers) in [(Sharing::All, 1), (Sharing::Known, 2), (Sharing::Off, 2)] {
        let mut setup = Setup::new(|settings| settings.sharing = sharing);
        let here = QuotaKey::Peer(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let body = request(1, "initialize", json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
        let opening = [1, 2].map(|_| setup.initialize_as(Caller::new(Principal::Anonymous, here.clone()), &body));
        let mut started = Vec::new();
        for _ in 0..servers {
            let mut server = setup.server().await;
            server.accept().await;
            started.push(server);
        }
        for opening in opening {
            assert_eq!(outcome(opening).await.status, 200);
        }
        setup.starts_none();
    }
}

#[tokio::test(start_paused = true)]
async fn each_session_gets_the_messages_of_its_calls() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let ask = |text: &str| request(1, "tools/call", json!({"name": text, "_meta": {"progressToken": 1}}));
    let of_one = call(&setup, &one, ask("one")).await;
    let of_two = call(&setup, &two, ask("two")).await;
    let (first, second) = (server.message().await, server.message().await);
    assert_ne!(first["id"], second["id"]);
    for message in [&second, &first] {
        let name = &message["params"]["name"];
        let token = &message["params"]["_meta"]["progressToken"];
        assert_eq!(token, &message["id"]);
        server.say(notification("notifications/progress", json!({"progressToken": token, "message": name}))).await;
        server.say(result(&message["id"], json!({"of": name}))).await;
    }
    for (events, name) in [(of_one, "one"), (of_two, "two")] {
        let progress = notification("notifications/progress", json!({"progressToken": 1, "message": name}));
        assert_eq!(next(&events).await, Some(progress));
        assert_eq!(next(&events).await, Some(result(&json!(1), json!({"of": name}))));
        assert_eq!(next(&events).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_names_a_request_of_its_own_session() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let _of_one = call(&setup, &one, request(1, "tools/call", json!({}))).await;
    let number = server.message().await["id"].clone();
    for id in [json!(1), number.clone()] {
        post(&setup, &two, notification("notifications/cancelled", json!({"requestId": id}))).await;
    }
    post(&setup, &one, notification("notifications/cancelled", json!({"requestId": 1, "reason": "r"}))).await;
    let cancel = notification("notifications/cancelled", json!({"requestId": number, "reason": "r"}));
    assert_eq!(server.message().await, cancel);
}

#[tokio::test(start_paused = true)]
async fn the_server_is_initialized_once() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    for session in [&one, &two, &two] {
        post(&setup, session, notification("notifications/initialized", json!({}))).await;
    }
    let again = call(&setup, &two, request(1, "initialize", json!({}))).await;
    assert_eq!(next(&again).await.expect("an error")["error"]["code"], -32600);
    post(&setup, &one, notification("notifications/roots/list_changed", json!({}))).await;
    assert_eq!(server.message().await["method"], "notifications/initialized");
    assert_eq!(server.message().await["method"], "notifications/roots/list_changed");
}

#[tokio::test(start_paused = true)]
async fn only_the_session_that_is_asked_answers_and_once() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let (to_one, to_two) = (listen(&setup, &one).await, listen(&setup, &two).await);
    post(&setup, &one, notification("notifications/initialized", json!({}))).await;
    server.message().await;
    let server_request = request("q", "roots/list", json!({"_meta": {"progressToken": "t"}}));
    server.say(&server_request).await;
    assert_eq!(next(&to_one).await, Some(server_request), "it was used last");
    let progress = |n| notification("notifications/progress", json!({"progressToken": "t", "progress": n}));
    post(&setup, &two, progress(1)).await;
    post(&setup, &two, result(&json!("q"), json!({"of": "two"}))).await;
    post(&setup, &one, progress(2)).await;
    for _ in 0..2 {
        post(&setup, &one, result(&json!("q"), json!({"of": "one"}))).await;
    }
    post(&setup, &two, notification("notifications/roots/list_changed", json!({}))).await;
    assert_eq!(server.message().await, progress(2));
    assert_eq!(server.message().await, result(&json!("q"), json!({"of": "one"})));
    assert_eq!(server.message().await["method"], "notifications/roots/list_changed");
    server.say(request("r", "roots/list", json!({}))).await;
    assert_eq!(next(&to_two).await.expect("a server request")["id"], "r");
    let cancel = notification("notifications/cancelled", json!({"requestId": "r"}));
    server.say(&cancel).await;
    server.say(notification("notifications/tools/list_changed", json!({}))).await;
    assert_eq!(next(&to_two).await, Some(cancel));
    assert_eq!(next(&to_one).await.expect("a notice")["method"], "notifications/tools/list_changed");
}

#[tokio::test(start_paused = true)]
async fn a_message_with_two_ids_is_refused() {
    let mut setup = setup();
    let (_server, [one]) = open(&mut setup).await;
    let message = r#"{"jsonrpc":"2.0","id":1,"ID":2,"method":"tools/list"}"#;
    assert_eq!(setup.send(Method::POST, &one, message).await.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_ping_that_nothing_answers_is_answered() {
    let mut shared = setup();
    let mut single = Setup::new(|_| {});
    let opening = single.initialize(1, 1, "a");
    let mut of_single = single.server().await;
    of_single.accept().await;
    let name = outcome(opening).await.session.expect("a name");
    let (of_shared, [one]) = open(&mut shared).await;
    for (setup, mut server, session) in [(&shared, of_shared, one), (&single, of_single, name)] {
        server.say(request("p", "ping", json!({}))).await;
        assert_eq!(server.message().await, result(&json!("p"), json!({})));
        let events = listen(setup, &session).await;
        server.say(request("q", "ping", json!({}))).await;
        assert_eq!(next(&events).await.expect("a ping")["id"], "q");
        drop(events);
        tokio::task::yield_now().await;
        server.say(request("r", "ping", json!({}))).await;
        assert_eq!(server.message().await["id"], "r", "the one before is the client's to answer");
    }
}

#[tokio::test(start_paused = true)]
async fn pings_are_left_to_clients_where_that_is_configured() {
    let mut setup = Setup::new(|settings| settings.answers_pings = false);
    let opening = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    server.accept().await;
    let name = outcome(opening).await.session.expect("a name");
    server.say(request("p", "ping", json!({}))).await;
    assert_eq!(next(&listen(&setup, &name).await).await.expect("a ping")["id"], "p");
}

#[tokio::test(start_paused = true)]
async fn the_server_has_one_level_and_one_subscription_for_all() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let (to_one, to_two) = (listen(&setup, &one).await, listen(&setup, &two).await);
    let level = |level| request(5, "logging/setLevel", json!({"level": level}));
    let subscribe = request(6, "resources/subscribe", json!({"uri": "u:a"}));
    for message in [level("warning"), subscribe.clone()] {
        let events = call(&setup, &one, message.clone()).await;
        let sent = server.message().await;
        assert_eq!((&sent["method"], &sent["params"]), (&message["method"], &message["params"]));
        server.say(result(&sent["id"], json!({"from": "the server"}))).await;
        assert_eq!(next(&events).await, Some(result(&message["id"], json!({"from": "the server"}))));
        let events = call(&setup, &two, message.clone()).await;
        assert_eq!(next(&events).await, Some(result(&message["id"], json!({}))));
        assert_eq!(next(&events).await, None);
    }
    let events = call(&setup, &two, request(7, "resources/unsubscribe", json!({"uri": "u:a"}))).await;
    assert_eq!(next(&events).await, Some(result(&json!(7), json!({}))));
    server.say(notification("notifications/resources/updated", json!({"uri": "u:a"}))).await;
    server.say(notification("notifications/message", json!({"level": "error"}))).await;
    assert_eq!(next(&to_one).await.expect("an update")["method"], "notifications/resources/updated");
    assert_eq!(next(&to_two).await.expect("a message")["method"], "notifications/message");
    let debug = call(&setup, &two, level("debug")).await;
    let sent = server.message().await;
    assert_eq!(sent["params"], json!({"level": "debug"}));
    server.say(result(&sent["id"], json!({}))).await;
    assert!(next(&debug).await.is_some());
    // The end of the session removes its low level, and its pending server request.
    server.say(request("q", "roots/list", json!({}))).await;
    assert_eq!(next(&to_two).await.expect("a server request")["id"], "q");
    assert_eq!(setup.send(Method::DELETE, &two, "").await.status(), 200);
    let error = server.message().await;
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!("q"), &json!(-32600)));
    let own = server.message().await;
    assert_eq!((&own["method"], &own["params"]), (&json!("logging/setLevel"), &json!({"level": "warning"})));
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_with_the_last_session() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let ending = call(&setup, &one, request(1, "tools/call", json!({}))).await;
    let staying = call(&setup, &two, request(1, "tools/call", json!({}))).await;
    let (cancelled, number) = (server.message().await["id"].clone(), server.message().await["id"].clone());
    assert_eq!(setup.send(Method::DELETE, &one, "").await.status(), 200);
    let error = next(&ending).await.expect("an error");
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32011)));
    assert_eq!(next(&ending).await, None);
    assert_eq!(server.message().await["params"]["requestId"], cancelled);
    assert_eq!(setup.send(Method::POST, &one, request(2, "tools/list", json!({}))).await.status(), 404);
    server.say(result(&number, json!({}))).await;
    assert_eq!(next(&staying).await, Some(result(&json!(1), json!({}))));
    assert!(!server.has_ended());
    assert_eq!(setup.send(Method::DELETE, &two, "").await.status(), 200);
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_idle_ends_and_the_others_stay() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    for _ in 0..4 {
        clock::sleep(IDLE / 2).await;
        post(&setup, &one, notification("notifications/roots/list_changed", json!({}))).await;
        server.message().await;
    }
    assert_eq!(setup.send(Method::POST, &two, request(1, "tools/list", json!({}))).await.status(), 404);
    assert!(!server.has_ended());
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_whose_server_is_lost_meet_at_one_again() {
    let mut setup = setup();
    let (server, names) = open::<3>(&mut setup).await;
    drop(server);
    for name in &names {
        let status = async || setup.send(Method::POST, name, request(1, "tools/list", json!({}))).await.status();
        while status().await != 404 {
            clock::sleep(Duration::from_millis(10)).await;
        }
    }
    let (_server, [_, _]) = open(&mut setup).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_no_client_waits_for_is_kept_for_the_next() {
    let mut setup = setup();
    let begun = clock::now();
    let first = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    give_up(first).await;
    server.accept().await;
    clock::sleep(KEEP / 2).await;
    assert_eq!(outcome(setup.initialize(2, 1, "a")).await.status, 200);
    setup.starts_none();
    let second = setup.initialize_as(caller_of(2), &request(1, "initialize", json!({"protocolVersion": "2025-11-25"})));
    let mut other = setup.server().await;
    give_up(second).await;
    other.accept().await;
    other.end().await;
    assert_eq!((clock::now() - begun).as_secs(), (KEEP + KEEP / 2).as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_fails_for_all() {
    let mut setup = setup();
    let opening = [setup.initialize(1, 1, "a"), setup.initialize(2, 1, "a")];
    let mut server = setup.server().await;
    let id = server.message().await["id"].clone();
    server.say(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no"}})).await;
    for (id, opening) in (1..).zip(opening) {
        let refused = outcome(opening).await;
        assert_eq!(
            (refused.session, &refused.body["id"], refused.body["error"]["code"].clone()),
            (None, &json!(id), json!(-32602))
        );
    }
    setup.starts_none();
}

#[tokio::test(start_paused = true)]
async fn sessions_at_a_server_are_bounded() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    let _running = call(&setup, &one, request(1, "tools/call", json!({}))).await;
    server.message().await;
    let third = outcome(setup.initialize(2, 1, "a")).await.session.expect("a name");
    for id in 3..1024 {
        assert_eq!(outcome(setup.initialize(id, 1, "a")).await.status, 200);
    }
    post(&setup, &two, notification("notifications/roots/list_changed", json!({}))).await;
    assert_eq!(outcome(setup.initialize(1, 1, "a")).await.status, 200);
    setup.starts_none();
    // The first has a call, and the second was used later.
    let list = request(1, "tools/list", json!({}));
    assert_eq!(setup.send(Method::POST, &third, list).await.status(), 404);
    for session in [&one, &two] {
        post(&setup, session, notification("notifications/roots/list_changed", json!({}))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_room_and_without_revival_has_a_second_one_beside_it() {
    let mut setup = Setup::new(|settings| {
        settings.sharing = Sharing::All;
        settings.bounds.as_mut().expect("bounds").may_replace = false;
    });
    let (_server, [_]) = open(&mut setup).await;
    for id in 1..1024 {
        assert_eq!(outcome(setup.initialize(id, 1, "a")).await.status, 200);
    }
    let beyond = setup.initialize(1, 1, "a");
    let mut second = setup.server().await;
    second.accept().await;
    assert_eq!(outcome(beyond).await.status, 200);
    assert_eq!(outcome(setup.initialize(2, 1, "a")).await.status, 200);
    setup.starts_none();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_before_it_is_written_does_not_run() {
    let mut setup = setup();
    let (mut server, [one, two]) = open(&mut setup).await;
    // More than the pipe holds, so that what follows waits.
    let long = "x".repeat(1 << 20);
    let first = setup.send(Method::POST, &one, request(1, "tools/call", json!({"long": long}))).await;
    let channels = setup.channels.clone();
    let left = tokio::spawn(async move {
        let body = request(2, "tools/call", json!({"left": true})).to_string().into();
        channels.send(super::request(&Method::POST, Some(&one), &body, None)).await
    });
    tokio::task::yield_now().await;
    left.abort();
    assert!(left.await.is_err());
    let last = tokio::spawn({
        let channels = setup.channels.clone();
        async move {
            let body = request(3, "tools/call", json!({"last": true})).to_string().into();
            channels.send(super::request(&Method::POST, Some(&two), &body, None)).await
        }
    });
    assert!(server.message().await["params"]["long"].is_string());
    assert_eq!(server.message().await["params"], json!({"last": true}));
    assert_eq!(
        (first.status(), within(last).await.expect("no panic").status()),
        (http::StatusCode::OK, http::StatusCode::OK)
    );
}

#[tokio::test(start_paused = true)]
async fn sessions_that_wait_for_room_come_to_one_server_by_one_turn() {
    let mut setup = Setup::new(|settings| {
        settings.sharing = Sharing::All;
        let bounds = settings.bounds.as_mut().expect("bounds");
        (bounds.servers, bounds.may_replace) = (2, false);
    });
    let (first, second) = (setup.open(8).await, setup.open(9).await);
    let waiting: Vec<_> = (1..=3).map(|id| setup.initialize(id, 1, "a")).collect();
    clock::sleep(Duration::from_secs(1)).await;
    let other = setup.initialize(4, 2, "a");
    clock::sleep(Duration::from_secs(1)).await;
    setup.starts_none();
    drop(first);
    let mut shared = setup.server().await;
    // The waiting sessions of the first caller take no turns before the other caller, although the
    // server has not responded yet.
    drop(second);
    let mut of_other = setup.server().await;
    of_other.accept().await;
    assert_eq!(outcome(other).await.body["id"], 4);
    shared.accept().await;
    let mut names = BTreeSet::new();
    for (id, waiting) in (1..).zip(waiting) {
        let outcome = outcome(waiting).await;
        assert_eq!((outcome.status, &outcome.body["id"]), (200, &json!(id)));
        names.extend(outcome.session);
    }
    assert_eq!(names.len(), 3, "a session for each");
    setup.starts_none();
    assert!(sync::lock(&setup.channels.state).start_queue.next(|_, _| true).is_none(), "nothing waits any more");
}
