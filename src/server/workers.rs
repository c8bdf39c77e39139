//! Connections on their way from the thread that accepts to those that serve.
//!
//! Each worker gets the next connection in turn, so that they share the work evenly. **Invariant:** a worker that is busy stops neither
//! the acceptor nor another worker: it is passed over while connections wait for it. Absent: what a connection is served by.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::accept::{Accept, pause_after};

/// A worker for which so many connections wait is behind: others get the next ones.
const BEHIND: usize = 4;

/// A connection that was accepted on another thread.
pub type Handed = (std::net::TcpStream, SocketAddr);

/// Accepts for `workers` until `shutdown`.
pub async fn hand_out(
    mut listener: TcpListener,
    workers: Vec<mpsc::Sender<Handed>>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            accepted = Accept::accept(&mut listener) => accepted,
            () = &mut shutdown => return,
        };
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok(handed) => {
                tokio::select! {
                    () = hand(handed, &workers, turn) => turn = (turn + 1) % workers.len().max(1),
                    () = &mut shutdown => return,
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Hands one connection over. Waits only while no worker has room.
async fn hand(handed: Handed, workers: &[mpsc::Sender<Handed>], turn: usize) {
    match choose(workers, turn) {
        // A worker that is gone is on its way out, and so are we.
        Some(worker) => drop(worker.try_send(handed)),
        None => {
            if let Some(room) = first_room(workers).await {
                room.send(handed);
            }
        }
    }
}

/// The worker whose turn it is, or the one that fewest connections wait for where that one is behind. `None`: none has room.
fn choose(workers: &[mpsc::Sender<Handed>], turn: usize) -> Option<&mpsc::Sender<Handed>> {
    let waiting = |worker: &mpsc::Sender<Handed>| worker.max_capacity() - worker.capacity();
    let in_turn = || workers.iter().cycle().skip(turn).take(workers.len());
    let with_room = in_turn().filter(|worker| worker.capacity() > 0);
    let chosen = in_turn().next().filter(|worker| waiting(worker) < BEHIND && worker.capacity() > 0);
    chosen.or_else(|| with_room.min_by_key(|worker| waiting(worker)))
}

/// The first room that any worker has. `None`: they are gone.
async fn first_room(workers: &[mpsc::Sender<Handed>]) -> Option<mpsc::Permit<'_, Handed>> {
    let mut rooms: Vec<_> = workers.iter().map(|worker| Box::pin(worker.reserve())).collect();
    poll_fn(|cx| {
        for room in &mut rooms {
            if let Poll::Ready(room) = room.as_mut().poll(cx) {
                return Poll::Ready(room.ok());
            }
        }
        if rooms.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

impl Accept for mpsc::Receiver<Handed> {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        match self.recv().await {
            Some((stream, peer)) => Ok((TcpStream::from_std(stream)?, peer)),
            // Nobody accepts any more; what is open goes on.
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acceptor before workers that have room for so many connections each.
    async fn acceptor(rooms: &[usize]) -> (SocketAddr, Vec<mpsc::Receiver<Handed>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (senders, workers) = rooms.iter().map(|room| mpsc::channel(*room)).unzip();
        tokio::spawn(hand_out(listener, senders, pending()));
        (addr, workers)
    }

    /// So many connections, one after another; the ports they come from.
    async fn connect(addr: SocketAddr, many: usize) -> Vec<(TcpStream, SocketAddr)> {
        let mut clients = Vec::new();
        for _ in 0..many {
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
            let (_, peer) = workers[n % 2].recv().await.expect("its turn");
            assert_eq!(peer, from);
        }
    }

    #[tokio::test]
    async fn a_worker_that_takes_nothing_is_passed_over() {
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
    async fn where_no_worker_has_room_the_first_that_has_gets_the_connection() {
        let (addr, mut workers) = acceptor(&[1, 1]).await;
        let clients = connect(addr, 10).await;
        // All but one is taken by the second worker: the first takes nothing.
        for _ in 0..clients.len() - 1 {
            workers[1].recv().await.expect("a connection");
        }
        assert_eq!(workers[0].len(), 1);
    }
}
