//! Watch of a session: pings of the server, and its end of a session whose client is silent.

use super::*;
use mcp_resume::check::{SessionState, Watch};

/// ID of the probe's last request before the watch.
const LAST: u64 = 61;

/// Habits of a server with sessions.
#[derive(Clone, Copy, Default)]
struct Habits {
    /// Pings that it sends: the first after the last request of the probe, the others after its
    /// answer.
    pings: usize,
    /// True if it has no GET stream.
    has_no_stream: bool,
    /// True if it ends the GET stream after that.
    ends_stream: bool,
    /// True if it ends the session with that.
    ends_session: bool,
}

/// A server of these habits, and the state of its only session.
#[derive(Default)]
struct Server {
    habits: Habits,
    stream: Option<Sse>,
    pinged: usize,
    is_over: bool,
}

impl Server {
    async fn serve(&mut self, call: Call) {
        let has_ended = self.is_over && call.header("mcp-session-id") == Some("s-secret");
        let is_unknown = call.header("mcp-session-id").is_some_and(|session| session != "s-secret");
        match &call.rpc_method()[..] {
            _ if has_ended || is_unknown => call.json(404, SESSION_NOT_FOUND).await,
            "GET" if call.target == "/mcp" && call.header("mcp-session-id").is_some() => self.listen(call).await,
            "response" => {
                assert_eq!(call.json_body(), json!({"jsonrpc": "2.0", "id": "p0", "result": {}}));
                call.status(202).await;
                while self.pinged < self.habits.pings {
                    self.ping().await;
                }
                self.end().await;
            }
            _ => {
                let is_last = call.method == "POST" && id_of(&call) == LAST;
                plain(call, SESSION).await;
                if is_last && self.habits.pings > 0 {
                    self.ping().await;
                } else if is_last && self.habits.has_no_stream {
                    self.end().await;
                }
            }
        }
    }

