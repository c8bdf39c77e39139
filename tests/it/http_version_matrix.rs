//! A call cut and resumed over everything that either side can speak.

use crate::support::http_versions::*;
use crate::support::pki::Pki;
use crate::support::*;

const SESSION: [(&str, &str); 2] = [("mcp-session-id", "s-1"), ("mcp-protocol-version", V2025_11)];

/// A proxy between two that speak so.
struct Setup {
    down: HttpVersion,
    up: HttpVersion,
    pki: Pki,
    proxy: Proxy,
    server: TestServer,
}

impl Setup {
    async fn start(down: HttpVersion, up: HttpVersion) -> Setup {
        let pki = Pki::new();
        let server = TestServer::start(up, &pki).await;
        let proxy = Proxy::to_url(&server.url(), with_versions(down, up, &pki)).await;
        Setup { down, up, pki, proxy, server }
    }

    async fn client(&self) -> TestClient {
        TestClient::connect(self.proxy.addr, self.down, &self.pki).await
    }

    /// A call whose stream has begun.
    async fn begin(&mut self, client: &mut TestClient, id: u64) -> (EventStream, TestResponse) {
        let answer = client.send("POST", &SESSION, call(id));
        let asked = self.server.next().await;
        assert_eq!(&asked.body[..], call(id).as_bytes());
        let saying = asked.sse();
        let mut heard = answer.head().await;
        heard.prime().await;
        (saying, heard)
    }

    /// Comes back on `client` after `last_id`.
    async fn resume(&self, client: &mut TestClient, last_id: &str) -> TestResponse {
        let mut heard = client.send("GET", &[&SESSION[..], &[("last-event-id", last_id)]].concat(), "").head().await;
        heard.prime().await;
        heard
    }

    /// Everything the proxy was told before has reached it when this returns.
    async fn settle(&mut self) {
        for _ in 0..3 {
            let answer = self.client().await.send("POST", &SESSION, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
            self.server.next().await.json("{}");
            answer.head().await.body().await;
        }
    }

    fn is_quiet(&self) -> bool {
        self.server.is_quiet()
    }
}

/// Every pairing.
fn version_pairs() -> impl Iterator<Item = (HttpVersion, HttpVersion)> {
    HttpVersion::ALL.into_iter().flat_map(|down| HttpVersion::ALL.into_iter().map(move |up| (down, up)))
}

/// Returns the pairs whose client can reset a stream.
fn with_streams() -> impl Iterator<Item = (HttpVersion, HttpVersion)> {
    version_pairs().filter(|(down, _)| down.is_http2())
}

/// Runs `test` over each of these pairs, with a client connection. A failure is printed below the
/// name of its pair. The tool runs once in every case.
async fn over(
    version_pairs: impl Iterator<Item = (HttpVersion, HttpVersion)>,
    test: impl AsyncFn(&mut Setup, TestClient),
) {
    for (down, up) in version_pairs {
        println!("{down:?} before {up:?}");
        let mut setup = Setup::start(down, up).await;
        let client = setup.client().await;
        test(&mut setup, client).await;
        assert!(setup.is_quiet(), "the tool ran twice");
    }
}

fn payloads(messages: &[String]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| message.clone().into_bytes()).collect()
}

/// A result that takes many pieces and more than one window of the default size.
fn long_result(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{}"}}}}"#, "long ".repeat(140_000))
}

