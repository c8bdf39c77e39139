//! Servers on HTTP+SSE that are asked as such.

use super::*;
use mcp_resume::config::Flags;
use mcp_resume::sidecar;

/// A server whose sessions are event streams at `/sse`.
struct Old {
    upstream: support::Upstream,
    /// Event streams, by the numbers in the places of their POSTs.
    streams: Vec<Sse>,
    asked: Vec<String>,
}

impl Old {
    async fn start() -> Self {
        Self { upstream: support::Upstream::start().await, streams: Vec::new(), asked: Vec::new() }
    }

    fn config(&self, flags: impl FnOnce(String) -> Flags) -> Config {
        let url = format!("http://{}/sse?key=hunter2", self.upstream.addr());
        Config::load(None, [], flags(url)).expect("a configuration")
    }

    /// Answers requests without end.
    async fn serve(&mut self) {
        loop {
            let call = self.upstream.next().await;
            self.asked.push(format!("{} {}", call.method, call.target));
            self.answer(call).await;
        }
    }

    async fn answer(&mut self, call: Call) {
        if call.method == "GET" && call.target == "/sse?key=hunter2" {
            let events = call.sse().await;
            events.bytes(format!("event: endpoint\ndata: /messages?s={}\n\n", self.streams.len())).await;
            return self.streams.push(events);
        }
        let number = call.target.strip_prefix("/messages?s=").and_then(|number| number.parse::<usize>().ok());
        let Some(number) = number else { return call.status(404).await };
        let result = result_of(&call);
        call.status(202).await;
        if let Some(result) = result {
            self.streams[number].event(result.to_string()).await;
        }
    }

    async fn probed(&mut self, config: &Config) -> Report {
        let channels = sidecar::channels(config).expect("channels");
        let options = Options { channels, ..options() };
        tokio::select! {
            facts = within("the probe ends", check::probe(config, &options)) => Report::new(facts, config),
            () = self.serve() => unreachable!("a server has no end"),
        }
    }
}

fn by_upstream_sse(url: String) -> Flags {
    Flags { upstream_sse: Some(url), ..Flags::default() }
}

#[tokio::test]
async fn a_server_on_http_sse_is_asked_on_event_streams() {
    let mut server = Old::start().await;
    let config = server.config(by_upstream_sse);
    let report = server.probed(&config).await;
    let text = report.to_string();
    assert_eq!((report.verdict, report.can_stand_in_front), (Verdict::CannotResume, true), "{text}");
    let stream = report.facts.event_stream.as_ref().expect("an event stream");
    assert_eq!(stream.endpoint.as_deref(), Some("/messages"));
    assert!(stream.ping_ms.is_some());
    assert_eq!(report.facts.tools.as_ref().map(|tools| tools.count), Some(2));
    let address = server.upstream.addr();
    for part in [
        "it speaks MCP over HTTP+SSE of 2024-11-05",
        "endpoint        /messages\n",
        "ping            answered after",
        "upstream_broke",
        &format!("serve it by --upstream-sse http://{address}/sse"),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains("?s=") && !text.contains("dead sessions"), "{text}");
    for stream in &server.streams {
        stream.closed().await;
    }
}

#[tokio::test]
async fn a_server_on_http_sse_is_recognised_at_the_url_of_another() {
    let mut server = Old::start().await;
    let mut config = server.config(|url| Flags { upstream: Some(url), ..Flags::default() });
    let report = server.probed(&config).await;
    assert_eq!(report.verdict, Verdict::HttpSseOnly);
    assert!(check::is_http_sse_alone(&report.facts, &config));
    config.upstream.sse = config.upstream.recognisable.take();
    let report = server.probed(&config).await;
    assert_eq!((report.verdict, report.can_stand_in_front), (Verdict::CannotResume, true), "{report}");
}

#[tokio::test]
async fn a_server_without_an_event_stream_is_none_on_http_sse() {
    let mut server = Old::start().await;
    let url = format!("http://{}/elsewhere", server.upstream.addr());
    let config = server.config(|_| by_upstream_sse(url));
    let report = server.probed(&config).await;
    assert_eq!((report.verdict, report.can_stand_in_front), (Verdict::NoHttpSse, false), "{report}");
    assert!(report.to_string().contains("the server's event stream"), "{report}");
}
