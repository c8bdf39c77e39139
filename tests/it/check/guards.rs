//! Protection of the server: hosts, origins, credentials.

use super::*;

#[tokio::test]
async fn a_foreign_host_and_a_foreign_origin_are_tried() {
    let strict = async |_: &mut Memory, call: Call| {
        let own = call.header("host").is_some_and(|host| host.starts_with("127.0.0.1"));
        match (own, call.header("origin")) {
            (false, _) => call.status(421).await,
            (true, Some(_)) => call.status(403).await,
            (true, None) => plain(call, SESSION).await,
        }
    };
    let (report, _) = probed(options(), strict).await;
    assert_eq!(report.facts.foreign_host, Guard::Refused { status: 421, scheme: None });
    assert_eq!(report.facts.foreign_origin, Guard::Refused { status: 403, scheme: None });
    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| plain(call, "").await).await;
    assert_eq!((report.facts.foreign_host, report.facts.foreign_origin), (Guard::Accepted, Guard::Accepted));
}

async fn guarded(_: &mut Memory, call: Call) {
    match call.header("authorization") {
        Some("Bearer hidden") => plain(call, SESSION).await,
        _ => call.status_with(401, "www-authenticate: Bearer error=\"invalid_token\"\r\n").await,
    }
}

#[tokio::test]
async fn a_server_that_wants_credentials_says_so_and_shows_itself_to_those_who_have_them() {
    let (report, _) = probed(options(), guarded).await;
    assert_eq!(report.verdict, Verdict::WantsCredentials);
    assert!(!report.can_stand_in_front);

    let headers = check::parse_headers(&["Authorization: Bearer hidden".to_owned()]).expect("a header");
    let (report, _) = probed(Options { headers, ..options() }, guarded).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    assert_eq!(report.facts.anonymous, Guard::Refused { status: 401, scheme: Some("Bearer".to_owned()) });
    let json = serde_json::to_string(&report).expect("a report");
    assert!(!report.to_string().contains("hidden") && !json.contains("hidden"));
}

