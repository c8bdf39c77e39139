//! The processes: replicas of the proxy, and a Redis. Each is started, killed, frozen and started
//! again, by its id alone.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

use crate::world::within;

/// A process that a test may do anything to. Dropped, it is killed.
struct Process {
    child: Child,
}

impl Process {
    fn spawn(mut command: Command) -> Process {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        Process { child: command.spawn().unwrap_or_else(|error| panic!("{program} cannot be started: {error}")) }
    }

    /// SIGKILL, and the process is gone when this returns.
    async fn kill(&mut self) {
        self.child.start_kill().expect("it runs");
        within("a killed process ends", self.child.wait()).await.expect("a child of ours");
    }

    /// Any other signal.
    async fn signal(&self, name: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").arg(name).arg(id).status().await.expect("kill runs");
        assert!(sent.success(), "kill {name}: {sent}");
    }
}

/// One proxy: the same name, ports and store however often it is started.
pub(crate) struct Replica {
    pub(crate) addr: SocketAddr,
    pub(crate) admin: SocketAddr,
    settings: Vec<(&'static str, String)>,
    log: PathBuf,
    process: Option<Process>,
}

impl Replica {
    /// One that does not run yet.
    pub(crate) fn new(name: &str, directory: &Path, settings: &[(&'static str, String)]) -> Replica {
        let (addr, admin) = (free_address(), free_address());
        let mut settings = settings.to_vec();
        settings.push(("REPLICA__NAME", name.to_owned()));
        settings.push(("LISTEN__ADDRESS", addr.to_string()));
        settings.push(("ADMIN__ADDRESS", admin.to_string()));
        Replica { addr, admin, settings, log: directory.join(format!("{name}.log")), process: None }
    }

    /// Starts it and waits until it serves.
    pub(crate) async fn start(&mut self) {
        let stdout = self.begin();
        let mut lines = BufReader::new(stdout).lines();
        let says = async {
            while let Some(line) = lines.next_line().await.expect("text") {
                if line.starts_with("admin on ") {
                    return true;
                }
            }
            false
        };
        let serves = within("a replica starts to serve", says).await;
        assert!(serves, "a replica ended before it served; see {}", self.log.display());
    }

    /// Starts it, and does not wait.
    pub(crate) fn begin(&mut self) -> ChildStdout {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
        command.arg("serve").stdout(Stdio::piped()).stderr(log);
        for (key, value) in &self.settings {
            command.env(format!("MCP_RESUME_{key}"), value);
        }
        let mut process = Process::spawn(command);
        let stdout = process.child.stdout.take().expect("a pipe");
        self.process = Some(process);
        stdout
    }

    pub(crate) async fn kill(&mut self) {
        self.process.take().expect("it runs").kill().await;
    }

    pub(crate) async fn freeze(&mut self) {
        self.running().signal("-STOP").await;
    }

    pub(crate) async fn thaw(&mut self) {
        self.running().signal("-CONT").await;
    }

    /// SIGTERM, and what it exited with.
    pub(crate) async fn drain(&mut self) -> ExitStatus {
        self.running().signal("-TERM").await;
        let mut process = self.process.take().expect("it runs");
        within("a replica that drains ends", process.child.wait()).await.expect("a child of ours")
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    fn running(&mut self) -> &mut Process {
        self.process.as_mut().expect("it runs")
    }
}

/// Fsync policy of the Redis append-only file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Appends {
    Always,
    Everysec,
}

/// A Redis of the test's own, with its contents in an append-only file.
pub(crate) struct Redis {
    port: u16,
    directory: PathBuf,
    appends: Appends,
    process: Option<Process>,
}

impl Redis {
    pub(crate) async fn start(directory: &Path, appends: Appends) -> Redis {
        // In memory where that is to be had: a Redis that waits for its disk puts writes off and
        // answers all the same, so that a kill may take some. That is Redis's own affair.
        let directory = match (appends, Path::new("/dev/shm")) {
            (Appends::Everysec, memory) if memory.is_dir() => {
                memory.join(format!("mcp-resume-crash-{}-{}", std::process::id(), free_port()))
            }
            (Appends::Always | Appends::Everysec, _) => directory.join("redis"),
        };
        fs::create_dir_all(&directory).expect("a directory");
        let mut redis = Redis { port: free_port(), directory, appends, process: None };
        redis.restart().await;
        redis
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts it with what its file holds, and waits until it answers.
    pub(crate) async fn restart(&mut self) {
        let log = File::options().create(true).append(true).open(self.directory.join("redis.log")).expect("a log");
        let mut command = Command::new("redis-server");
        let appends = match self.appends {
            Appends::Always => "always",
            Appends::Everysec => "everysec",
        };
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", appends, "--dir"])
            .arg(&self.directory)
            .stdout(log)
            .stderr(Stdio::null());
        self.process = Some(Process::spawn(command));
        let answers = async {
            while !self.answers().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within("Redis starts to serve", answers).await;
    }

    async fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await else { return false };
        let mut answer = [0; 5];
        let said = stream.write_all(b"PING\r\n").await.is_ok() && stream.read_exact(&mut answer).await.is_ok();
        said && &answer == b"+PONG"
    }

    pub(crate) async fn kill(&mut self) {
        self.process.take().expect("it runs").kill().await;
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.directory.starts_with("/dev/shm") {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Returns a port below the kernel's ephemeral range, so that no other process takes it while its
/// own is dead.
fn free_port() -> u16 {
    // Beside the ports of the other tests.
    const FIRST: u16 = 19_000;
    const COUNT: u16 = 3_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two runs at once begin far from each other.
    let begin = (std::process::id().wrapping_mul(97) % u32::from(COUNT)) as u16;
    loop {
        let port = FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
