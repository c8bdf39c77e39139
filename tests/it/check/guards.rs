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
