//! The network: pipes in memory. A cut is a pipe that is dropped with what it holds; a reader that stands still fills its pipe.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mcp_resume::server::Accept;
use mcp_resume::upstream::{Dial, DialFuture, Wire};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

use super::world::World;

/// Listener whose connections are pipes that the other end pushes in.
pub(crate) struct Listener(mpsc::UnboundedReceiver<DuplexStream>);

/// Makes pipes to a [`Listener`].
#[derive(Clone)]
pub(crate) struct Dialer(mpsc::UnboundedSender<DuplexStream>, usize);

/// Pipes that hold `capacity` bytes in each direction.
pub(crate) fn network(capacity: usize) -> (Dialer, Listener) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Dialer(sender, capacity), Listener(receiver))
}

impl Dialer {
    /// A new pipe; refused once the listener is gone.
    pub(crate) fn connect(&self) -> io::Result<DuplexStream> {
        let (near, far) = duplex(self.1);
        self.0.send(far).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    }
}

impl Listener {
    pub(crate) async fn next(&mut self) -> Option<DuplexStream> {
        self.0.recv().await
    }
}

impl Accept for Listener {
    type Io = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.next().await {
            Some(pipe) => Ok((pipe, SocketAddr::from(([192, 0, 2, 1], 4000)))),
            None => std::future::pending().await,
        }
    }
}

/// The way to the upstream, which refuses connections at times.
pub(crate) struct Refusing(pub(crate) Arc<World>, pub(crate) Dialer);

impl Dial for Refusing {
    fn dial(&self, _: &http::Uri) -> DialFuture {
        let pipe = match self.0.refuses() {
            true => {
                self.0.reach("the upstream refused");
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            false => self.1.connect(),
        };
        Box::pin(async move { pipe.map(|pipe| Box::new(pipe) as Box<dyn Wire>) })
    }
}
