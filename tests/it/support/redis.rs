//! A server of Redis: a process of its own on 127.0.0.1, which ends with the test.

use mcp_resume::config::{Config, OnUnreachable, RedisStore, Store};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

/// Waits for the end of its input, which comes when the tests end for any reason.
const KEEPER: &str = r#""$@" </dev/null & exec >/dev/null; read _; kill -9 $!; wait"#;
/// Below the ports that systems hand out by themselves, and beside those of the other tests: the
/// end-to-end suite has 10000 to 16000, the store 16000 to 19000 (and 26000 to 29000), the crash
/// tests 19000 to 22000. A program that is away for a moment loses its port to no other.
const PORTS: std::ops::Range<u16> = 22000..26000;
const TRIES: usize = 20;

/// TCP relay. While it is cut, connections are accepted and end at once.
pub(crate) struct Relay {
    port: u16,
    is_cut: watch::Sender<bool>,
    running: tokio::task::JoinHandle<()>,
}

impl Relay {
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(crate) struct Redis {
    port: u16,
    dir: PathBuf,
    running: Option<Child>,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        for _ in 0..TRIES {
            let mine = std::process::id() as u16;
            let number = mine.wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = PORTS.start + number % (PORTS.end - PORTS.start);
            let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{port}"));
            let mut redis = Redis { port, dir, running: None };
            if redis.try_begin().is_ok() {
                return redis;
            }
        }
        panic!("no port in {TRIES} tries, or no redis-server: is it installed?");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A way to it that can be cut for one replica alone.
    pub(crate) async fn relay(&self) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (is_cut, port_of_redis) = (watch::Sender::new(false), self.port);
        let cutting = is_cut.subscribe();
        let running = tokio::spawn(async move {
            loop {
                let Ok((mut near, _)) = listener.accept().await else { return };
                let mut cutting = cutting.clone();
                tokio::spawn(async move {
                    let mut far = tokio::net::TcpStream::connect(("127.0.0.1", port_of_redis)).await?;
                    tokio::select! {
                        _ = cutting.wait_for(|is_cut| *is_cut) => Ok(()),
                        copied = tokio::io::copy_bidirectional(&mut near, &mut far) => copied.map(drop),
                    }
                });
            }
        });
        Relay { port, is_cut, running }
    }

