//! Requests that need no translation of their own, in both directions.

use super::legacy_clients::{self, answers, opened};
use super::*;

/// Methods with their parameters and results, and whether a result is one that may be cached.
fn rows() -> [(&'static str, Value, Value, bool); 7] {
    let prompt = json!({"type": "ref/prompt", "name": "p"});
    let template = json!({"uriTemplate": "a:{x}", "name": "t", "title": "T"});
    [
        (
            "completion/complete",
            json!({"ref": prompt, "argument": {"name": "n", "value": "v"}, "context": {"arguments": {"m": "w"}}}),
            json!({"completion": {"values": ["v1"], "total": 1, "hasMore": false}}),
            false,
        ),
        ("resources/templates/list", json!({}), json!({"resourceTemplates": [template]}), true),
        ("resources/list", json!({"cursor": "c-1"}), json!({"resources": [], "nextCursor": "c-2"}), true),
        ("prompts/list", json!({"cursor": "c-1"}), json!({"prompts": [], "nextCursor": "c-2"}), true),
        ("tools/list", json!({"cursor": "c-1"}), json!({"tools": [], "nextCursor": "c-2"}), true),
        (
            "prompts/get",
            json!({"name": "p", "arguments": {"a": "b"}}),
            json!({"messages": [{"role": "user", "content": {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}}]}),
            false,
        ),
        (
            "resources/read",
            json!({"uri": "a:1"}),
            json!({"contents": [{"uri": "a:1", "blob": "AA==", "_meta": {"x": 1}}]}),
            true,
        ),
    ]
}

/// Returns the parameters without `_meta`.
fn own_params(call: &Call) -> Value {
    let mut params = call.json_body()["params"].clone();
    params.as_object_mut().expect("parameters").remove("_meta");
    params
}

#[tokio::test]
async fn modern_clients_read_the_answers_of_an_older_server() {
    let (mut upstream, proxy) = stage().await;
    for (at, (method, params, result, is_cached)) in rows().into_iter().enumerate() {
        let mut asked = request(at, method, params.clone());
        if let Some(uri) = params["uri"].as_str() {
            asked = asked.with("Mcp-Name", uri);
        }
        let pending = asked.start(proxy.addr).await;
        let call = if at == 0 {
            opens(&mut upstream, true).await;
            first_call(&mut upstream).await
        } else {
            upstream.next().await
        };
        assert_eq!((call.rpc_method().as_str(), own_params(&call)), (method, params));
        answers(call, result.clone()).await;
        let mut told = pending.response().await.json().await["result"].clone();
        let told = told.as_object_mut().expect("a result");
        told.remove("_meta");
        let mut expected = result;
        expected["resultType"] = json!("complete");
        if is_cached {
            (expected["ttlMs"], expected["cacheScope"]) = (json!(0), json!("private"));
        }
        assert_eq!(json!(told), expected, "{method}");
    }
}

#[tokio::test]
async fn older_clients_read_the_answers_of_a_modern_server() {
    let (mut upstream, proxy) = legacy_clients::stage().await;
    let session = opened(&mut upstream, &proxy).await;
    for (at, (method, params, result, is_cached)) in rows().into_iter().enumerate() {
        let pending = session.request(at + 1, method, params.clone()).start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!((call.header("mcp-method"), own_params(&call)), (Some(method), params));
        let mut answer = result.clone();
        answer["resultType"] = json!("complete");
        if is_cached {
            (answer["ttlMs"], answer["cacheScope"]) = (json!(60_000), json!("public"));
        }
        answers(call, answer).await;
        assert_eq!(pending.response().await.json().await["result"], result, "{method}");
    }
}
