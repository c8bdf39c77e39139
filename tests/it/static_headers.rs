//! Headers of the operator: each request to the endpoint has them, and no other request.

use std::fs::File;
use std::path::Path;

use http::HeaderValue;
use mcp_resume::config::{Bridge, Config, Flags, ModernClients, StaticHeaders};
use serde_json::json;

use crate::revival::{answer_initialize, forget};
use crate::support::http_versions::{HttpVersion, TestServer, with_versions};
use crate::support::pki::Pki;
use crate::support::*;

const HEADERS: &str = "Authorization = 'Bearer operator'\nX-API-Key = 'key'\nX-Tenant = 't'";

fn configured(headers: &str) -> StaticHeaders {
    let file = format!("[upstream]\nurl = 'http://localhost'\n[upstream.headers]\n{headers}");
    Config::load(Some(("test", &file)), [], Flags::default()).expect("a configuration").upstream.headers
}

fn with_headers(config: &mut Config) {
    config.upstream.headers = configured(HEADERS);
}

/// Asserts that a request has the headers of the operator, each once and in place of the client's.
#[track_caller]
fn assert_added(call: &Call) {
    for (name, value) in [("authorization", "Bearer operator"), ("x-api-key", "key"), ("x-tenant", "t")] {
        assert_eq!(call.head.all(name), [value], "{name} of {} {}", call.method, call.target);
    }
    assert_eq!(call.header("x_api_key"), None);
}

/// A request with values of the client's own.
fn own(request: Request) -> Request {
    let request = request.with("Authorization", "Bearer client").with("X-Tenant", "other").and("X-Tenant", "third");
    // CGI programs read this as the same name.
    request.with("X_API_Key", "other")
}

