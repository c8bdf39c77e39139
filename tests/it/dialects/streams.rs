//! Resumable streams, #899.

use serde_json::json;

use super::{ask, open, refused};
use crate::support::*;

#[tokio::test]
async fn a_stream_says_when_it_begins_and_ends_and_a_resume_answers_itself_last() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| ()).await;
    let (session, seen) =
        open(&proxy, &mut upstream, json!({ "streams": {}, "resumableRequests": {} }), Some("s")).await;
    assert_eq!(seen["params"]["capabilities"], json!({}));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(7))).await;
    assert_eq!(response.event().await.json()["method"], "notifications/requests/resumePolicy");
    let create = response.event().await.json();
    assert_eq!(create["method"], "notifications/stream/create");
    let params = &create["params"];
    assert_eq!((&params["requestId"], &params["resumeInterval"]), (&json!(7), &json!({ "min": 1, "max": 600 })));
    let named = json!({ "streamId": params["streamId"], "resumeToken": params["resumeToken"] });
    response.reset();
    sse.event(progress(1)).await;
    settle(&proxy, &mut upstream).await;
    let poll = session.post(ask(json!(8), "stream/poll", named.clone()));
    let status = poll.send(proxy.addr).await.json().await["result"].clone();
    assert_eq!(
        status,
        json!({ "streamId": params["streamId"], "status": "live", "pendingMessages": true, "hasRequest": false,
                "hasError": false })
    );
    let resume = session.post(ask(json!("r"), "stream/resume", named));
    sse.finish(result(7)).await;
    let mut again = resume.send(proxy.addr).await.sse();
    let (frames, end) = again.events().await;
    let last = &frames[frames.len() - 2..];
    assert_eq!(last[0].json()["method"], "notifications/stream/end");
    assert_eq!(last[0].json()["params"]["streamId"], params["streamId"]);
    assert_eq!(last[1].json(), json!({ "jsonrpc": "2.0", "id": "r", "result": {} }));
    assert_eq!(last[1].id, None, "it belongs to this connection");
    assert_eq!(frames[frames.len() - 3].bytes(), result(7).as_bytes());
    assert_eq!(end, End::Complete);
    let elsewhere = json!({ "streamId": "AAAAAAAAAAAAAAAA", "resumeToken": params["resumeToken"] });
    let mut refusal = session.post(ask(json!(9), "stream/poll", elsewhere)).send(proxy.addr).await;
    assert_eq!(refusal.json().await, refused(json!(9)));
}
