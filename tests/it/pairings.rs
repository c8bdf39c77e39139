//! A call cut and resumed over everything that either side can speak.

use crate::support::pki::Pki;
use crate::support::spoken::*;
use crate::support::*;

const SESSION: [(&str, &str); 2] = [("mcp-session-id", "s-1"), ("mcp-protocol-version", V2025_11)];

/// A proxy between two that speak so.
struct Stage {
    down: Speech,
    up: Speech,
    pki: Pki,
    proxy: Proxy,
    speaker: Speaker,
}

impl Stage {
    async fn set(down: Speech, up: Speech) -> Stage {
        let pki = Pki::new();
        let speaker = Speaker::start(up, &pki).await;
        let proxy = Proxy::to_url(&speaker.url(), speak(down, up, &pki)).await;
        Stage { down, up, pki, proxy, speaker }
    }

    async fn talker(&self) -> Talker {
        Talker::connect(self.proxy.addr, self.down, &self.pki).await
    }

    /// A call whose stream has begun.
    async fn begin(&mut self, talker: &mut Talker, id: u64) -> (Saying, Heard) {
        let answer = talker.send("POST", &SESSION, call(id));
        let asked = self.speaker.next().await;
        assert_eq!(&asked.body[..], call(id).as_bytes());
        let saying = asked.sse();
        let mut heard = answer.head().await;
        heard.prime().await;
        (saying, heard)
    }

    /// Comes back on `talker` after `last_id`.
    async fn resume(&self, talker: &mut Talker, last_id: &str) -> Heard {
        let mut heard = talker.send("GET", &[&SESSION[..], &[("last-event-id", last_id)]].concat(), "").head().await;
        heard.prime().await;
        heard
    }

