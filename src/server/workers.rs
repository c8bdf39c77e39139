//! Worker threads, and the distribution of accepted connections among them.
//!
//! Workers get connections in turn, so that they share the work evenly. **Invariant:** a busy
//! worker blocks neither the acceptor nor another worker. While it is behind, others get the next
//! connections. Absent: serving a connection.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::thread;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::mpsc;

use super::accept::{Accept, next_waiting, pause_after};
use super::listener::BACKLOG;

/// A worker with this many waiting connections is behind: others get the next ones.
const BEHIND: usize = 4;

/// A connection accepted on another thread.
pub type AcceptedConnection = (std::net::TcpStream, SocketAddr);

/// Starts a worker thread with a runtime of its own, where `serve` takes its connections. Returns
/// the queue of connections, with room for `queue`.
///
/// # Errors
/// If the thread or its runtime cannot be created.
pub fn start_worker<F: Future<Output = ()>>(
    index: usize,
    queue: usize,
    serve: impl FnOnce(mpsc::Receiver<AcceptedConnection>) -> F + Send + 'static,
) -> io::Result<mpsc::Sender<AcceptedConnection>> {
    let (sender, connections) = mpsc::channel(queue);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(format!("worker-{index}")).spawn(move || runtime.block_on(serve(connections)))?;
    Ok(sender)
}

/// Accepts connections and distributes them to the queues of `workers` until `shutdown`. A
/// connection that is accepted then is still sent to a worker.
pub async fn distribute(
    listener: &mut TcpListener,
    workers: &[mpsc::Sender<AcceptedConnection>],
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            accepted = Accept::accept(listener) => accepted,
            () = &mut shutdown => return,
        };
        match accepted {
            Ok(accepted) => {
                send(accepted, workers, turn).await;
                turn = (turn + 1) % workers.len().max(1);
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Distributes the connections that wait to be accepted, before the listener is closed. The workers
/// must stop after the end of this.
pub async fn distribute_waiting(listener: &mut TcpListener, workers: &[mpsc::Sender<AcceptedConnection>]) {
    for _ in 0..BACKLOG {
        let Some(accepted) = next_waiting(listener).await else { return };
        send(accepted, workers, 0).await;
    }
}

/// Sends one connection to a worker. Waits only if all queues are full.
async fn send((stream, peer): (TcpStream, SocketAddr), workers: &[mpsc::Sender<AcceptedConnection>], turn: usize) {
    let accepted = match stream.into_std() {
        Ok(stream) => (stream, peer),
        Err(error) => return pause_after(&error).await,
    };
    match choose(workers, turn) {
        Some(worker) => {
            // A worker is gone only if the process ends.
            let _ = worker.try_send(accepted);
        }
        None => {
            if let Some(permit) = first_permit(workers).await {
                permit.send(accepted);
            }
        }
    }
}

/// Returns the next worker in turn, or the worker with the shortest queue if the next one is
/// behind. `None` if all queues are full.
fn choose(workers: &[mpsc::Sender<AcceptedConnection>], turn: usize) -> Option<&mpsc::Sender<AcceptedConnection>> {
    let waiting = |worker: &mpsc::Sender<AcceptedConnection>| worker.max_capacity() - worker.capacity();
    let in_turn = || workers.iter().cycle().skip(turn).take(workers.len());
    let with_room = in_turn().filter(|worker| worker.capacity() > 0);
    let chosen = in_turn().next().filter(|worker| waiting(worker) < BEHIND && worker.capacity() > 0);
    chosen.or_else(|| with_room.min_by_key(|worker| waiting(worker)))
}

/// Waits for a place in any queue. `None` if the workers are gone.
async fn first_permit(workers: &[mpsc::Sender<AcceptedConnection>]) -> Option<mpsc::Permit<'_, AcceptedConnection>> {
    let mut reservations: Vec<_> = workers.iter().map(|worker| Box::pin(worker.reserve())).collect();
    poll_fn(|cx| {
        for reservation in &mut reservations {
            if let Poll::Ready(permit) = reservation.as_mut().poll(cx) {
                return Poll::Ready(permit.ok());
            }
        }
        if reservations.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

impl Accept for mpsc::Receiver<AcceptedConnection> {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        match self.recv().await {
            Some((stream, peer)) => Ok((TcpStream::from_std(stream)?, peer)),
            // The acceptor is gone. Open connections continue.
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts an acceptor for workers with queues of these lengths.
    async fn acceptor(queues: &[usize]) -> (SocketAddr, Vec<mpsc::Receiver<AcceptedConnection>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (senders, workers): (Vec<_>, Vec<_>) = queues.iter().map(|queue| mpsc::channel(*queue)).unzip();
        tokio::spawn(async move {
            let mut listener = listener;
            distribute(&mut listener, &senders, pending()).await;
        });
        (addr, workers)
    }

    #[tokio::test]
    async fn connections_that_wait_to_be_accepted_are_distributed_at_the_end() {
        const WAITING: usize = 100;
        let mut listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let clients = connect(addr, WAITING).await;
        let (sender, mut worker) = mpsc::channel(WAITING);
        let senders = [sender];
        distribute(&mut listener, &senders, async {}).await;
        distribute_waiting(&mut listener, &senders).await;
        drop((listener, senders));
        let mut peers = Vec::new();
        while let Some((_, peer)) = worker.recv().await {
            peers.push(peer);
        }
        assert_eq!(peers, clients.iter().map(|(_, from)| *from).collect::<Vec<_>>());
    }

    /// Opens `count` connections one after another. Returns them with their local addresses.
    async fn connect(addr: SocketAddr, count: usize) -> Vec<(TcpStream, SocketAddr)> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = TcpStream::connect(addr).await.expect("a connection");
            let from = client.local_addr().expect("an address");
            clients.push((client, from));
        }
        clients
    }

    #[tokio::test]
    async fn workers_take_turns() {
        let (addr, mut workers) = acceptor(&[8, 8]).await;
        for (n, (_client, from)) in connect(addr, 6).await.into_iter().enumerate() {
            let (_, peer) = workers[n % 2].recv().await.expect("a connection in turn");
            assert_eq!(peer, from);
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_behind_is_passed_over() {
        let (addr, mut workers) = acceptor(&[8, 8]).await;
        let mut taken = 0;
        for n in 1..=40 {
            let _client = TcpStream::connect(addr).await.expect("a connection");
            while workers[0].len() + taken < n {
                tokio::task::yield_now().await;
                taken += usize::from(workers[1].try_recv().is_ok());
            }
        }
        assert_eq!((workers[0].len(), taken), (BEHIND, 40 - BEHIND));
    }

    #[tokio::test]
    async fn with_full_queues_the_first_free_worker_gets_the_connection() {
        let (addr, mut workers) = acceptor(&[1, 1]).await;
        let clients = connect(addr, 10).await;
        // The second worker takes all but one: the first takes none.
        for _ in 0..clients.len() - 1 {
            workers[1].recv().await.expect("a connection");
        }
        assert_eq!(workers[0].len(), 1);
    }
}
