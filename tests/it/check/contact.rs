//! Servers that are no MCP servers, are at another place, or do not answer.

use super::*;

#[tokio::test]
async fn http_sse_of_2024_is_distinguished_from_streamable_http() {
    let old = async |_: &mut Memory, call: Call| match (&call.method[..], &call.target[..]) {
        ("GET", "/sse") => call.sse().await.bytes("event: endpoint\ndata: /messages?s=1\n\n").await,
        _ => call.json(404, "{}").await,
    };
    let (report, _) = probed(options(), old).await;
    assert_eq!(report.verdict, Verdict::HttpSseOnly);
    assert_eq!(report.facts.http_sse, ["/sse"]);
}

#[tokio::test]
async fn a_web_page_is_no_mcp() {
    let page = async |_: &mut Memory, call: Call| {
        call.whole("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p>\n").await;
    };
    let (report, _) = probed(options(), page).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    let content_type = Some("text/html".to_owned());
    assert_eq!(report.facts.contact, Contact::NotMcp { status: 200, content_type, redirects_to: None });
}

#[tokio::test]
async fn bytes_that_are_no_http_are_no_mcp() {
    let garbage = async |_: &mut Memory, call: Call| {
        call.write("SSH-2.0-x\r\n").await;
        call.fin().await;
    };
    let (report, _) = probed(options(), garbage).await;
    assert_eq!((report.verdict, &report.facts.contact), (Verdict::NoMcp, &Contact::Broke));
}

#[tokio::test]
async fn a_body_that_is_no_mcp_in_the_right_clothes_is_no_mcp() {
    for body in [
        "{",
        "[]",
        "7",
        "{\"a\":1}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}",
    ] {
        let (report, _) = probed(options(), async |_: &mut Memory, call: Call| call.json(200, body).await).await;
        assert_eq!(report.verdict, Verdict::NoMcp, "{body}");
    }
    let noise = async |_: &mut Memory, call: Call| call.sse().await.finish("not JSON").await;
    let (report, _) = probed(options(), noise).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
}

#[tokio::test]
async fn a_server_that_declines_every_opening_is_quoted_by_its_code() {
    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| decline(call).await).await;
    assert_eq!(report.verdict, Verdict::Declines);
    let message = "no".to_owned();
    assert_eq!(report.facts.contact, Contact::Declined { status: 400, code: -32600, message });
    assert!(report.to_string().contains("400 with a JSON-RPC error to initialize: no (-32600)"), "{report}");
}