    /// Everything the proxy was told before has reached it when this returns.
    async fn settle(&mut self) {
        for _ in 0..3 {
            let answer = self.talker().await.send("POST", &SESSION, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
            self.speaker.next().await.json("{}");
            answer.head().await.body().await;
        }
    }

    fn is_quiet(&self) -> bool {
        self.speaker.is_quiet()
    }
}

/// Every pairing.
fn pairings() -> impl Iterator<Item = (Speech, Speech)> {
    Speech::ALL.into_iter().flat_map(|down| Speech::ALL.into_iter().map(move |up| (down, up)))
}

/// Those whose client can reset a stream.
fn with_streams() -> impl Iterator<Item = (Speech, Speech)> {
    pairings().filter(|(down, _)| down.is_http2())
}

/// Runs `test` over each of these, with a connection of the client's; a failure is printed below the name of its pairing.
/// Whatever happens, the tool runs once.
async fn over(pairings: impl Iterator<Item = (Speech, Speech)>, test: impl AsyncFn(&mut Stage, Talker)) {
    for (down, up) in pairings {
        println!("{down:?} before {up:?}");
        let mut stage = Stage::set(down, up).await;
        let talker = stage.talker().await;
        test(&mut stage, talker).await;
        assert!(stage.is_quiet(), "the tool ran twice");
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
    over(pairings(), async |stage, mut talker| {
        let (saying, mut heard) = stage.begin(&mut talker, 1).await;
        saying.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        talker.reset().await;
        saying.event(progress(2));
        saying.finish(result(1));
        let mut back = stage.resume(&mut stage.talker().await, &heard.last_id).await;
        assert_eq!(back.events().await, payloads(&[progress(2), result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_call_cut_before_any_event_is_resumed_whole() {
    over(pairings(), async |stage, mut talker| {
        let (saying, heard) = stage.begin(&mut talker, 1).await;
        talker.reset().await;
        let mut again = stage.talker().await;
        let mut back = stage.resume(&mut again, &heard.last_id).await;
        saying.event(progress(1));
        assert_eq!(back.event().await, progress(1).as_bytes());
        saying.finish(result(1));
        assert_eq!(back.events().await, payloads(&[result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_call_cut_before_its_head_is_found_again_by_the_same_request() {
    over(pairings(), async |stage, mut talker| {
        let answer = talker.send("POST", &SESSION, call(1));
        let asked = stage.speaker.next().await;
        drop(answer);
        talker.reset().await;
        stage.settle().await;
        let mut again = stage.talker().await;
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
    over(pairings(), async |stage, mut talker| {
        let (saying, mut heard) = stage.begin(&mut talker, 1).await;
        saying.finish(long_result(1));
        assert!(heard.piece().await.is_some_and(|piece| !piece.is_empty()));
        talker.reset().await;
        let mut back = stage.resume(&mut stage.talker().await, &heard.last_id).await;
        let same = back.events().await == payloads(&[long_result(1)]);
        assert!(same);
    })
    .await;
}

#[tokio::test]
async fn a_json_answer_cut_on_its_way_is_given_again() {
    over(pairings(), async |stage, mut talker| {
        let answer = talker.send("POST", &SESSION, call(1));
        let whole = result(1);
        stage.speaker.next().await.json(whole.clone());
        let heard = answer.head().await;
        assert_eq!(heard.head.status, 200);
        drop(heard);
        talker.reset().await;
        stage.settle().await;
        let mut again = stage.talker().await;
        let heard = again.send("POST", &SESSION, call(1)).head().await;
        assert_eq!(heard.body().await, whole.as_bytes());
    })
    .await;
}

#[tokio::test]
async fn a_reset_stream_leaves_the_others_of_its_connection_alone() {
    over(with_streams(), async |stage, mut talker| {
        let (left, mut heard) = stage.begin(&mut talker, 1).await;
        let (stays, mut other) = stage.begin(&mut talker, 2).await;
        left.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        let last_id = heard.last_id.clone();
        drop(heard);
        stays.finish(result(2));
        assert_eq!(other.events().await, payloads(&[result(2)]));
        left.finish(result(1));
        let mut back = stage.resume(&mut talker, &last_id).await;
        assert_eq!(back.events().await, payloads(&[result(1)]));
    })
    .await;
}

#[tokio::test]
async fn a_stream_reset_while_its_result_is_on_its_way_is_resumed_whole() {
    over(with_streams(), async |stage, mut talker| {
        let (saying, mut heard) = stage.begin(&mut talker, 1).await;
        saying.finish(long_result(1));
        assert!(heard.piece().await.is_some_and(|piece| !piece.is_empty()));
        let last_id = heard.last_id.clone();
        drop(heard);
        let mut back = stage.resume(&mut talker, &last_id).await;
        let same = back.events().await == payloads(&[long_result(1)]);
        assert!(same);
    })
    .await;
}

#[tokio::test]
async fn a_modern_client_that_resets_its_stream_and_stays_away_has_cancelled() {
    for down in [Speech::Http2, Speech::Http2Tls] {
        for up in Speech::ALL {
            let (pki, modern) = (Pki::new(), [("mcp-protocol-version", V2026), ("mcp-method", "tools/call")]);
            let mut speaker = Speaker::start(up, &pki).await;
            let change = speak(down, up, &pki);
            let proxy = Proxy::to_url(&speaker.url(), |config| {
                change(config);
                config.streams.modern_grace = Some(std::time::Duration::ZERO);
            })
            .await;
            let mut talker = Talker::connect(proxy.addr, down, &pki).await;
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{V2026}"}}}}}}"#
            );
            let answer = talker.send("POST", &modern, body);
            let saying = speaker.next().await.sse();
            let mut heard = answer.head().await;
            heard.prime().await;
            drop(heard);
            saying.closed().await;
        }
    }
}

#[tokio::test]
async fn an_upstream_that_is_cut_after_an_event_fails_the_call_and_is_not_asked_again() {
    over(pairings(), async |stage, mut talker| {
        let (saying, mut heard) = stage.begin(&mut talker, 1).await;
        saying.event(progress(1));
        assert_eq!(heard.event().await, progress(1).as_bytes());
        saying.reset();
        assert_failed(&heard.event().await, true);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_is_cut_before_its_head_is_502_and_not_asked_again() {
    over(pairings(), async |stage, mut talker| {
        let answer = talker.send("POST", &SESSION, call(1));
        stage.speaker.next().await.reset();
        let heard = answer.head().await;
        assert_eq!(heard.head.status, 502);
        assert_failed(&heard.body().await, true);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_resets_a_stream_has_not_ended_it() {
    for up in [Speech::Http2, Speech::Http2Tls] {
        // The second is what hyper takes for an end.
        for reason in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL] {
            println!("{up:?} {reason:?}");
            let mut stage = Stage::set(Speech::Http1, up).await;
            let mut talker = stage.talker().await;
            let (saying, mut heard) = stage.begin(&mut talker, 1).await;
            let mut other_talker = stage.talker().await;
            let (stays, mut other) = stage.begin(&mut other_talker, 2).await;
            saying.event(progress(1));
            assert_eq!(heard.event().await, progress(1).as_bytes());
            saying.reset_stream(reason);
            assert_failed(&heard.event().await, true);
            stays.finish(result(2));
            assert_eq!(other.events().await, payloads(&[result(2)]));
            assert!(stage.is_quiet(), "the tool ran twice");
        }
    }
}

#[tokio::test]
async fn a_request_that_the_upstream_refused_did_not_run_and_is_not_sent_again() {
    for up in [Speech::Http2, Speech::Http2Tls] {
        for (reason, may_have_run) in [(h2::Reason::REFUSED_STREAM, false), (h2::Reason::INTERNAL_ERROR, true)] {
            println!("{up:?} {reason:?}");
            let mut stage = Stage::set(Speech::Http1, up).await;
            let mut talker = stage.talker().await;
            let answer = talker.send("POST", &SESSION, call(1));
            stage.speaker.next().await.reset_stream(reason);
            let heard = answer.head().await;
            assert_eq!(heard.head.status, 502);
            assert_failed(&heard.body().await, may_have_run);
            assert!(stage.is_quiet(), "sent again");
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
    over(pairings(), async |stage, mut talker| {
        let text = "large ".repeat(300_000);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"text":"{text}"}}}}"#);
        let answer = talker.send("POST", &SESSION, body.clone());
        let asked = stage.speaker.next().await;
        assert!(asked.body == body.as_bytes());
        asked.json(result(1));
        assert_eq!(answer.head().await.body().await, result(1).as_bytes());
    })
    .await;
}

#[tokio::test]
async fn host_and_forwarded_headers_say_the_same_over_every_pairing() {
    over(pairings(), async |stage, mut talker| {
        let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
        let answer = talker.send("POST", &[&SESSION[..], &cookies].concat(), call(1));
        let asked = stage.speaker.next().await;
        let header = |name: &str| asked.head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let authority = stage.speaker.authority();
        match stage.up.is_http2() {
            true => {
                assert_eq!(asked.head.uri.authority().unwrap().as_str(), authority);
                assert_eq!(header("host"), None);
            }
            false => assert_eq!(header("host"), Some(authority)),
        }
        let scheme = if stage.down.is_tls() { "https" } else { "http" };
        assert_eq!(header("x-forwarded-proto").as_deref(), Some(scheme));
        assert_eq!(header("x-forwarded-host"), Some(stage.proxy.addr.to_string()));
        assert!(header("forwarded").unwrap().contains(&format!("proto={scheme};")));
        if stage.down.is_http2() {
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
    let mut stage = Stage::set(Speech::Http1, Speech::Http2).await;
    let mut held = Vec::new();
    // Servers allow at least a hundred, and this one two hundred.
    for id in 0..210 {
        let mut talker = stage.talker().await;
        let begun = stage.begin(&mut talker, id).await;
        held.push((talker, begun));
    }
    for (id, (_talker, (saying, mut heard))) in held.into_iter().enumerate() {
        saying.finish(result(id as u64));
        assert_eq!(heard.events().await, payloads(&[result(id as u64)]));
    }
}

/// What the server allows is known after its first word; until then it would refuse what is beyond that.
#[tokio::test]
async fn calls_beyond_what_a_server_takes_wait_from_the_first_connection_on() {
    for up in [Speech::Http2, Speech::Http2Tls] {
        let pki = Pki::new();
        let mut speaker = Speaker::start_narrow(up, &pki, 3).await;
        let proxy = Proxy::to_url(&speaker.url(), speak(Speech::Http2, up, &pki)).await;
        let mut talker = Talker::connect(proxy.addr, Speech::Http2, &pki).await;
        let answers: Vec<_> = (0..20).map(|id| talker.send("POST", &SESSION, call(id))).collect();
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
            let asked = speaker.next().await;
            let message: serde_json::Value = serde_json::from_slice(&asked.body).expect("JSON");
            asked.json(result(message["id"].as_u64().expect("a number")));
        }
        assert_eq!(answers.await.expect("no panic"), [200; 20], "{up:?}");
    }
}

#[tokio::test]
async fn a_server_that_takes_no_call_at_all_is_not_waited_for_without_end() {
    let pki = Pki::new();
    let speaker = Speaker::start_narrow(Speech::Http2, &pki, 0).await;
    let speaks = speak(Speech::Http1, Speech::Http2, &pki);
    let proxy = Proxy::to_url(&speaker.url(), |config| {
        speaks(config);
        config.upstream.connect_timeout = SOON;
    })
    .await;
    let mut talker = Talker::connect(proxy.addr, Speech::Http1, &pki).await;
    // The first one leaves before the server has said so, and is refused.
    for (id, status) in [(1, 502), (2, 504), (3, 504)] {
        let heard = talker.send("POST", &SESSION, call(id)).head().await;
        assert_eq!(heard.head.status, status, "call {id}");
        let message: serde_json::Value = serde_json::from_slice(&heard.body().await).expect("JSON");
        assert_eq!(message["error"]["data"]["mayHaveRun"], false, "call {id}");
    }
    assert!(speaker.is_quiet());
}
