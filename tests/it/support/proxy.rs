//! The proxy under test, in this process, through its public interface alone.

use super::upstream::Upstream;
use super::within;
use mcp_resume::app::Server;
use mcp_resume::config::Config;
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
    /// What its data listener proves itself by, if it speaks TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// What it believes its upstream by and shows it, if it speaks TLS to it.
    pub(crate) upstream_files: Option<Arc<ClientFiles>>,
    /// Where the admin listener listens, if the configuration asks for one.
    pub(crate) admin: Option<SocketAddr>,
    shutdown: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Proxy {
    /// In front of `upstream`, with the configuration of [`patient`] changed by `change`.
    pub(crate) async fn start(upstream: &Upstream, change: impl FnOnce(&mut Config)) -> Proxy {
        Proxy::to_url(&upstream.url(), change).await
    }

    pub(crate) async fn to_url(url: &str, change: impl FnOnce(&mut Config)) -> Proxy {
        let mut config = patient(url);
        change(&mut config);
        let server = Server::bind(config).await.expect("a bound server");
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
        Proxy { addr, certificates, upstream_files, admin, shutdown, running }
    }

    /// The binary before `upstream`, as `serve` runs it, with everything it can say in the file `log`.
    pub(crate) async fn binary(upstream: &Upstream, log: &Path) -> Proxy {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
            .args(["serve", "--upstream", &upstream.url(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("MCP_RESUME_LOG__LEVEL", "trace")
            .stdout(Stdio::piped())
            .stderr(File::create(log).expect("a log file"))
            .kill_on_drop(true)
            .spawn()
            .expect("the binary runs");
        let mut said = BufReader::new(child.stdout.take().expect("its stdout is piped")).lines();
        let mut addresses = Vec::new();
        for _ in 0..2 {
            let line = within("an address", said.next_line()).await.expect("text").expect("a line");
            let authority = line.split("http://").nth(1).and_then(|url| url.split('/').next());
            addresses.push(authority.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}")));
        }
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(async move {
            // A test that is over without asking kills it.
            if asked.await.is_ok() {
                let pid = child.id().expect("it runs").to_string();
                Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
                assert_eq!(child.wait().await.expect("a status").code(), Some(0));
            }
        });
        Proxy {
            addr: addresses[0],
            certificates: None,
            upstream_files: None,
            admin: Some(addresses[1]),
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
        self.shutdown.send(()).expect("the server runs");
        async { within("the server stops", self.running).await.expect("the server ends well") }
    }
}

/// The defaults, except that nothing happens because a loaded machine was slow: no commit before
/// the upstream's head.
fn patient(url: &str) -> Config {
    let mut config = Config::for_upstream(url).expect("a usable URL");
    config.delivery.commit_after = None;
    config
}

/// Short enough to wait for, for timers whose passing is the thing tested.
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// The same for timers that run while a test is still setting up.
pub(crate) const LATER: Duration = Duration::from_millis(700);