#[tokio::test]
async fn a_server_that_never_answers_ends_in_a_verdict() {
    let (report, _) = probed(waiting(SOON), async |_: &mut Memory, _: Call| {}).await;
    assert_eq!(report.verdict, Verdict::DoesNotAnswer);
    assert!(!report.can_stand_in_front);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_not_waited_for_again_and_again() {
    let tired = async |_: &mut Memory, call: Call| {
        if matches!(&call.rpc_method()[..], "initialize" | "server/discover") {
            plain(call, SESSION).await;
        }
    };
    let (report, memory) = probed(waiting(LATER), tired).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    assert!(report.facts.fell_silent);
    assert!(memory.count("ping") == 0, "{:?}", memory.asked);
}

#[tokio::test]
async fn the_systems_error_is_shown_where_no_server_listens() {
    let mut upstream = Upstream::start().await;
    let config = Config::for_upstream(&upstream.url()).expect("a usable URL");
    upstream.refuse().await;
    let report = Report::new(check::probe(&config, &options()).await, &config);
    assert_eq!(report.verdict, Verdict::Unreachable);
    let Contact::Unreachable { why } = &report.facts.contact else { panic!("{:?}", report.facts.contact) };
    assert!(why.contains("refused"), "{why}");
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_and_nowhere_else() {
    let moved = async |_: &mut Memory, call: Call| match &call.target[..] {
        "/mcp" if call.method == "POST" => call.status_with(307, "location: /mcp/\r\n").await,
        _ => plain(call, "").await,
    };
    let (report, _) = probed(options(), moved).await;
    assert_eq!(report.verdict, Verdict::CannotResume);

    let elsewhere = Upstream::start().await;
    let location = format!("location: {}\r\n", elsewhere.url());
    let away = async |_: &mut Memory, call: Call| call.status_with(307, &location).await;
    let (report, _) = probed(options(), away).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    let origin = elsewhere.url().trim_end_matches("/mcp").to_owned();
    let warning = format!("the endpoint redirects (307) to {origin}, which is not followed");
    assert!(report.warnings.iter().any(|line| line.starts_with(&warning)), "{:?}", report.warnings);
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_redirect_to_a_page_shows_its_place_without_its_query() {
    let at = async |location: &str| {
        let head = format!("location: {location}\r\n");
        let (report, _) =
            probed(options(), async |_: &mut Memory, call: Call| call.status_with(302, &head).await).await;
        report.warnings.join("\n")
    };
    let warnings = at("https://login.example/sign-in?state=secret").await;
    assert!(warnings.contains("redirects (302) to https://login.example, which") && !warnings.contains("secret"));
    let warnings = at("/sign-in?state=secret").await;
    assert!(warnings.contains("redirects (302) to /sign-in, which") && !warnings.contains("secret"), "{warnings}");
}

/// A server without `server/discover`, which serves all else without a session. `initialize` has an
/// answer of its own.
async fn without_sessions(call: Call, opening: impl AsyncFnOnce(Call)) {
    match &call.rpc_method()[..] {
        "initialize" => opening(call).await,
        "server/discover" => {
            let (id, code) = (id_of(&call), -32601);
            call.json(200, json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}).to_string())
                .await;
        }
        _ => plain(call, "").await,
    }
}

#[tokio::test]
async fn a_server_that_is_limited_or_away_is_taken_for_no_other_kind() {
    for (status, body, contact) in [
        (503, "<html>", "it answers 503 now, with text/html"),
        (429, "{\"error\":\"slow down\"}", "it answers 429 now, with application/json"),
        (503, "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"busy\"}}", "it answers 503 now"),
    ] {
        let away = async |_: &mut Memory, call: Call| {
            without_sessions(call, async |call| match body.starts_with('{') {
                true => call.json(status, body).await,
                false => {
                    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n");
                    call.whole(format!("{head}{body}")).await;
                }
            })
            .await;
        };
        let (report, _) = probed(options(), away).await;
        assert_eq!((report.verdict, report.can_stand_in_front), (Verdict::Unavailable, false), "{status} {body}");
        assert_eq!((&report.facts.legacy, &report.facts.modern), (&None, &None), "{status} {body}");
        assert!(report.to_string().contains(contact), "{report}");
        assert!(report.adds.is_empty() && report.unknown.iter().any(|line| line.contains("run the check again")));
    }
}

#[tokio::test]
async fn a_slow_server_is_taken_for_no_other_kind() {
    let slow = async |_: &mut Memory, call: Call| without_sessions(call, async |_| {}).await;
    let (report, _) = probed(waiting(SOON), slow).await;
    assert_eq!((report.verdict, &report.facts.modern), (Verdict::DoesNotAnswer, &None));
    assert!(!report.to_string().contains("2026-07-28"), "{report}");
}

#[tokio::test]
async fn a_server_whose_one_session_is_taken_says_so() {
    let taken =
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Invalid Request: Server already initialized"}}"#;
    let one = async |_: &mut Memory, call: Call| without_sessions(call, async |call| call.json(400, taken).await).await;
    let (report, _) = probed(options(), one).await;
    assert_eq!((report.verdict, &report.facts.modern), (Verdict::Declines, &None));
    assert!(report.warnings.iter().any(|line| line.contains("one session for its whole process")), "{report}");
}

#[tokio::test]
async fn a_server_of_2026_07_28_that_does_not_serve_initialize_now_may_know_older_revisions() {
    let modern = async |_: &mut Memory, call: Call| match &call.rpc_method()[..] {
        "server/discover" => {
            let result = json!({"supportedVersions": [V2026], "capabilities": {}});
            let message = json!({"jsonrpc": "2.0", "id": id_of(&call), "result": result});
            call.json(200, message.to_string()).await;
        }
        "initialize" => call.status(503).await,
        _ => plain(call, "").await,
    };
    let (report, _) = probed(options(), modern).await;
    assert!(report.facts.modern.is_some() && report.facts.legacy.is_none(), "{report}");
    let text = report.to_string();
    assert!(!text.contains("refuses initialize"), "{text}");
    assert!(report.adds.iter().all(|line| !line.starts_with("clients of the older revisions")), "{text}");
    assert!(report.unknown.iter().any(|line| line.contains("initialize got the status 503")), "{text}");
}

#[tokio::test]
async fn a_server_that_answers_everything_with_a_result_is_of_no_later_revision() {
    let agreeing = async |_: &mut Memory, call: Call| {
        let body = call.json_body();
        let result = match body["method"].as_str() {
            Some("initialize") => initialized(&body["params"]["protocolVersion"]),
            _ => json!({}),
        };
        call.json(200, json!({"jsonrpc": "2.0", "id": body["id"], "result": result}).to_string()).await;
    };
    let posts = async |memory: &mut Memory, call: Call| match &call.method[..] {
        "POST" => agreeing(memory, call).await,
        _ => decline(call).await,
    };
    let (report, _) = probed(options(), posts).await;
    assert!(report.facts.legacy.is_some() && report.facts.modern.is_none(), "{report}");
}

#[tokio::test]
async fn json_of_another_name_is_read_as_clients_read_it() {
    let named = async |_: &mut Memory, call: Call| match result_of(&call) {
        Some(result) => {
            let body = result.to_string();
            let head = format!("content-type: application/json-rpc\r\ncontent-length: {}", body.len());
            call.whole(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}")).await;
        }
        None => decline(call).await,
    };
    let (report, _) = probed(options(), named).await;
    assert_eq!(report.verdict, Verdict::Unseen, "{report}");
    assert_eq!(report.facts.legacy.as_ref().map(|legacy| legacy.answers), Some(Form::Json));
}

#[tokio::test]
async fn an_endless_answer_is_left() {
    let endless = async |_: &mut Memory, call: Call| {
        if call.method != "POST" {
            return decline(call).await;
        }
        let sse = call.sse().await;
        while !sse.is_closed() {
            sse.bytes(format!(": {}\n\n", "x".repeat(64 * 1024))).await;
            tokio::task::yield_now().await;
        }
    };
    let options =
        Options { timeouts: Timeouts { response: Duration::from_secs(3600), ..options().timeouts }, ..options() };
    let (report, _) = probed(options, endless).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
}

/// Starts a listener that answers every request as HTTP/1.1 without TLS.
async fn plain_http() -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut bytes = [0; 1024];
            let _ = tcp.read(&mut bytes).await;
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
        }
    });
    address
}

