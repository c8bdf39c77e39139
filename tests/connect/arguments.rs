//! Arguments and configuration. Wrong ones are the answer to `initialize`.

use std::process::Stdio;
use std::time::Duration;

use mcp_resume::connect::{Ended, Options};
use serde_json::json;
use tokio::io::AsyncWriteExt;

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

#[tokio::test]
async fn a_program_with_wrong_arguments_answers_and_ends_with_two() {
    let upstream = Upstream::start().await;
    let url = upstream.url();
    for (arguments, word) in [
        (&[&*url, "--header", "X-Key: ${MCP_RESUME_TEST_NOPE}"][..], "MCP_RESUME_TEST_NOPE"),
        (&[&*url, "--device-code"][..], "--device-code"),
        (&[&*url, "--wait-secs", "hidden"][..], "--wait-secs"),
        (&[&*url, "--no-such-option-hidden"][..], "--help"),
        (&[&*url, "--config", "/nowhere/hidden.toml"][..], "--config"),
    ] {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
        command.arg("connect").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(format!("{}\n", initialize(V2025_11)).as_bytes()).await.unwrap();
        drop(input);
        let output = within("the end", child.wait_with_output()).await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{word}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line");
        let text = error_of(&answer);
        assert!(text.contains(word) && !text.contains("hidden"), "{text}");
    }
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn details_are_logged_to_a_file_without_secrets() {
    let mut upstream = Upstream::start().await;
    let home = std::env::temp_dir().join(format!("mcp-resume-debug-{}", std::process::id()));
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["connect", &upstream.url(), "--debug", "--header", "Authorization: Bearer hidden-secret"]);
    command.env("MCP_RESUME_HOME", &home).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{}\n", initialize(V2025_11)).as_bytes()).await.unwrap();
    upstream
        .expect("initialize")
        .await
        .json_with(200, "mcp-session-id: s-hidden-secret\r\n", handshake(V2025_11))
        .await;
    drop(input);
    upstream.expect("DELETE").await.status(200).await;
    let output = within("the end", child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    let logged = std::fs::read_to_string(home.join("state/connect-debug.log")).unwrap();
    assert!(logged.contains("logging details") && said.contains("visible in the list of processes"), "{said}");
    assert!(logged == said && !logged.contains("hidden-secret"), "{logged}");
    std::fs::remove_dir_all(&home).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_impatient_host_has_empty_lists_four_seconds_after_its_start() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let impatient = vec!["hurried*".to_owned()];
    let mut host = Host::start(Options { impatient, ..options(&upstream.url()) });
    let info = json!({"name": "hurried-host", "version": "1"});
    let params = json!({"protocolVersion": V2025_11, "capabilities": {}, "clientInfo": info});
    host.say(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()).await;
    assert!(host.hear().await["result"].is_object());
    let began = tokio::time::Instant::now();
    host.say(&initialized()).await;
    host.say(&request(1, "tools/list")).await;
    assert_eq!(host.hear().await["result"], json!({"tools": []}));
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(5), "{waited:?}");
    // The time is up for all lists.
    host.say(&request(2, "prompts/list")).await;
    assert_eq!(host.hear().await["result"], json!({"prompts": []}));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_caller_that_waits_for_the_server_hears_of_it() {
    let mut upstream = Upstream::start().await;
    let every_second = ("MCP_RESUME_DELIVERY__PROGRESS_AFTER_SECS".to_owned(), "1".to_owned());
    let mut host = Host::start(Options { variables: vec![every_second], ..options(&upstream.url()) });
    host.initialize(&mut upstream).await;
    host.say(&initialized()).await;
    upstream.expect("GET").await.status(405).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    upstream.refuse().await;
    let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": "p"}});
    host.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()).await;
    let mut last = -1.0;
    for _ in 0..2 {
        let heard = host.hear().await;
        assert_eq!(heard["params"]["progressToken"], "p", "{heard}");
        let progress = heard["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{progress} after {last}");
        last = progress;
    }
    upstream.listen_again().await;
    upstream.expect("tools/call").await.json(200, content(1, "now")).await;
    loop {
        let heard = host.hear().await;
        if heard["id"] == 1 {
            assert_eq!(text_of(&heard), "now");
            break;
        }
    }
}