#[tokio::test]
async fn each_request_to_the_endpoint_has_them_in_place_of_the_clients() {
    let (mut upstream, proxy, session) = setup_with(with_headers).await;
    let passed = Request::post("a=b").with("Content-Type", "text/plain").with("Mcp-Session-Id", "s-1");
    for (request, expected) in [
        (session.post(call(1)), "POST"),
        (Request::post(call(1)), "POST"),
        (session.post(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#), "POST"),
        (session.post(r#"{"jsonrpc":"2.0","id":"q","result":{}}"#), "POST"),
        (passed, "POST"),
        (session.get(), "GET"),
        (Request::new("GET", "/mcp/?page=1"), "GET"),
        (Request::new("OPTIONS", "/mcp"), "OPTIONS"),
        (session.delete(), "DELETE"),
    ] {
        let pending = own(request).start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!(call.method, expected);
        assert_added(&call);
        call.status(405).await;
        assert_eq!(pending.response().await.status, 405);
    }
}

#[tokio::test]
async fn they_are_added_over_each_version_of_http() {
    for version in HttpVersion::ALL {
        let pki = Pki::new();
        let mut server = TestServer::start(version, &pki).await;
        let proxy = Proxy::to_url(&server.url(), |config| {
            with_versions(HttpVersion::ALL[0], version, &pki)(config);
            with_headers(config);
        })
        .await;
        for request in [own(Request::post(call(1))), own(Request::post("a").with("Content-Type", "text/plain"))] {
            let pending = request.start(proxy.addr).await;
            let call = server.next().await;
            let values = |name| call.head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
            assert_eq!(
                (values("authorization"), values("x-tenant")),
                (vec![b"Bearer operator".as_slice()], vec![b"t".as_slice()]),
                "{version:?}"
            );
            call.json(result(1));
            assert_eq!(pending.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn requests_for_other_paths_stay_the_clients() {
    let (mut upstream, proxy, _) = setup_with(with_headers).await;
    for target in ["/.well-known/oauth-protected-resource/mcp", "/mcp/more", "/", "/token", "/mcp/../mcp"] {
        let pending = Request::new("GET", target).with("Authorization", "Bearer client").start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!(call.head.all("authorization"), ["Bearer client"], "{target}");
        assert_eq!((call.header("x-tenant"), call.header("x-api-key")), (None, None), "{target}");
        call.status(204).await;
        assert_eq!(pending.response().await.status, 204);
    }
}

#[tokio::test]
async fn a_redirect_within_the_endpoint_is_followed_with_them() {
    let (mut upstream, proxy, session) = setup_with(with_headers).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status_with(307, "location: /mcp/\r\n").await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.target, "/mcp/");
    assert_added(&again);
    again.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_revival_has_them() {
    let (mut upstream, proxy, session) = crate::revival::with(json!({}), with_headers).await;
    let pending = session.post(call(1)).with("X-Tenant", "other").start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    let opening = upstream.expect("initialize").await;
    assert_added(&opening);
    answer_initialize(opening, "s-2").await;
    let ready = upstream.expect("notifications/initialized").await;
    assert_added(&ready);
    ready.status(202).await;
    let again = upstream.expect("tools/call").await;
    assert_added(&again);
    again.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// The probe goes without the other credentials of the client, but with those of the operator.
#[tokio::test]
async fn a_probe_of_a_token_has_them() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.upstream.headers = configured("X-API-Key = 'key'\nX-Tenant = 't'");
    })
    .await;
    let (first, second) = (bearer("u", 1), bearer("u", 2));
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-1", Some(&first)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1)).with("X-API-Key", "own")).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let refreshed = Session::opened_elsewhere(V2025_11, "s-1", Some(&second));
    let pending = refreshed.resume(&place.at(0)).with("X-API-Key", "own").start(proxy.addr).await;
    for status in [200, 401, 200] {
        let probe = upstream.expect("ping").await;
        assert_eq!((probe.head.all("x-api-key"), probe.header("x-tenant")), (vec!["key"], Some("t")));
        let id = probe.json_body()["id"].clone();
        probe.json(status, result(id)).await;
    }
    let mut resumed = pending.response().await.sse();
    sse.finish(result(1)).await;
    resumed.event().await;
}

#[tokio::test]
async fn the_bridge_has_them() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        with_headers(config);
        config.bridge = Some(Bridge {
            modern_clients: ModernClients::Always,
            legacy_clients: false,
            idle: std::time::Duration::from_secs(600),
            sessions_per_principal: 8,
        });
    })
    .await;
    let _pending = own(modern(1)).start(proxy.addr).await;
    let question = upstream.expect("server/discover").await;
    assert_added(&question);
    let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}"#;
    question.json(400, refusal).await;
    let opening = upstream.expect("initialize").await;
    assert_added(&opening);
    let handshake =
        json!({"protocolVersion": V2025_11, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
    let opened = json!({"jsonrpc": "2.0", "id": opening.json_body()["id"], "result": handshake});
    opening.json_with(200, "Mcp-Session-Id: s-1\r\n", opened.to_string()).await;
    let mut methods = Vec::new();
    while methods.last().is_none_or(|method| method != "tools/call") {
        let call = upstream.next().await;
        assert_added(&call);
        methods.push(if call.method == "POST" { call.rpc_method() } else { call.method.clone() });
        let body = if call.method == "POST" { call.json_body() } else { json!({}) };
        match call.method.as_str() {
            "POST" if body["id"].is_null() => call.status(202).await,
            "POST" => call.json(200, result(body["id"].clone())).await,
            _ => call.status(405).await,
        }
    }
    assert!(methods.iter().any(|method| method == "notifications/initialized"), "{methods:?}");
}

#[tokio::test]
async fn both_places_of_a_server_on_http_sse_get_them() {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/sse", upstream.addr());
    let proxy = Proxy::to_url(&url, |config| {
        let flags = Flags { upstream_sse: Some(url.clone()), ..Flags::default() };
        config.upstream = Config::load(None, [], flags).expect("a configuration").upstream;
        with_headers(config);
    })
    .await;
    let _pending = own(Request::post(initialize(V2025_11))).start(proxy.addr).await;
    let get = upstream.next().await;
    assert_eq!((get.method.as_str(), get.target.as_str()), ("GET", "/sse"));
    assert_added(&get);
    let events = get.sse().await;
    events.bytes("event: endpoint\ndata: /messages?session=1\n\n").await;
    let post = upstream.next().await;
    assert_eq!((post.method.as_str(), post.target.as_str()), ("POST", "/messages?session=1"));
    assert_added(&post);
    post.status(202).await;
}

/// Callers cannot make up credentials that the server has not judged.
#[tokio::test]
async fn credentials_of_the_operator_prove_no_callers() {
    let (mut upstream, proxy, _) = setup_with(|config| {
        with_headers(config);
        config.limits.streams_per_principal = 1;
    })
    .await;
    let refused = modern(1).start(proxy.addr).await;
    upstream.next().await.json(401, "{}").await;
    assert_eq!(refused.response().await.status, 401);
    for token in ["one", "two"] {
        let pending = modern(1).with("Authorization", token).start(proxy.addr).await;
        upstream.next().await.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
    }
    let (_sse, _response) = begin(&proxy, &mut upstream, &modern(1).with("Authorization", "one")).await;
    let other = modern(1).with("Authorization", "two").send(proxy.addr).await;
    assert_eq!(other.status, 429, "both count by their address");
}

/// Runs `serve` or `check` with this file.
async fn run(arguments: &[&str], file: &Path, variable: Option<&str>) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(arguments).arg("--config").arg(file).env_remove("MCP_TEST_KEY");
    if let Some(value) = variable {
        command.env("MCP_TEST_KEY", value);
    }
    let output = command.kill_on_drop(true).output();
    let output = within("the end of the process", output).await.expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn values_come_from_variables_and_files_and_no_log_has_them() {
    let mut upstream = Upstream::start().await;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [token, file, log] = ["token", "toml", "log"].map(|end| folder.join(format!("static-headers.{end}")));
    std::fs::write(&token, "Bearer hunter2-in-a-file\n").expect("a file");
    let headers = format!(
        "[listen]\naddress = '127.0.0.1:0'\n[admin]\naddress = '127.0.0.1:0'\n[log]\nlevel = 'trace'\n\
         [upstream]\nurl = '{}'\nkeepalive_secs = 0\n[upstream.headers]\nAuthorization = 'file:{}'\n\
         X-Key = 'env:MCP_TEST_KEY'\nX-Plain = 'hunter2-plain'\n",
        upstream.url(),
        token.display()
    );
    std::fs::write(&file, &headers).expect("a file");
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.arg("serve").arg("--config").arg(&file).env("MCP_TEST_KEY", "hunter2-in-a-variable");
    command.stderr(File::create(&log).expect("a log file"));
    let proxy = Proxy::process(command).await;
    let pending = Request::post(call(1)).start(proxy.addr).await;
    let sent = upstream.next().await;
    let found = ["authorization", "x-key", "x-plain"].map(|name| sent.header(name).map(str::to_owned));
    let expected = ["Bearer hunter2-in-a-file", "hunter2-in-a-variable", "hunter2-plain"];
    assert_eq!(found, expected.map(|value| Some(value.to_owned())));
    sent.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    proxy.stop().await;
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.contains("TRACE") && !log.contains("hunter2"), "{log}");

    let (code, said) = run(&["serve"], &file, None).await;
    assert!(code == Some(2) && said.contains("MCP_TEST_KEY") && said.contains("x-key"), "{code:?} {said}");
    let (code, said) = run(&["check"], &file, None).await;
    assert!(code == Some(2) && said.contains("MCP_TEST_KEY") && !said.contains("hunter2"), "{code:?} {said}");
    std::fs::remove_file(&token).expect("it is there");
    let (code, said) = run(&["check"], &file, Some("a")).await;
    assert!(code == Some(2) && said.contains("static-headers.token"), "{code:?} {said}");
    std::fs::write(&file, headers.replace("X-Plain", "Mcp-Session-Id")).expect("a file");
    let (code, said) = run(&["serve"], &file, Some("a")).await;
    assert!(code == Some(2) && said.contains("mcp-session-id belongs to the proxy"), "{code:?} {said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn a_check_has_them_at_the_endpoint_alone() {
    let mut upstream = Upstream::start().await;
    let mut config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    with_headers(&mut config);
    let timeouts = mcp_resume::check::Timeouts { margin: SOON, watch: std::time::Duration::ZERO, ..Default::default() };
    let options = mcp_resume::check::Options { timeouts, ..Default::default() };
    let mut targets = Vec::new();
    let serving = async {
        loop {
            let call = upstream.next().await;
            if call.target == "/mcp" {
                assert_added(&call);
            } else {
                assert_eq!((call.header("authorization"), call.header("x-tenant")), (None, None), "{}", call.target);
            }
            targets.push(call.target.clone());
            call.json(404, "{}").await;
        }
    };
    tokio::select! {
        _ = mcp_resume::check::probe(&config, &options) => {}
        () = serving => {}
    }
    let at_endpoint = targets.iter().filter(|target| *target == "/mcp").count();
    assert!((1..targets.len()).contains(&at_endpoint), "{targets:?}");
}
