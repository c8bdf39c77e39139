//! The proxy under test, in this process, through its public interface alone.

use super::upstream::Upstream;
use super::within;
use mcp_resume::config::Config;
use mcp_resume::sidecar::{self, Server};
use mcp_resume::tls::{Certificates, ClientFiles};
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running sidecar; it ends with the test's runtime.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    /// Certificates of its data listener, if that speaks TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// TLS files for its upstream, if it speaks TLS to it.
    pub(crate) upstream_files: Option<Arc<ClientFiles>>,
    /// Address of the admin listener, if the configuration asks for one.
    pub(crate) admin: Option<SocketAddr>,
    /// The process that it is, where it is one of its own.
    pid: Option<u32>,
    shutdown: oneshot::Sender<Ending>,
    running: JoinHandle<()>,
}

/// Way to end the proxy.
enum Ending {
    /// A request to shut down.
    Asked,
    /// Without a word. For processes alone.
    Killed,
}

impl Proxy {
    /// In front of `upstream`, with the configuration of [`patient`] changed by `change`.
    pub(crate) async fn start(upstream: &Upstream, change: impl FnOnce(&mut Config)) -> Proxy {
        Proxy::to_url(&upstream.url(), change).await
    }

    pub(crate) async fn to_url(url: &str, change: impl FnOnce(&mut Config)) -> Proxy {
        Proxy::try_to_url(url, change).await.expect("a bound server")
    }

    /// Starts a proxy that may fail to start.
    pub(crate) async fn try_to_url(url: &str, change: impl FnOnce(&mut Config)) -> Result<Proxy, sidecar::Error> {
        let mut config = patient(url);
        change(&mut config);
        Proxy::configured(config).await
    }

    /// Not part of what is generic above: each test would be compiled with the whole of it.
    async fn configured(config: Config) -> Result<Proxy, sidecar::Error> {
        let server = Box::pin(Server::bind(config)).await?;
        let (addr, admin) = (server.local_addr(), server.admin_addr());
        let certificates = server.certificates().cloned();
        let upstream_files = server.upstream_files().cloned();
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(async move {
            let asked = async {
                let _ = asked.await;
            };
            let ran = match crate::WORKERS {
                None => server.run(asked).await,
                Some(workers) => server.run_on_threads(workers, asked).await,
            };
            ran.expect("the server runs");
        });
        Ok(Proxy { addr, certificates, upstream_files, admin, pid: None, shutdown, running })
    }

    /// The binary before `upstream`, as `serve` runs it, with everything it can say in the file
    /// `log`.
    pub(crate) async fn binary(upstream: &Upstream, log: &Path) -> Proxy {
        let mut command = command(upstream);
        command.env("MCP_RESUME_UPSTREAM__WAIT_SECS", "0");
        command.env("MCP_RESUME_LOG__LEVEL", "trace").stderr(File::create(log).expect("a log file"));
        Proxy::process(command).await
    }

    /// Starts a command made by [`command`] as a process of its own.
    pub(crate) async fn process(mut command: Command) -> Proxy {
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("the binary runs");
        let pid = child.id();
        let mut said = BufReader::new(child.stdout.take().expect("its stdout is piped")).lines();
        let mut addresses = Vec::new();
        for _ in 0..2 {
            let line = within("an address", said.next_line()).await.expect("text").expect("a line");
            let authority = line.split("http://").nth(1).and_then(|url| url.split('/').next());
            addresses.push(authority.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}")));
        }
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(async move {
            match asked.await {
                Ok(Ending::Asked) => {
                    signal(child.id(), "TERM").await;
                    assert_eq!(child.wait().await.expect("a status").code(), Some(0));
                }
                // So does a test that is over without asking.
                Ok(Ending::Killed) | Err(_) => child.kill().await.expect("it runs"),
            }
        });
        Proxy {
            addr: addresses[0],
            certificates: None,
            upstream_files: None,
            admin: Some(addresses[1]),
            pid,
            shutdown,
            running,
        }
    }

    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(self) {
        self.ask_to_stop().await;
    }

    /// Asks it to stop; the future resolves once it has.
    pub(crate) fn ask_to_stop(self) -> impl Future<Output = ()> {
        self.end(Ending::Asked)
    }

    /// Kills the process and waits until it is gone.
    pub(crate) async fn kill(self) {
        assert!(self.pid.is_some(), "not a process of its own");
        self.end(Ending::Killed).await;
    }

    /// Sends the process a signal.
    pub(crate) async fn signal(&self, name: &str) {
        signal(self.pid, name).await;
    }

    /// The process that it is.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.expect("a process that runs")
    }

    fn end(self, how: Ending) -> impl Future<Output = ()> {
        assert!(self.shutdown.send(how).is_ok(), "the server runs");
        async { within("the server stops", self.running).await.expect("the server ends well") }
    }
}

/// The binary before `upstream`, as `serve` runs it on free ports.
pub(crate) fn command(upstream: &Upstream) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--upstream", &upstream.url(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command
}

async fn signal(pid: Option<u32>, name: &str) {
    let pid = pid.expect("a process that runs").to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().await.expect("kill runs");
    assert!(sent.success());
}

/// The defaults, except that nothing happens because a loaded machine was slow, or because a test
/// lets time pass: no commit before the upstream's head, and no ping.
fn patient(url: &str) -> Config {
    let mut config = Config::for_upstream(url).expect("a usable URL");
    config.delivery.commit_after = None;
    config.upstream.keepalive = None;
    config.delivery.progress = None;
    config
}

/// Short enough to wait for, for timers whose passing is the thing tested.
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// Delay of timers that run while a test is still setting up.
pub(crate) const LATER: Duration = Duration::from_millis(700);