#[tokio::test]
async fn a_limit_of_requests_is_no_refusal_of_what_they_are() {
    let limited = async |_: &mut Memory, call: Call| match &call.rpc_method()[..] {
        "ping" => call.json(429, r#"{"error":"slow down please"}"#).await,
        _ => plain(call, SESSION).await,
    };
    let (report, _) = probed(options(), limited).await;
    assert_eq!((&report.facts.foreign_host, &report.facts.foreign_origin), (&Guard::Unknown, &Guard::Unknown));
    let legacy = report.facts.legacy.as_ref().expect("it initialized");
    assert_eq!(legacy.unknown_session, UnknownSession::Unknown);
    assert!(!report.to_string().contains("refusals"), "{report}");
}

#[tokio::test]
async fn a_refusal_is_shown_in_its_first_two_hundred_characters() {
    let long = async |_: &mut Memory, call: Call| {
        let body = format!("no{} token", "o".repeat(190));
        let head = format!("HTTP/1.1 401 X\r\ncontent-type: text/plain\r\ncontent-length: {}", body.len());
        call.whole(format!("{head}\r\n\r\n{body}")).await;
    };
    let (report, _) = probed(options(), long).await;
    let words = report.facts.refusal.expect("words").text;
    assert!(words.ends_with(" token"), "{words}");
}

/// Returns the report on a server that refuses an unknown session with this response, for a proxy
/// with these refusals.
async fn forgetful(status: u16, body: &str, refusals: &[&str]) -> Report {
    let refusals = refusals.iter().map(|line| line.parse().expect("a refusal")).collect();
    let personality = async |_: &mut Memory, call: Call| {
        let is_unknown = call.header("mcp-session-id").is_some_and(|name| name != "s-secret");
        if is_unknown { call.json(status, body).await } else { plain(call, SESSION).await }
    };
    let change = |config: &mut Config| config.sessions.refusals = refusals;
    probed_with(options(), change, personality).await.0
}

#[tokio::test]
async fn the_line_for_an_unknown_refusal_makes_it_known() {
    for (status, body) in [
        (404, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"Sitzung ung\u00fcltig"}}"#),
        (404, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"Sitzung ungültig"}}"#),
        (404, r#"{"detail":"Visitor <b>gone<\/b> & co\/op"}"#),
        (404, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"Your \"session\" is \\gone\\"}}"#),
        (410, r#"{"reason":"visitor left"}"#),
        (403, "No visitor of that name"),
    ] {
        let report = forgetful(status, body, &[]).await;
        let line =
            report.warnings.iter().find_map(|line| line.split_once("refusals = ")).map(|(_, list)| list.to_owned());
        let line = line.unwrap_or_else(|| panic!("{body}: {report}"));
        let table: toml::Table = format!("refusals = {line}").parse().expect("TOML");
        let refusal = table["refusals"][0].as_str().expect("a text").to_owned();
        assert!(refusal.len() > "404 session".len(), "{refusal} is too wide");
        let report = forgetful(status, body, &[&refusal]).await;
        let legacy = report.facts.legacy.as_ref().expect("it initialized");
        assert_eq!(legacy.unknown_session, UnknownSession::Recognised { status }, "{body}: {refusal}");
        assert!(
            report.adds.iter().any(|line| line.starts_with("a session that the server has forgotten")),
            "{refusal}"
        );
    }
    let report = forgetful(404, r#"{"detail":"Not Found"}"#, &[]).await;
    assert!(report.warnings.iter().any(|line| line.contains("without words of its own")), "{report}");
}

const PUBLIC: &str = "https://mcp.example/tools/mcp";

/// A server that asks for tokens, with this metadata and challenge.
async fn protected(call: Call, metadata: Option<&str>, challenge: &str) {
    match &call.target[..] {
        "/.well-known/oauth-protected-resource/mcp" if let Some(metadata) = metadata => call.json(200, metadata).await,
        path if path.starts_with("/.well-known/") => call.status(404).await,
        _ if call.header("authorization").is_some_and(|token| !token.contains("unwanted")) => {
            plain(call, SESSION).await
        }
        _ => call.status_with(401, challenge).await,
    }
}

/// Returns the report on such a server, for a proxy with `listen.public_url`.
async fn published(token: Option<&str>, metadata: Option<&str>, challenge: &str) -> Report {
    let headers = token.map(|token| format!("Authorization: Bearer {token}"));
    let headers = check::parse_headers(&headers.into_iter().collect::<Vec<_>>()).expect("a header");
    let public =
        |config: &mut Config| config.listen.public_url = Some(std::sync::Arc::new(PUBLIC.parse().expect("a URL")));
    let personality = async |_: &mut Memory, call: Call| protected(call, metadata, challenge).await;
    probed_with(Options { headers, ..options() }, public, personality).await.0
}

#[tokio::test]
async fn the_names_of_a_protected_server_are_compared_with_the_public_url() {
    const OWN: &str = r#"{"resource":"http://127.0.0.1:3000/mcp","authorization_servers":["https://id.example"]}"#;
    const FOREIGN: &str = r#"{"resource":"https://other.example/mcp","authorization_servers":["https://id.example"]}"#;
    const BARE: &str = "www-authenticate: Bearer\r\n";
    const AWAY: &str = "www-authenticate: Bearer resource_metadata=\"https://other.example/m\"\r\n";
    let sentences = [
        "the metadata of the resource names https://other.example/mcp",
        "clients find none at /.well-known/oauth-protected-resource/tools/mcp",
        "names its metadata at https://other.example,",
    ];
    for token in [None, Some("opaque")] {
        for (metadata, challenge, told) in [
            (Some(OWN), BARE, [false, false, false]),
            (Some(FOREIGN), BARE, [true, false, false]),
            (None, BARE, [false, true, false]),
            (Some(OWN), AWAY, [false, false, true]),
        ] {
            let report = published(token, metadata, challenge).await;
            let found = sentences.map(|sentence| report.warnings.iter().any(|line| line.contains(sentence)));
            assert_eq!(found, told, "{token:?} {metadata:?} {challenge}: {report}");
        }
    }
}

#[tokio::test]
async fn a_token_is_told_to_be_for_the_public_url_or_not() {
    const OWN: &str = r#"{"resource":"http://127.0.0.1:3000/mcp"}"#;
    let jwt = |audience: &str, signature: &str| {
        let encode = |text: String| base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, text);
        format!(
            "{}.{}.{signature}",
            encode(r#"{"alg":"none"}"#.to_owned()),
            encode(json!({"aud": audience}).to_string())
        )
    };
    for (token, sentence) in [
        (None, "whether the server takes tokens for https://mcp.example/tools/mcp was not tried".to_owned()),
        (Some(jwt(PUBLIC, "x")), format!("the server takes the token that was given, which is for {PUBLIC}")),
        (
            Some(jwt("api", "x")),
            format!("which is for api: whether it takes those that clients get for {PUBLIC} was not tried"),
        ),
        (Some("opaque".to_owned()), format!("whose text does not say whether it is for {PUBLIC}")),
        (
            Some(jwt(PUBLIC, "unwanted")),
            format!("the server refuses the token that was given; if it was issued for {PUBLIC}"),
        ),
        (Some(jwt("api", "unwanted")), format!("which is for api: try one that was issued for {PUBLIC}")),
    ] {
        let report = published(token.as_deref(), Some(OWN), "www-authenticate: Bearer\r\n").await;
        let told = report.warnings.iter().filter(|line| line.contains("token")).collect::<Vec<_>>();
        assert!(told.len() == 1 && told[0].contains(&sentence), "{token:?}: {told:?}");
    }
}

#[tokio::test]
async fn documents_of_an_authorization_server_are_not_what_the_public_url_changes() {
    let documented = async |_: &mut Memory, call: Call| {
        let origin = format!("http://{}", call.header("host").unwrap_or_default());
        match &call.target[..] {
            "/.well-known/openid-configuration" => {
                let methods = json!(["S256"]);
                let document = json!({"issuer": origin, "code_challenge_methods_supported": methods});
                call.json(200, document.to_string()).await;
            }
            path if path.starts_with("/.well-known/") => call.json(404, "{}").await,
            _ => plain(call, "").await,
        }
    };
    let (report, _) = probed(options(), documented).await;
    assert_eq!(report.warnings.iter().filter(|line| line.contains("listen.public_url")).count(), 0, "{report}");
    let warning = "/.well-known/openid-configuration names the server's own origin, and the proxy does not rewrite";
    assert!(report.warnings.iter().any(|line| line.starts_with(warning)), "{report}");
}

#[tokio::test]
async fn oauth_documents_that_name_the_upstream_are_warned_of() {
    let documented = async |_: &mut Memory, call: Call| {
        let origin = format!("http://{}", call.header("host").unwrap_or_default());
        match &call.target[..] {
            "/.well-known/oauth-protected-resource/mcp" => {
                call.json(200, json!({"resource": format!("{origin}/mcp")}).to_string()).await;
            }
            "/.well-known/oauth-authorization-server" => call.json(200, r#"{"issuer":"https://id.test"}"#).await,
            path if path.starts_with("/.well-known/") => call.json(404, "{}").await,
            _ => plain(call, "").await,
        }
    };
    let (report, _) = probed(options(), documented).await;
    let found: Vec<_> = report.facts.oauth.iter().map(|found| (&found.path[..], found.names_upstream)).collect();
    let expected =
        [("/.well-known/oauth-protected-resource/mcp", true), ("/.well-known/oauth-authorization-server", false)];
    assert_eq!(found, expected);
    assert_eq!(report.warnings.iter().filter(|line| line.contains("listen.public_url")).count(), 1);
    assert_eq!(report.warnings.iter().filter(|line| line.contains("does not list S256")).count(), 1);
}