async fn report_of(url: &str, change: impl FnOnce(&mut Config)) -> Report {
    let mut config = Config::for_upstream(url).expect("a usable URL");
    change(&mut config);
    Report::new(within("the probe ends", check::probe(&config, &options())).await, &config)
}

#[tokio::test]
async fn a_wrong_scheme_is_named_with_the_right_one() {
    let address = plain_http().await;
    let pki = support::pki::Pki::new();
    let report = report_of(&format!("https://{address}/mcp"), |config| config.upstream.tls.ca = Some(pki.ca())).await;
    assert_eq!(
        (report.verdict, &report.facts.contact),
        (Verdict::OtherScheme, &Contact::OtherScheme { scheme: "http" })
    );
    assert!(report.to_string().contains(&format!("give http://{address}/mcp")), "{report}");

    let server = http_versions::TestServer::start(http_versions::HttpVersion::Http1Tls, &pki).await;
    let report = report_of(&server.url().replace("https:", "http:"), |_| {}).await;
    assert_eq!(report.facts.contact, Contact::OtherScheme { scheme: "https" });
    assert!(report.to_string().contains("TLS is spoken there: give https://"), "{report}");
    assert!(!report.can_stand_in_front);
}

#[tokio::test]
async fn a_failed_handshake_is_explained_in_words() {
    let (pki, other) = (support::pki::Pki::new(), support::pki::Pki::new());
    let server = http_versions::TestServer::start(http_versions::HttpVersion::Http1Tls, &pki).await;
    let report = report_of(&server.url(), |config| config.upstream.tls.ca = Some(other.ca())).await;
    assert_eq!(report.verdict, Verdict::NoTls);
    assert!(report.to_string().contains("the certificate is not signed by the authority"), "{report}");

    // In TLS 1.3 the server refuses a client without a certificate when the client's handshake is
    // over.
    let server = http_versions::TestServer::start_asking(http_versions::HttpVersion::Http1Tls, &pki, true).await;
    let report = report_of(&server.url(), |config| config.upstream.tls.ca = Some(pki.ca())).await;
    assert_eq!(report.verdict, Verdict::NoTls, "{report}");
    assert!(report.to_string().contains("wants a client certificate"), "{report}");
}

#[tokio::test]
async fn an_endpoint_at_another_path_is_found_and_its_session_closed() {
    let elsewhere = async |memory: &mut Memory, call: Call| match (&call.method[..], &call.target[..]) {
        ("POST", "/api/mcp") => plain(call, SESSION).await,
        ("DELETE", "/api/mcp") => call.status(200).await,
        _ => {
            memory.asked.push("elsewhere".to_owned());
            call.status(404).await;
        }
    };
    let (report, memory) = probed(Options { end_sessions: true, ..options() }, elsewhere).await;
    assert_eq!(report.verdict, Verdict::NoMcp);
    assert_eq!(report.facts.endpoint_at.as_deref(), Some("/api/mcp"));
    assert!(report.warnings.iter().any(|line| line.ends_with("/api/mcp")), "{:?}", report.warnings);
    assert_eq!(memory.count("DELETE /api/mcp"), 1);

    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| call.status(404).await).await;
    assert_eq!(report.facts.endpoint_at, None);
    assert!(report.warnings.iter().any(|line| line.contains("nothing at this path")), "{:?}", report.warnings);
}