#[tokio::test]
async fn a_call_cut_after_an_event_is_resumed_whole() {
    over(version_pairs(), async |setup, mut client| {
        let (saying, mut heard) = setup.begin(&mut client, 1).await;
        saying.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        client.reset().await;
        saying.event(progress(2));
        saying.finish(result(1));
        let mut back = setup.resume(&mut setup.client().await, &heard.last_id).await;
        assert_eq!(back.events().await, payloads(&[progress(2), result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_call_cut_before_any_event_is_resumed_whole() {
    over(version_pairs(), async |setup, mut client| {
        let (saying, heard) = setup.begin(&mut client, 1).await;
        client.reset().await;
        let mut again = setup.client().await;
        let mut back = setup.resume(&mut again, &heard.last_id).await;
        saying.event(progress(1));
        assert_eq!(back.event().await, progress(1).as_bytes());
        saying.finish(result(1));
        assert_eq!(back.events().await, payloads(&[result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_call_cut_before_its_head_is_found_again_by_the_same_request() {
    over(version_pairs(), async |setup, mut client| {
        let answer = client.send("POST", &SESSION, call(1));
        let asked = setup.server.next().await;
        drop(answer);
        client.reset().await;
        setup.settle().await;
        let mut again = setup.client().await;
        let answer = again.send("POST", &SESSION, call(1));
        asked.sse().finish(result(1));
        let mut heard = answer.head().await;
        heard.prime().await;
        assert_eq!(heard.events().await, payloads(&[result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_result_cut_on_its_way_is_resumed_whole() {
    over(version_pairs(), async |setup, mut client| {
        let (saying, mut heard) = setup.begin(&mut client, 1).await;
        saying.finish(long_result(1));
        assert!(heard.piece().await.is_some_and(|piece| !piece.is_empty()));
        client.reset().await;
        let mut back = setup.resume(&mut setup.client().await, &heard.last_id).await;
        let same = back.events().await == payloads(&[long_result(1)]);
        assert!(same);
    })
    .await;
}

#[tokio::test]
async fn a_json_answer_cut_on_its_way_is_given_again() {
    over(version_pairs(), async |setup, mut client| {
        let answer = client.send("POST", &SESSION, call(1));
        let whole = result(1);
        setup.server.next().await.json(whole.clone());
        let heard = answer.head().await;
        assert_eq!(heard.head.status, 200);
        drop(heard);
        client.reset().await;
        setup.settle().await;
        let mut again = setup.client().await;
        let heard = again.send("POST", &SESSION, call(1)).head().await;
        assert_eq!(heard.body().await, whole.as_bytes());
    })
    .await;
}

#[tokio::test]
async fn a_reset_stream_leaves_the_others_of_its_connection_alone() {
    over(with_streams(), async |setup, mut client| {
        let (left, mut heard) = setup.begin(&mut client, 1).await;
        let (stays, mut other) = setup.begin(&mut client, 2).await;
        left.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        let last_id = heard.last_id.clone();
        drop(heard);
        stays.finish(result(2));
        assert_eq!(other.events().await, payloads(&[result(2)]));
        left.finish(result(1));
        let mut back = setup.resume(&mut client, &last_id).await;
        assert_eq!(back.events().await, payloads(&[result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_stream_reset_while_its_result_is_on_its_way_is_resumed_whole() {
    over(with_streams(), async |setup, mut client| {
        let (saying, mut heard) = setup.begin(&mut client, 1).await;
        saying.finish(long_result(1));
        assert!(heard.piece().await.is_some_and(|piece| !piece.is_empty()));
        let last_id = heard.last_id.clone();
        drop(heard);
        let mut back = setup.resume(&mut client, &last_id).await;
        let same = back.events().await == payloads(&[long_result(1)]);
        assert!(same);
    })
    .await;
}

#[tokio::test]
async fn a_modern_client_that_resets_its_stream_and_stays_away_has_cancelled() {
    for down in [HttpVersion::Http2, HttpVersion::Http2Tls] {
        for up in HttpVersion::ALL {
            let (pki, modern) = (Pki::new(), [("mcp-protocol-version", V2026), ("mcp-method", "tools/call")]);
            let mut server = TestServer::start(up, &pki).await;
            let change = with_versions(down, up, &pki);
            let proxy = Proxy::to_url(&server.url(), |config| {
                change(config);
                config.streams.modern_grace = Some(std::time::Duration::ZERO);
            })
            .await;
            let mut client = TestClient::connect(proxy.addr, down, &pki).await;
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{V2026}"}}}}}}"#
            );
            let answer = client.send("POST", &modern, body);
            let saying = server.next().await.sse();
            let mut heard = answer.head().await;
            heard.prime().await;
            drop(heard);
            saying.closed().await;
        }
    }
}

#[tokio::test]
async fn an_upstream_that_is_cut_after_an_event_fails_the_call_and_is_not_asked_again() {
    over(version_pairs(), async |setup, mut client| {
        let (saying, mut heard) = setup.begin(&mut client, 1).await;
        saying.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        saying.reset();
        assert_failed(&heard.event().await, true);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_is_cut_before_its_head_is_502_and_not_asked_again() {
    over(version_pairs(), async |setup, mut client| {
        let answer = client.send("POST", &SESSION, call(1));
        setup.server.next().await.reset();
        let heard = answer.head().await;
        assert_eq!(heard.head.status, 502);
        assert_failed(&heard.body().await, true);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_resets_a_stream_has_not_ended_it() {
    for up in [HttpVersion::Http2, HttpVersion::Http2Tls] {
        // The second is what hyper takes for an end.
        for reason in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL] {
            println!("{up:?} {reason:?}");
            let mut setup = Setup::start(HttpVersion::Http1, up).await;
            let mut client = setup.client().await;
            let (saying, mut heard) = setup.begin(&mut client, 1).await;
            let mut other_talker = setup.client().await;
            let (stays, mut other) = setup.begin(&mut other_talker, 2).await;
            saying.event(progress(1));
            assert_eq!(heard.event().await, progress(1).as_bytes());
            saying.reset_stream(reason);
            assert_failed(&heard.event().await, true);
            stays.finish(result(2));
            assert_eq!(other.events().await, payloads(&[result(2)]));
            assert!(setup.is_quiet(), "the tool ran twice");
        }
    }
}

#[tokio::test]
async fn a_request_that_the_upstream_refused_did_not_run_and_is_not_sent_again() {
    for up in [HttpVersion::Http2, HttpVersion::Http2Tls] {
        for (reason, may_have_run) in [(h2::Reason::REFUSED_STREAM, false), (h2::Reason::INTERNAL_ERROR, true)] {
            println!("{up:?} {reason:?}");
            let mut setup = Setup::start(HttpVersion::Http1, up).await;
            let mut client = setup.client().await;
            let answer = client.send("POST", &SESSION, call(1));
            setup.server.next().await.reset_stream(reason);
            let heard = answer.head().await;
            assert_eq!(heard.head.status, 502);
            assert_failed(&heard.body().await, may_have_run);
            assert!(setup.is_quiet(), "sent again");
        }
    }
}

#[track_caller]
fn assert_failed(message: &[u8], may_have_run: bool) {
    let message: serde_json::Value = serde_json::from_slice(message).expect("JSON");
    assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], may_have_run);
}

#[tokio::test]
async fn a_large_request_arrives_whole_over_every_pairing() {
    over(version_pairs(), async |setup, mut client| {
        let text = "large ".repeat(300_000);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"text":"{text}"}}}}"#);
        let answer = client.send("POST", &SESSION, body.clone());
        let asked = setup.server.next().await;
        assert!(asked.body == body.as_bytes());
        asked.json(result(1));
        assert_eq!(answer.head().await.body().await, result(1).as_bytes());
    })
    .await;
}

#[tokio::test]
async fn host_and_forwarded_headers_say_the_same_over_every_pairing() {
    over(version_pairs(), async |setup, mut client| {
        let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
        let answer = client.send("POST", &[&SESSION[..], &cookies].concat(), call(1));
        let asked = setup.server.next().await;
        let header = |name: &str| asked.head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let authority = setup.server.authority();
        match setup.up.is_http2() {
            true => {
                assert_eq!(asked.head.uri.authority().unwrap().as_str(), authority);
                assert_eq!(header("host"), None);
            }
            false => assert_eq!(header("host"), Some(authority)),
        }
        let scheme = if setup.down.is_tls() { "https" } else { "http" };
        assert_eq!(header("x-forwarded-proto").as_deref(), Some(scheme));
        assert_eq!(header("x-forwarded-host"), Some(setup.proxy.addr.to_string()));
        assert!(header("forwarded").unwrap().contains(&format!("proto={scheme};")));
        if setup.down.is_http2() {
            assert_eq!(header("cookie").as_deref(), Some("a=1; b=2"));
        }
        asked.json(result(1));
        let heard = answer.head().await;
        for hop_by_hop in ["connection", "keep-alive", "transfer-encoding"] {
            assert!(!heard.head.headers.contains_key(hop_by_hop), "{hop_by_hop}");
        }
        assert_eq!(heard.body().await, result(1).as_bytes());
    })
    .await;
}

#[tokio::test]
async fn more_calls_than_one_connection_carries_do_not_wait_for_each_other() {
    let mut setup = Setup::start(HttpVersion::Http1, HttpVersion::Http2).await;
    let mut held = Vec::new();
    // Servers allow at least a hundred, and this one two hundred.
    for id in 0..210 {
        let mut client = setup.client().await;
        let begun = setup.begin(&mut client, id).await;
        held.push((client, begun));
    }
    for (id, (_talker, (saying, mut heard))) in held.into_iter().enumerate() {
        saying.finish(result(id as u64));
        assert_eq!(heard.events().await, payloads(&[result(id as u64)]));
    }
}

/// The server's limit of streams is known only after its SETTINGS; calls sent before would be
/// refused.
#[tokio::test]
async fn calls_beyond_what_a_server_takes_wait_from_the_first_connection_on() {
    for up in [HttpVersion::Http2, HttpVersion::Http2Tls] {
        let pki = Pki::new();
        let mut server = TestServer::start_narrow(up, &pki, 3).await;
        let proxy = Proxy::to_url(&server.url(), with_versions(HttpVersion::Http2, up, &pki)).await;
        let mut client = TestClient::connect(proxy.addr, HttpVersion::Http2, &pki).await;
        let answers: Vec<_> = (0..20).map(|id| client.send("POST", &SESSION, call(id))).collect();
        let answers = tokio::spawn(async move {
            let mut statuses = Vec::new();
            for answer in answers {
                let heard = answer.head().await;
                statuses.push(heard.head.status.as_u16());
                heard.body().await;
            }
            statuses
        });
        for _ in 0..20 {
            let asked = server.next().await;
            let message: serde_json::Value = serde_json::from_slice(&asked.body).expect("JSON");
            asked.json(result(message["id"].as_u64().expect("a number")));
        }
        assert_eq!(answers.await.expect("no panic"), [200; 20], "{up:?}");
    }
}

#[tokio::test]
async fn a_server_that_takes_no_call_at_all_is_not_waited_for_without_end() {
    let pki = Pki::new();
    let server = TestServer::start_narrow(HttpVersion::Http2, &pki, 0).await;
    let speaks = with_versions(HttpVersion::Http1, HttpVersion::Http2, &pki);
    let proxy = Proxy::to_url(&server.url(), |config| {
        speaks(config);
        config.upstream.connect_timeout = SOON;
    })
    .await;
    let mut client = TestClient::connect(proxy.addr, HttpVersion::Http1, &pki).await;
    // The first one leaves before the server has said so, and is refused.
    for (id, status) in [(1, 502), (2, 504), (3, 504)] {
        let heard = client.send("POST", &SESSION, call(id)).head().await;
        assert_eq!(heard.head.status, status, "call {id}");
        let message: serde_json::Value = serde_json::from_slice(&heard.body().await).expect("JSON");
        assert_eq!(message["error"]["data"]["mayHaveRun"], false, "call {id}");
    }
    assert!(server.is_quiet());
}
