//! Files that are read while the proxy runs.

use super::Meter;
use crate::support::http_versions::{HttpVersion, TestServer, with_versions};
use crate::support::pki::Pki;
use crate::support::*;
use std::process::Stdio;
use std::time::Duration;

pub(super) async fn certificates_of_both_sides_that_change(reloads: &Meter) {
    let pki = Pki::new();
    let server = TestServer::start(HttpVersion::Http1Tls, &pki).await;
    let change = with_versions(HttpVersion::Http1Tls, HttpVersion::Http1Tls, &pki);
    let proxy = Proxy::to_url(&server.url(), |config| {
        change(config);
        config.upstream.tls.identity = Some(pki.pair());
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    // It runs, and so looks at the files from now on.
    assert_eq!(reloads.of(&proxy, "of=upstream,outcome=taken").await, 0.0);
    let becomes = async |outcome: &str| {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(6)).await;
        tokio::time::resume();
        for of in ["listener", "upstream"] {
            let labels = format!("of={of},outcome={outcome}");
            let counted = async { while reloads.of(&proxy, &labels).await == 0.0 {} };
            within(&labels, counted).await;
            assert_eq!(reloads.of(&proxy, &labels).await, 1.0, "{labels}");
        }
    };
    pki.issue();
    becomes("taken").await;
    std::fs::write(pki.pair().cert, "no certificate").expect("a file");
    becomes("refused").await;
}

pub(super) async fn an_unread_log(dropped: &Meter) {
    let upstream = Upstream::start().await;
    let mut command = command(&upstream);
    // The other end of the pipe is not read.
    command.env("MCP_RESUME_LOG__LEVEL", "trace").stderr(Stdio::piped());
    let proxy = Proxy::process(command).await;
    assert_eq!(dropped.read(&proxy).await, 0.0);
    upstream.answer_all();
    while dropped.read(&proxy).await == 0.0 {
        for _ in 0..50 {
            // Several lines each.
            Request::new("GET", "/other").send(proxy.addr).await;
        }
    }
    proxy.kill().await;
}
