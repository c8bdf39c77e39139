//! A bare Pingora proxy: every request goes to the next server, unchanged. The balancer's cost
//! beyond this is its own.
//!
//! `mcp-resume-bench-pingora HOST:PORT…` prints its listening address and serves until killed, on a
//! thread for each core.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

struct InTurn {
    servers: Vec<SocketAddr>,
    turn: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for InTurn {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(HttpPeer::new(self.servers[turn % self.servers.len()], false, String::new())))
    }
}

fn main() -> ExitCode {
    let servers: Result<Vec<SocketAddr>, _> = std::env::args().skip(1).map(|server| server.parse()).collect();
    let listen = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let (Ok(servers), Ok(listen)) = (servers, listen) else {
        eprintln!("usage: mcp-resume-bench-pingora HOST:PORT…");
        return ExitCode::FAILURE;
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let conf = ServerConf { threads, upstream_keepalive_pool_size: 1024, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut proxy = http_proxy_service(&server.configuration, InTurn { servers, turn: AtomicUsize::new(0) });
    // Pingora does not report the port that it got.
    proxy.add_tcp(&listen.to_string());
    server.add_service(proxy);
    println!("will listen on {listen}");
    server.run_forever()
}