    async fn listen(&mut self, call: Call) {
        if self.habits.has_no_stream {
            return call.status(405).await;
        }
        let stream = self.stream.insert(call.sse().await);
        stream.event(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    }

    async fn ping(&mut self) {
        let stream = self.stream.as_ref().expect("an open stream");
        stream.event(json!({"jsonrpc": "2.0", "id": format!("p{}", self.pinged), "method": "ping"}).to_string()).await;
        self.pinged += 1;
    }

    async fn end(&mut self) {
        self.is_over = self.habits.ends_session;
        if self.habits.ends_stream
            && let Some(stream) = self.stream.take()
        {
            stream.end().await;
        }
    }
}

const SESSION_NOT_FOUND: &str = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;

/// Watches a server of these habits for this time, which is too long where the server ends the
/// stream.
async fn watched(habits: Habits, time: Duration) -> (Report, Memory) {
    let options = Options { timeouts: Timeouts { watch: time, ..options().timeouts }, ..options() };
    let server = tokio::sync::Mutex::new(Server { habits, ..Server::default() });
    probed(options, async |_: &mut Memory, call: Call| server.lock().await.serve(call).await).await
}

const LONG: Duration = Duration::from_secs(3600);

fn watch(report: &Report) -> Watch {
    report.facts.watch.expect("the session was watched")
}

#[tokio::test]
async fn a_server_that_does_nothing_is_reported_with_the_time_of_the_watch() {
    let (report, memory) = watched(Habits::default(), SOON).await;
    let watch = watch(&report);
    assert_eq!((watch.stream, watch.stream_ended, watch.pings), (true, false, 0));
    assert_eq!((watch.unanswered_ms, watch.session), (None, SessionState::Lives));
    assert!(watch.silent_ms.is_some_and(|silent| (100..=watch.watched_ms).contains(&silent)), "{watch:?}");
    assert_eq!(memory.count("DELETE /mcp"), 0, "the watch ends no session");
    assert!(report.unknown.iter().any(|line| line.contains("--watch SECS")), "{report}");
}

#[tokio::test]
async fn pings_are_answered_until_a_second_one_and_the_session_may_end_of_that() {
    let habits = Habits { pings: 3, ends_stream: true, ends_session: true, ..Habits::default() };
    let (report, memory) = watched(habits, LONG).await;
    assert_eq!(memory.count("response"), 1, "{:?}", memory.asked);
    let watch = watch(&report);
    assert_eq!((watch.pings, watch.stream_ended, watch.session), (3, true, SessionState::Ended));
    assert!(watch.ping_interval_ms.is_some() && watch.unanswered_ms.is_some(), "{watch:?}");
    let text = report.to_string();
    assert!(text.contains("after a ping without an answer"), "{text}");
    assert!(text.contains("the server's pings are answered where no client can"), "{text}");
}

#[tokio::test]
async fn a_server_that_pings_and_keeps_the_session_is_told_from_one_that_ends_it() {
    let (report, _) = watched(Habits { pings: 2, ..Habits::default() }, SOON).await;
    let watch = watch(&report);
    assert_eq!((watch.pings, watch.session), (2, SessionState::Lives));
    assert!(report.unknown.iter().any(|line| line.contains("answers no ping for longer")), "{report}");
}

#[tokio::test]
async fn a_session_that_ends_in_silence_names_the_keys_against_it() {
    let habits = Habits { pings: 1, ends_stream: true, ends_session: true, ..Habits::default() };
    let (report, _) = watched(habits, LONG).await;
    let watch = watch(&report);
    assert_eq!((watch.pings, watch.stream_ended, watch.session), (1, true, SessionState::Ended));
    assert_eq!((watch.ping_interval_ms, watch.unanswered_ms), (None, None));
    assert!(report.warnings.iter().any(|line| line.contains("upstream.keepalive_secs")), "{report}");
}

#[tokio::test]
async fn a_stream_that_ends_alone_is_no_end_of_the_session() {
    let (report, _) = watched(Habits { pings: 1, ends_stream: true, ..Habits::default() }, LONG).await;
    let watch = watch(&report);
    assert_eq!((watch.stream, watch.stream_ended, watch.session), (true, true, SessionState::Lives));
}

#[tokio::test]
async fn without_a_get_stream_the_end_of_the_session_is_seen_after_the_watch() {
    let (report, _) = watched(Habits { has_no_stream: true, ends_session: true, ..Habits::default() }, SOON).await;
    let watch = watch(&report);
    assert_eq!((watch.stream, watch.stream_ended, watch.session), (false, false, SessionState::Ended));
    assert!(report.to_string().contains("there was no GET stream for them"), "{report}");
}

/// As Playwright's server does, which pings from the first call of a tool on.
#[tokio::test]
async fn pings_during_the_requests_are_answered_so_that_the_session_lives() {
    let server = tokio::sync::Mutex::new((None::<Sse>, None::<Call>));
    let pinging = async |memory: &mut Memory, call: Call| {
        let (stream, calling) = &mut *server.lock().await;
        match &call.rpc_method()[..] {
            "GET" if call.header("mcp-session-id").is_some() => *stream = Some(call.sse().await),
            "tools/call" => {
                *calling = Some(call);
                let stream = stream.as_ref().expect("the stream is held while the tool runs");
                stream.event(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#).await;
            }
            "response" => {
                call.status(202).await;
                // The second one.
                let stream = stream.as_ref().expect("an open stream");
                match memory.count("response") {
                    1 => stream.event(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await,
                    _ => plain(calling.take().expect("a running call"), SESSION).await,
                }
            }
            _ => plain(call, SESSION).await,
        }
    };
    let asking = Options { timeouts: Timeouts { watch: SOON, ..with_tool().timeouts }, ..with_tool() };
    let (report, memory) = probed(asking, pinging).await;
    assert_eq!(memory.count("response"), 2, "{:?}", memory.asked);
    assert_eq!(report.facts.tool.as_ref().map(|run| run.outcome), Some(check::ToolOutcome::Result));
    let watch = watch(&report);
    assert_eq!((watch.pings, watch.unanswered_ms, watch.session), (2, None, SessionState::Lives));
    assert!(watch.ping_interval_ms.is_some());
}

#[tokio::test]
async fn nothing_is_watched_without_time_or_without_a_session() {
    let (report, memory) = watched(Habits::default(), Duration::ZERO).await;
    assert_eq!(report.facts.watch, None);
    assert_eq!(memory.count("GET /mcp"), 2, "one without a session, and one that is held: {:?}", memory.asked);
    let options = Options { timeouts: Timeouts { watch: LONG, ..options().timeouts }, ..options() };
    let (report, _) = probed(options, async |_: &mut Memory, call: Call| plain(call, "").await).await;
    assert_eq!(report.facts.watch, None);
}
