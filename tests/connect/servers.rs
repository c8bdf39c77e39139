//! Far sides of other kinds: HTTP+SSE, other addresses, redirects, programs.

use serde_json::json;
use tokio::net::TcpListener;

use super::host::*;
use super::support::*;

#[tokio::test]
async fn a_server_on_http_sse_is_found_behind_405() {
    let mut upstream = Upstream::start().await;
    let mut host = Host::before(&upstream.url());
    host.say(&initialize(V2025_11)).await;
    upstream.expect("initialize").await.status(405).await;
    upstream.expect("server/discover").await.status(405).await;
    let stream = upstream.expect("GET").await.sse().await;
    stream.bytes("event: endpoint\ndata: /messages?s=1\n\n").await;
    let (mut posts, mut streams) = (0, vec![stream]);
    loop {
        let call = upstream.next().await;
        match &*call.rpc_method() {
            "GET" => {
                let stream = call.sse().await;
                stream.bytes("event: endpoint\ndata: /messages?s=1\n\n").await;
                streams.push(stream);
            }
            "initialize" => {
                assert_eq!(call.target, "/messages?s=1");
                posts += 1;
                let id = call.json_body()["id"].clone();
                call.status(202).await;
                let mut answer: serde_json::Value = serde_json::from_str(&handshake(V2025_11)).unwrap();
                answer["id"] = id;
                streams.last().unwrap().event(answer.to_string()).await;
                break;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(posts, 1);
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed() {
    let mut upstream = Upstream::start().await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("location: http://{}/mcp\r\n", other.local_addr().unwrap());
    let headers = vec!["Authorization: Bearer secret".to_owned()];
    let mut host = Host::start(mcp_resume::connect::Options { headers, ..options(&upstream.url()) });
    host.say(&initialize(V2025_11)).await;
    upstream.expect("initialize").await.status_with(307, &place).await;
    let answer = host.hear().await;
    assert_eq!(answer["error"]["data"]["error"], "upstream_redirect", "{answer}");
    let refused = tokio::time::timeout(std::time::Duration::from_millis(100), other.accept()).await;
    assert!(refused.is_err(), "nothing connects there");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_program_is_the_far_side() {
    let script = r#"read -r line
echo hello
printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}'
read -r line
read -r line
printf '%s\n' "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"$MARK\"}]}}"
cat >/dev/null"#;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["connect", "--", "sh", "-c", script]).env("MARK", "inherited");
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = within("a line", lines.next_line()).await.unwrap().expect("a line");
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON alone")
    };
    input.write_all(format!("{}\n", initialize(V2025_11)).as_bytes()).await.unwrap();
    assert_eq!(next().await["result"]["serverInfo"]["name"], "sh");
    input.write_all(format!("{}\n{}\n", initialized(), call(1)).as_bytes()).await.unwrap();
    assert_eq!(text_of(&next().await), "inherited");
    drop(input);
    let status = within("the end", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert!(said.contains("hello"), "{said}");
}

#[tokio::test]
async fn localhost_is_also_an_address_of_version_6() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let port = listener.local_addr().unwrap().port();
    let mut host = Host::before(&format!("http://localhost:{port}/mcp"));
    host.say(&initialize(V2025_11)).await;
    let began = std::time::Instant::now();
    let (mut stream, _) = within("a connection", listener.accept()).await.unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(1));
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut head = vec![0; 4096];
    assert!(stream.read(&mut head).await.unwrap() > 0);
    let body = handshake(V2025_11);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
}
