//! Redis servers for tests: each is a process on 127.0.0.1, which ends with its last user or with
//! the tests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::{Mutex, Weak};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Value};

use super::until;
use crate::redis::command::cmd;
use mcp_resume_base::random;
use mcp_resume_base::sync;

/// Waits for the end of its input, which comes when the tests end for any reason.
const KEEPER: &str = r#""$@" </dev/null & exec >/dev/null; read _; kill -9 $!; wait"#;
/// Ports: below the ephemeral ones of the system, also with 10000 added for the bus of a Cluster,
/// and beside those of the other tests.
const PORTS: std::ops::Range<u16> = 16000..19000;
const TRIES: usize = 20;

/// One server.
pub(super) struct Server {
    pub(super) port: u16,
    dir: PathBuf,
    args: Vec<String>,
    running: Option<Child>,
}

impl Server {
    /// Starts a server without persistence.
    pub(super) fn start() -> Self {
        Self::with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server with these options.
    pub(super) fn with(args: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("mcp-resume-redis-{:016x}", u64::from_be_bytes(random::bytes())));
        fs::create_dir_all(&dir).expect("a directory");
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut server = Self { port: 0, dir, args, running: None };
        for _ in 0..TRIES {
            server.port = PORTS.start + u16::from_be_bytes(random::bytes()) % (PORTS.end - PORTS.start);
            if server.try_begin().is_ok() {
                return server;
            }
        }
        panic!("no server of Redis in {TRIES} tries: {}", server.try_begin().unwrap_err());
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server.
    pub(super) fn kill(&mut self) {
        if let Some(mut keeper) = self.running.take() {
            drop(keeper.stdin.take());
            keeper.wait().expect("the keeper ends");
        }
    }

    /// Starts the server again at its address, with its persisted data.
    pub(super) fn begin(&mut self) {
        self.try_begin().unwrap();
    }

    fn try_begin(&mut self) -> Result<(), String> {
        let config = self.dir.join("redis.conf");
        if !config.exists() {
            fs::write(&config, "").expect("a file");
        }
        let has = |name: &str| self.args.iter().any(|arg| arg == name);
        let (port, sentinel) = (if has("--tls-cert-file") { "--tls-port" } else { "--port" }, has("--sentinel"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh", "redis-server"])
            .arg(&config)
            .args([port, &self.port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(&self.dir)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let ready = if sentinel { "Sentinel ID is" } else { "Ready to accept connections" };
        let mut lines = BufReader::new(keeper.stdout.take().expect("it is piped")).lines();
        let mut log = String::from("redis-server (is it installed?) ended, having said:\n");
        for line in lines.by_ref().map_while(Result::ok) {
            if line.contains(ready) {
                std::thread::spawn(move || lines.for_each(drop));
                self.running = Some(keeper);
                return Ok(());
            }
            log.push_str(&line);
            log.push('\n');
        }
        drop(keeper.stdin.take());
        let _ = keeper.wait();
        Err(log)
    }

    /// Opens a connection beside the store's own.
    pub(super) async fn admin(&self) -> Admin {
        Admin::to(&self.url()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A connection for commands that the store does not send.
pub(super) struct Admin(MultiplexedConnection);

impl Admin {
    pub(super) async fn to(url: &str) -> Self {
        Self(Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap())
    }

    /// Sends `command`, whose words are separated by blanks.
    pub(super) async fn say(&mut self, command: &str) -> Value {
        let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('"').as_bytes()).collect();
        self.0.send_packed_command(&cmd(&words)).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub(super) async fn text(&mut self, command: &str) -> String {
        match self.say(command).await {
            Value::BulkString(text) => String::from_utf8(text).unwrap(),
            Value::VerbatimString { text, .. } => text,
            other => format!("{other:?}"),
        }
    }
}

/// Server shared by several tests, until its last user is dropped.
pub(super) struct Common<T>(Mutex<Weak<T>>);

impl<T> Common<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    pub(super) fn get(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut there = sync::lock(&self.0);
        there.upgrade().unwrap_or_else(|| {
            let made = Arc::new(make());
            *there = Arc::downgrade(&made);
            made
        })
    }
}

/// A Cluster of three masters with a third of the slots each.
pub(super) struct Cluster {
    nodes: [Server; 3],
}

impl Cluster {
    pub(super) fn start() -> Self {
        let node = || {
            let timeout = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
            Server::with(&[&["--save", "", "--appendonly", "no"], &timeout[..]].concat())
        };
        Self { nodes: [node(), node(), node()] }
    }

    /// Joins the three servers to a Cluster, once; returns when every node reports it.
    pub(super) async fn meet(&self) {
        for (node, slots) in self.nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            let mut admin = node.admin().await;
            if admin.text("CLUSTER INFO").await.contains("cluster_slots_assigned:0") {
                let client = Client::open(node.url()).unwrap();
                let mut connection = client.get_multiplexed_async_connection().await.unwrap();
                let words: Vec<_> =
                    ["CLUSTER", "ADDSLOTSRANGE"].into_iter().chain(slots.split(' ')).map(str::as_bytes).collect();
                // Another test may have been quicker.
                let _ = connection.send_packed_command(&cmd(&words)).await;
            }
            admin.say(&format!("CLUSTER MEET 127.0.0.1 {}", self.nodes[0].port)).await;
        }
        for node in &self.nodes {
            let mut admin = node.admin().await;
            until("the Cluster is one", async || {
                let info = admin.text("CLUSTER INFO").await;
                let nodes = admin.text("CLUSTER NODES").await;
                let linked = !nodes.contains("handshake") && !nodes.contains("disconnected");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") && linked
            })
            .await;
        }
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub(super) fn node(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }
}
