//! Ability of the server to resume its streams.

use super::*;

#[tokio::test]
async fn a_server_without_ids_cannot_resume() {
    let (report, memory) = probed(options(), async |_: &mut Memory, call: Call| plain(call, SESSION).await).await;
    assert_eq!(report.verdict, Verdict::CannotResume);
    let Facts { legacy, server, tools, .. } = &report.facts;
    let legacy = legacy.as_ref().expect("it initialized");
    assert_eq!(legacy.revisions, ["2025-11-25", "2025-06-18", "2025-03-26"]);
    assert!(legacy.session && !legacy.numbered && !legacy.primed);
    assert_eq!((legacy.answers, legacy.standalone), (Form::EventStream, Standalone::Refused { status: 405 }));
    assert_eq!(server.as_ref().map(|server| &server.name[..]), Some("scripted"));
    let tools = tools.as_ref().expect("it listed them");
    assert_eq!((tools.count, &tools.with_output_schema[..]), (2, &["exact".to_owned()][..]));
    assert_eq!(memory.count("DELETE /mcp"), 0, "a server may open no other session after it: {:?}", memory.asked);
    assert!(!report.to_string().contains("s-secret"));
}

#[tokio::test]
async fn the_sessions_of_the_probe_are_ended_if_the_user_says_so() {
    let options = Options { end_sessions: true, ..options() };
    let (_, memory) = probed(options, async |_: &mut Memory, call: Call| plain(call, SESSION).await).await;
    assert_eq!(memory.count("DELETE /mcp"), 3, "{:?}", memory.asked);
}

#[tokio::test]
async fn the_reaction_to_an_unknown_session_is_reported() {
    let gone = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;
    let nameless = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No login for 7f"}}"#;
    let recognised = |status| UnknownSession::Recognised { status };
    let unrecognised =
        |status, words: Option<&str>| UnknownSession::Unrecognised { status, words: words.map(Into::into) };
    let cases = [
        (404, gone, recognised(404), "refused (404), as mcp-resume knows it", ""),
        (
            400,
            "Session expired",
            unrecognised(400, Some("session expired")),
            "refused (400), in words of its own",
            r#"refusals = ["400 session expired"]"#,
        ),
        (
            404,
            r#"{"detail":"no visitor \"x\""}"#,
            unrecognised(404, Some("no visitor")),
            "refused (404), in words of its own",
            r#"refusals = ["404 no visitor"]"#,
        ),
        (404, "", unrecognised(404, None), "refused (404), without words", "the next one finds a new session"),
        (
            200,
            nameless,
            unrecognised(200, Some("no login for")),
            "refused (200), in words of its own",
            r#"refusals = ["200 no login for"]"#,
        ),
        (403, "{}", unrecognised(403, None), "refused (403), without words", "do not outlive its restarts"),
    ];
    for (status, body, expected, row, advice) in cases {
        let forgetful = async |_: &mut Memory, call: Call| {
            let is_unknown = call.header("mcp-session-id").is_some_and(|session| session != "s-secret");
            if is_unknown { call.json(status, body).await } else { plain(call, SESSION).await }
        };
        let (report, _) = probed(options(), forgetful).await;
        assert_eq!(report.facts.legacy.as_ref().map(|legacy| &legacy.unknown_session), Some(&expected));
        assert!(report.to_string().contains(row), "{report}");
        let warns = |words| report.warnings.iter().any(|line| line.contains(words));
        assert_eq!(warns("a session that it does not know"), !advice.is_empty(), "{report}");
        assert!(advice.is_empty() || warns(advice), "{report}");
    }
    let (report, _) = probed(options(), async |_: &mut Memory, call: Call| plain(call, SESSION).await).await;
    assert_eq!(report.facts.legacy.map(|legacy| legacy.unknown_session), Some(UnknownSession::Accepted));
}

#[tokio::test]
async fn a_server_that_resumes_is_tried_after_its_answer_within_a_call_and_later() {
    let faithful = async |memory: &mut Memory, call: Call| numbering(memory, call, Replay::Whole).await;
    let (report, memory) = probed(with_tool(), faithful).await;
    assert_eq!(report.verdict, Verdict::Resumes);
    let resumption = &report.facts.resumption;
    let complete = Some(ResumeOutcome::Complete);
    assert_eq!((resumption.finished, resumption.running, resumption.later), (complete, complete, complete));
    assert_eq!((memory.count("resume"), memory.count("tools/call")), (3, 3));
    assert!(report.facts.legacy.as_ref().expect("it initialized").primed);
    let run = report.facts.tool.as_ref().expect("it ran");
    assert_eq!((run.messages, run.numbered), (2, true));
}

#[tokio::test]
async fn a_server_that_loses_or_repeats_resumes_unreliably() {
    for (replay, outcome) in [
        (Replay::WithoutTheResponse, ResumeOutcome::Lost { got: 1, of: 2 }),
        (Replay::FromTheStart, ResumeOutcome::Repeated),
        (Replay::Refused, ResumeOutcome::Refused { status: 409 }),
    ] {
        let unfaithful = async |memory: &mut Memory, call: Call| numbering(memory, call, replay).await;
        let (report, _) = probed(with_tool(), unfaithful).await;
        assert_eq!(report.verdict, Verdict::ResumesUnreliably);
        assert_eq!(report.facts.resumption.running, Some(outcome));
        assert!(report.can_stand_in_front);
    }
}

#[tokio::test]
async fn a_resume_that_is_never_answered_ends() {
    let mute = async |memory: &mut Memory, call: Call| match call.header("last-event-id") {
        Some(_) => memory.asked.push("resume".to_owned()),
        None => numbering(memory, call, Replay::Whole).await,
    };
    let (report, _) = probed(waiting(LATER), mute).await;
    assert_eq!(report.facts.resumption.finished, Some(ResumeOutcome::Unanswered));
    assert_eq!(report.verdict, Verdict::ResumesUnreliably);
}

#[tokio::test]
async fn a_tool_that_fails_is_run_once() {
    let failing = async |_: &mut Memory, call: Call| match &call.rpc_method()[..] {
        "tools/call" => {
            let id = id_of(&call);
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no such tool"}});
            call.json(200, error.to_string()).await;
        }
        _ => plain(call, "").await,
    };
    let (report, memory) = probed(with_tool(), failing).await;
    assert_eq!(memory.count("tools/call"), 1);
    assert!(report.unknown.iter().any(|line| line.contains("the tool gave no result")), "{:?}", report.unknown);
}

#[tokio::test]
async fn a_tool_that_the_server_does_not_list_is_not_run() {
    let tool = Some(check::Tool { name: "slwo".to_owned(), arguments: serde_json::Map::new() });
    let ask = Options { tool, ..options() };
    let (report, memory) = probed(ask, async |_: &mut Memory, call: Call| plain(call, "").await).await;
    assert_eq!(report.facts.unknown_tool.as_deref(), Some("slwo"));
    assert_eq!(report.facts.tools.expect("it listed them").names, ["slow", "exact"]);
    assert_eq!(memory.count("tools/call"), 0);
}
