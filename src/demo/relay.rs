//! The bad network of the demo: a TCP relay that resets its connections on command.
//!
//! It copies bytes and knows nothing of HTTP. A client sees a reset in the middle of a response,
//! the same fault as from a load balancer, a Wi-Fi change or a laptop lid.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A running relay. Dropping it closes its listener and its connections.
pub(super) struct Relay {
    address: SocketAddr,
    cuts: watch::Sender<u64>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay on a free loopback port, in front of `target`.
    pub(super) async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let cuts = watch::Sender::new(0);
        let accepting = tokio::spawn(relay_each(listener, target, cuts.clone()));
        Ok(Self { address, cuts, accepting })
    }

    /// Address of its listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets all open connections, towards both ends. Later connections are relayed again.
    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Relays each connection in a task of its own, until a connection cannot be accepted. Dropping the
/// future closes the connections.
async fn relay_each(listener: TcpListener, target: SocketAddr, cuts: watch::Sender<u64>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        // An error ends the connection, which both ends notice.
        connections.spawn(copy(client, target, cuts.subscribe()));
    }
}

/// Copies in both directions until either side ends or the connection is cut.
async fn copy(mut client: TcpStream, target: SocketAddr, mut cut: watch::Receiver<u64>) -> io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied.map(|_| ()),
        _ = cut.changed() => {
            // No lingering: the close becomes a reset, and undelivered bytes are lost.
            client.set_zero_linger()?;
            server.set_zero_linger()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn pair(relay: &Relay, target: &TcpListener) -> (TcpStream, TcpStream) {
        let (client, server) = tokio::join!(TcpStream::connect(relay.address()), target.accept());
        (client.unwrap(), server.unwrap().0)
    }

    async fn pass(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(b"ping").await.unwrap();
        let mut read = [0; 4];
        to.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ping");
    }

    #[tokio::test]
    async fn a_cut_resets_both_ends_and_later_connections_work() {
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::start(target.local_addr().unwrap()).await.unwrap();
        let (mut client, mut server) = pair(&relay, &target).await;
        pass(&mut client, &mut server).await;
        pass(&mut server, &mut client).await;

        relay.cut();
        for end in [&mut client, &mut server] {
            let error = end.read(&mut [0; 4]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "an orderly end is no cut");
        }

        let (mut client, mut server) = pair(&relay, &target).await;
        pass(&mut client, &mut server).await;
    }

    #[tokio::test]
    async fn an_orderly_end_stays_orderly() {
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::start(target.local_addr().unwrap()).await.unwrap();
        let (mut client, mut server) = pair(&relay, &target).await;
        pass(&mut client, &mut server).await;
        drop(client);
        assert_eq!(server.read(&mut [0; 4]).await.unwrap(), 0);
    }
}