    /// A replica of this name that uses it.
    pub(crate) fn of(&self, name: &str, on_unreachable: OnUnreachable) -> impl FnOnce(&mut Config) + use<> {
        let (url, name) = (self.url(), name.to_owned());
        move |config| {
            let prefix = "mcp-resume:".to_owned();
            config.store = Store::Redis(RedisStore { url, prefix, ca: None, identity: None, on_unreachable });
            config.replica.name = Some(name);
            config.replica.lease = Duration::from_secs(2);
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
        }
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut keeper) = self.running.take() {
            drop(keeper.stdin.take());
            keeper.wait().expect("the keeper ends");
        }
    }

    /// Starts it again where it was, with what it has kept.
    pub(crate) fn begin_again(&mut self) {
        self.try_begin().expect("it starts again");
    }

    /// Starts it again where it was, with nothing.
    pub(crate) fn begin_empty(&mut self) {
        fs::remove_dir_all(&self.dir).expect("its directory");
        self.begin_again();
    }

    /// Forgets everything, and goes on.
    pub(crate) fn empty(&self) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        connection.write_all(b"FLUSHALL\r\n").expect("it listens");
        let mut said = [0; 5];
        connection.read_exact(&mut said).expect("it answers");
        assert_eq!(&said, b"+OK\r\n");
    }

    /// Lets replicas that have had a message take no more of them, or take them again. All else
    /// goes on.
    pub(crate) fn lose_mail(&self, is_lost: bool) {
        let does = if is_lost { "'SET', key, ''" } else { "'DEL', key" };
        let script =
            format!("for _, key in ipairs(redis.call('KEYS', '*{{mail:*}}:n')) do redis.call({does}) end return 1");
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        write!(connection, "EVAL \"{script}\" 0\r\n").expect("it listens");
        let line = BufReader::new(connection).lines().next().expect("it answers").expect("text");
        assert_eq!(line, ":1");
    }

    /// Returns the time that the last key matching `pattern` is kept, or `None` if there is none.
    pub(crate) fn lasts(&self, pattern: &str) -> Option<Duration> {
        const SCRIPT: &str = "local last = -1 for _, key in ipairs(redis.call('KEYS', ARGV[1])) do \
             last = math.max(last, redis.call('PTTL', key)) end return last";
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        write!(connection, "EVAL \"{SCRIPT}\" 0 {pattern}\r\n").expect("it listens");
        let line = BufReader::new(connection).lines().next().expect("it answers").expect("text");
        let last: i64 = line.strip_prefix(':').and_then(|last| last.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        last.try_into().ok().map(Duration::from_millis)
    }

    /// Returns whether it has a record of this kind that contains `text`.
    pub(crate) fn has_record(&self, kind: &str, text: &str) -> bool {
        let script = format!(
            "for _, key in ipairs(redis.call('KEYS', '*rec:{kind}*')) do \
             if string.find(redis.call('GET', key), '{text}', 1, true) then return 1 end end return 0"
        );
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        write!(connection, "EVAL \"{script}\" 0\r\n").expect("it listens");
        BufReader::new(connection).lines().next().expect("it answers").expect("text") == ":1"
    }

    /// Waits until it has as many claims of calls.
    pub(crate) async fn has_claims(&self, claims: usize) {
        let count = async || {
            let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
            write!(connection, "EVAL \"return #redis.call('KEYS', '*rec:run*')\" 0\r\n").expect("it listens");
            BufReader::new(connection).lines().next().expect("it answers").expect("text")
        };
        super::until("the calls are claimed", async || count().await == format!(":{claims}")).await;
    }

    /// Returns the number of times that it ran a command.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        connection.write_all(b"INFO commandstats\r\nQUIT\r\n").expect("it listens");
        let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
        let prefix = format!("cmdstat_{command}:calls=");
        let calls = lines.find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
        calls.unwrap_or_default()
    }

    /// The number of its process, which a frozen one cannot tell.
    pub(crate) fn process_id(&self) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        connection.write_all(b"INFO server\r\n").expect("it listens");
        let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
        let line = lines.find_map(|line| line.strip_prefix("process_id:").map(str::to_owned));
        line.expect("it tells its process").trim().to_owned()
    }

    /// Sends that process a signal: one that is stopped leaves what it is sent in its sockets.
    pub(crate) fn signal(&self, signal: &str, process_id: &str) {
        let sent = Command::new("kill").args([signal, process_id]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Remembers what it holds now.
    pub(crate) fn remember(&self) {
        copy(&self.dir, &self.remembered());
    }

    /// Starts it again where it was, with what is remembered.
    pub(crate) fn begin_as_remembered(&mut self) {
        fs::remove_dir_all(&self.dir).expect("its directory");
        copy(&self.remembered(), &self.dir);
        self.begin_again();
    }

    fn remembered(&self) -> PathBuf {
        self.dir.with_extension("remembered")
    }

    fn try_begin(&mut self) -> Result<(), ()> {
        fs::create_dir_all(&self.dir).expect("a directory");
        // Every write is on the disk itself before it is answered.
        let keeps = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
        let mut keeper = Command::new("sh")
            .args([
                "-c",
                KEEPER,
                "sh",
                "redis-server",
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--dir",
            ])
            .arg(&self.dir)
            .args(keeps)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut lines = BufReader::new(keeper.stdout.take().expect("it is piped")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        if is_ready {
            std::thread::spawn(move || lines.for_each(drop));
            self.running = Some(keeper);
            return Ok(());
        }
        drop(keeper.stdin.take());
        let _ = keeper.wait();
        Err(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
        let _ = fs::remove_dir_all(self.remembered());
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").map(|entry| entry.expect("an entry")) {
        let to = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).expect("a file")),
        }
    }
}
