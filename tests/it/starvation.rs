//! The binary with few resources: few descriptors, and output that is not read.

#![cfg(target_os = "linux")]

use crate::support::frames::Framer;
use crate::support::*;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::process::Command;

/// Returns the command, started by a shell that first runs `setup`.
fn after(setup: &str, command: &Command) -> Command {
    let command = command.as_std();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{setup} && exec \"$0\" \"$@\"")).arg(command.get_program()).args(command.get_args());
    shell.stderr(Stdio::null());
    shell
}

/// The soft and the hard limit of open files.
fn open_files(pid: u32) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let mut values = line.split_whitespace().map(str::to_owned);
    (values.next().expect("a soft limit"), values.next().expect("a hard limit"))
}

/// A request on another path, of which the log has several lines at the level `trace`.
async fn passes(proxy: &Proxy) {
    assert_eq!(Request::new("GET", "/other").send(proxy.addr).await.status, 404);
}

async fn is_live(admin: SocketAddr) -> bool {
    Request::new("GET", "/livez").send(admin).await.status == 200
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_as_far_as_it_goes() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::process(after("ulimit -S -n 64", &command(&upstream))).await;
    let (soft, hard) = open_files(proxy.pid());
    assert_eq!(soft, hard);
    assert_ne!(soft, "64");
    proxy.stop().await;
}

#[tokio::test]
async fn more_clients_than_descriptors_leave_room_for_probes_and_calls() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::process(after("ulimit -n 128", &command(&upstream))).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(Client::connect(proxy.addr).await);
    }
    until("those beyond are refused", async || {
        metric(&proxy, "mcp_resume_rejects_total{reason=\"too_many_connections\"}").await > 0.0
    })
    .await;
    assert!(is_live(proxy.admin.expect("an admin listener")).await);
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    proxy.kill().await;
}

#[tokio::test]
async fn an_unread_log_stops_no_worker_and_says_later_what_it_dropped() {
    const DROPPED: &str = "mcp_resume_log_lines_dropped_total";
    let upstream = Upstream::start().await;
    let (mut log, stderr) = std::io::pipe().expect("a pipe");
    let mut command = command(&upstream);
    command.env("MCP_RESUME_LOG__LEVEL", "trace").stderr(stderr);
    let proxy = Proxy::process(command).await;
    upstream.answer_all();
    while metric(&proxy, DROPPED).await == 0.0 {
        for _ in 0..50 {
            passes(&proxy).await;
        }
    }
    let (told, was_told) = tokio::sync::oneshot::channel();
    let reader = std::thread::spawn(move || {
        let (mut read, mut piece, mut told) = (Vec::new(), [0; 64 * 1024], Some(told));
        while let Ok(many @ 1..) = log.read(&mut piece) {
            read.extend_from_slice(&piece[..many]);
            let is_told = String::from_utf8_lossy(&read).contains("lines of the log were dropped");
            if let Some(told) = told.take_if(|_| is_told) {
                let _ = told.send(());
            }
        }
    });
    within("it says so", was_told).await.expect("a line");
    proxy.stop().await;
    reader.join().expect("it reads to the end");
}

#[tokio::test]
async fn it_stops_although_its_log_is_not_read() {
    let upstream = Upstream::start().await;
    let mut command = command(&upstream);
    // The pipe is there as long as the process.
    command.env("MCP_RESUME_LOG__LEVEL", "trace").stderr(Stdio::piped());
    let proxy = Proxy::process(command).await;
    upstream.answer_all();
    for _ in 0..300 {
        passes(&proxy).await;
    }
    proxy.stop().await;
}

#[tokio::test]
async fn an_unread_stdout_does_not_keep_it_from_serving() {
    const PIPE: usize = 64 * 1024;
    let upstream = Upstream::start().await;
    let (_unread, mut stdout) = std::io::pipe().expect("a pipe");
    stdout.write_all(&[b'\n'; PIPE]).expect("as much as a pipe takes");
    let free =
        || std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let admin = free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--upstream", &upstream.url(), "--listen", "127.0.0.1:0", "--admin", &admin.to_string()]);
    let mut child = command.stdout(stdout).stderr(Stdio::null()).kill_on_drop(true).spawn().expect("the binary runs");
    // Nothing else says when it listens.
    until("it listens", async || tokio::net::TcpStream::connect(admin).await.is_ok()).await;
    assert!(is_live(admin).await);
    child.kill().await.expect("it runs");
}

/// On HTTP/2 few connections of clients carry more calls than there are descriptors for connections
/// to the server.
#[tokio::test]
async fn more_calls_than_descriptors_are_refused_and_leave_room_for_probes() {
    let upstream = Upstream::start().await;
    let mut command = after("ulimit -n 128", &command(&upstream));
    command.env("MCP_RESUME_UPSTREAM__CONNECT_TIMEOUT_MS", "500").env("MCP_RESUME_DELIVERY__COMMIT_AFTER_MS", "0");
    let proxy = Proxy::process(command).await;
    let mut clients = Vec::new();
    for first in [0, 75] {
        let mut client = Framer::connect(proxy.addr).await;
        for id in first..first + 75 {
            let (call, _) = client.open(&Request::post(call(id)));
            client.send(&call).await.expect("an open connection");
        }
        clients.push(client);
    }
    until("those beyond are refused", async || {
        metric(&proxy, "mcp_resume_rejects_total{reason=\"too_many_connections\"}").await > 0.0
    })
    .await;
    assert!(upstream.connections() < 128 / 2, "{} connections to the server", upstream.connections());
    // Probes that keep their connections, and a client that comes now.
    let mut probes = Vec::new();
    for _ in 0..8 {
        let mut response = Request::new("GET", "/livez").send(proxy.admin.expect("an admin listener")).await;
        assert_eq!((response.status, response.body().await), (200, b"ok\n".to_vec()));
        probes.push(response.into_client());
    }
    assert_eq!(Request::post("no JSON").send(proxy.addr).await.status, 400);
    proxy.kill().await;
}
