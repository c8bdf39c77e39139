//! Wrong arguments are the answer to `initialize`.

use mcp_resume::connect::{Ended, Options};

use super::host::*;
use super::support::*;

#[tokio::test]
async fn an_unset_variable_is_the_answer_to_initialize() {
    let upstream = Upstream::start().await;
    let headers = vec!["X-Key: ${MCP_RESUME_TEST_NOPE}".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    let answer = host.hear().await;
    assert_eq!(answer["id"], 0);
    assert!(error_of(&answer).contains("MCP_RESUME_TEST_NOPE"), "{answer}");
    host.say(&initialized()).await;
    host.say(&request(1, "tools/list")).await;
    assert!(error_of(&host.hear().await).contains("MCP_RESUME_TEST_NOPE"));
    host.close_input();
    assert_eq!(host.end().await, (vec![], Ended::Refused));
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn headers_reach_the_server() {
    let mut upstream = Upstream::start().await;
    let headers = vec!["X-Team:blue".to_owned(), "User-Agent: mine".to_owned()];
    let mut host = Host::start(Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    let call = upstream.expect("initialize").await;
    assert_eq!((call.header("x-team"), call.header("user-agent")), (Some("blue"), Some("mine")));
}
