use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use tokio::net::TcpListener as TokioListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;

struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes())));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("upgrade")
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bind() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener.local_addr().unwrap(), listener)
}

fn copy(listeners: &Listeners) -> Listeners {
    listeners.iter().map(|(address, listener)| (*address, listener.try_clone().unwrap())).collect()
}

/// A server that writes `name` to every connection and closes it, until stopped. An accepted
/// connection is always served.
struct Server {
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    fn start(listener: TcpListener, name: &'static str) -> Self {
        let (listener, stop) = (TokioListener::from_std(listener).unwrap(), CancellationToken::new());
        let stopped = stop.clone();
        let serving = tokio::spawn(async move {
            while let Some(accepted) = stopped.run_until_cancelled(listener.accept()).await {
                accepted.unwrap().0.write_all(name.as_bytes()).await.unwrap();
            }
        });
        Self { stop, serving }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

async fn take_from(path: &Path) -> Result<Option<(Listeners, Predecessor)>, Error> {
    let path = path.to_owned();
    spawn_blocking(move || take(&path)).await.unwrap()
}

async fn taken(path: &Path) -> (Listeners, Predecessor) {
    take_from(path).await.unwrap().expect("a process waits")
}

/// Starts a process that serves `listeners` and waits for the next.
async fn waiting(path: &Path, listeners: Listeners) -> JoinHandle<()> {
    tokio::spawn(offer(path, listeners, None).await.unwrap().handed_over())
}

async fn is_waiting(path: &Path) -> bool {
    take_from(path).await.unwrap().is_some()
}

#[tokio::test]
async fn an_absent_path_yields_no_listeners() {
    assert!(!is_waiting(&Dir::new().socket()).await);
}

#[tokio::test]
async fn the_socket_of_a_dead_process_is_replaced() {
    let dir = Dir::new();
    drop(UnixListener::bind(dir.socket()).unwrap());
    assert!(!is_waiting(&dir.socket()).await);
    let _process = waiting(&dir.socket(), vec![bind()]).await;
    assert!(is_waiting(&dir.socket()).await);
    let found = fs::metadata(dir.socket()).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(dir.names(), ["upgrade"]);
}

#[tokio::test]
async fn another_kind_of_file_is_left_in_place() {
    let dir = Dir::new();
    fs::write(dir.socket(), "precious").unwrap();
    assert!(matches!(take_from(&dir.socket()).await, Err(Error::NotOurSocket)));
    assert!(matches!(offer(&dir.socket(), vec![bind()], None).await, Err(Error::NotOurSocket)));
    assert_eq!(fs::read(dir.socket()).unwrap(), b"precious");
    assert_eq!(dir.names(), ["upgrade"]);
}

#[tokio::test]
async fn listeners_arrive_with_their_addresses_in_order() {
    let dir = Dir::new();
    let (data, admin) = (bind(), bind());
    let asked_for = "0.0.0.0:0".parse().unwrap();
    let ports = [data.0.port(), admin.0.port()];
    let _process = waiting(&dir.socket(), vec![(asked_for, data.1), admin]).await;
    let (listeners, _) = taken(&dir.socket()).await;
    assert_eq!(listeners[0].0, asked_for);
    assert_eq!(listeners[1].0.port(), ports[1]);
    assert_eq!(listeners.iter().map(|(_, l)| l.local_addr().unwrap().port()).collect::<Vec<_>>(), ports);
}

#[tokio::test]
async fn more_listeners_than_a_message_holds_are_refused() {
    let dir = Dir::new();
    let listeners = (0..9).map(|_| bind()).collect();
    assert!(matches!(offer(&dir.socket(), listeners, None).await, Err(Error::TooMany)));
    let _process = waiting(&dir.socket(), (0..8).map(|_| bind()).collect()).await;
    assert_eq!(taken(&dir.socket()).await.0.len(), 8);
}

/// Connects repeatedly and sends the names of the servers, until the receiver is dropped. Panics if
/// no server responds.
fn connect_repeatedly(address: SocketAddr) -> UnboundedReceiver<String> {
    let (answered, answers) = unbounded_channel();
    thread::spawn(move || {
        loop {
            let mut name = String::new();
            TcpStream::connect(address).unwrap().read_to_string(&mut name).unwrap();
            assert!(!name.is_empty());
            if answered.send(name).is_err() {
                return;
            }
        }
    });
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_refused_during_upgrades() {
    let dir = Dir::new();
    let listeners = vec![bind()];
    let mut answers = connect_repeatedly(listeners[0].0);
    let mut server = Server::start(copy(&listeners).remove(0).1, "first");
    let mut process = waiting(&dir.socket(), listeners).await;
    assert_eq!(answers.recv().await.expect("every connection is served"), "first");
    for name in ["second", "third"] {
        let (listeners, predecessor) = taken(&dir.socket()).await;
        let next = Server::start(copy(&listeners).remove(0).1, name);
        assert!(!process.is_finished(), "before the next one is ready");
        let offer = offer(&dir.socket(), listeners, Some(predecessor)).await.unwrap();
        process.await.unwrap();
        server.stop().await;
        (server, process) = (next, tokio::spawn(offer.handed_over()));
        while answers.recv().await.expect("every connection is served") != name {}
    }
    drop(answers);
    server.stop().await;
    assert_eq!(dir.names(), ["upgrade"]);
}

#[tokio::test]
async fn a_successor_that_dies_changes_nothing() {
    let dir = Dir::new();
    let process = waiting(&dir.socket(), vec![bind()]).await;
    for _ in 0..3 {
        drop(taken(&dir.socket()).await);
    }
    let (listeners, predecessor) = taken(&dir.socket()).await;
    assert!(!process.is_finished());
    let _next = offer(&dir.socket(), listeners, Some(predecessor)).await.unwrap();
    process.await.unwrap();
}

#[tokio::test]
async fn of_two_successors_the_second_is_refused() {
    let dir = Dir::new();
    let process = waiting(&dir.socket(), vec![bind()]).await;
    let (listeners, predecessor) = taken(&dir.socket()).await;
    for _ in 0..2 {
        assert!(matches!(take_from(&dir.socket()).await, Err(Error::Busy)));
    }
    let next = offer(&dir.socket(), listeners, Some(predecessor)).await.unwrap();
    process.await.unwrap();
    let next = tokio::spawn(next.handed_over());
    assert!(is_waiting(&dir.socket()).await);
    assert!(!next.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_hangs_misses_its_deadline() {
    let dir = Dir::new();
    let process = waiting(&dir.socket(), vec![bind()]).await;
    let (listeners, predecessor) = taken(&dir.socket()).await;
    tokio::time::sleep(Duration::from_secs(119)).await;
    assert!(matches!(take_from(&dir.socket()).await, Err(Error::Busy)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(offer(&dir.socket(), listeners, Some(predecessor)).await, Err(Error::Io(_))));
    assert!(is_waiting(&dir.socket()).await, "the path is still the first one's");
    assert!(!process.is_finished());
    assert_eq!(dir.names(), ["upgrade"]);
}

#[tokio::test]
async fn a_successor_with_another_protocol_changes_nothing() {
    let dir = Dir::new();
    let process = waiting(&dir.socket(), vec![bind()]).await;
    let path = dir.socket();
    let talk = move || {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // The listeners' addresses, and the end.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    spawn_blocking(talk).await.unwrap();
    assert!(is_waiting(&dir.socket()).await);
    assert!(!process.is_finished());
}

#[tokio::test]
async fn a_predecessor_with_another_protocol_hands_over_nothing() {
    for (message, is_expected) in [
        ("mcp-resume listeners 2\n\n", true),
        ("mcp-resume listeners 1\n127.0.0.1:80\n\n", true),
        ("mcp-resume listeners 1\nhere\n\n", true),
        ("\n\n", true),
        ("mcp-resume listeners 1\n127.0.0.1:80\n", false),
        ("", false),
    ] {
        let dir = Dir::new();
        let socket = UnixListener::bind(dir.socket()).unwrap();
        let other = thread::spawn(move || socket.accept().unwrap().0.write_all(message.as_bytes()));
        let taken = take_from(&dir.socket()).await;
        assert_eq!(matches!(taken, Err(Error::Protocol(_))), is_expected, "{message}: {taken:?}");
        assert_eq!(matches!(taken, Err(Error::Io(_))), !is_expected, "{message}: {taken:?}");
        other.join().unwrap().unwrap();
    }
}

#[test]
fn a_silent_predecessor_misses_its_deadline() {
    let dir = Dir::new();
    let _socket = UnixListener::bind(dir.socket()).unwrap();
    assert!(matches!(take_within(&dir.socket(), Duration::from_millis(20)), Err(Error::TimedOut)));
}
