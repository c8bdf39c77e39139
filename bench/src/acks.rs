//! A channel past the proxy: the reader of a stream acknowledges every event to the upstream, so
//! that exactly one event of each stream is in flight at a time.
//!
//! Without it a fast upstream would fill the socket buffers, and the intended flush per event would
//! become bursts. An acknowledgement is the stream's key, eight bytes big endian, on a connection
//! of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::Result;

/// The bytes of one acknowledgement.
const ACK: usize = 8;

/// The upstream's end: a semaphore for each stream that is acknowledged.
#[derive(Clone, Default)]
pub(crate) struct Windows(Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>);

impl Windows {
    /// The window of stream `key`, open for one event; closed when the acknowledging connection
    /// ends.
    pub(crate) fn open(&self, key: u64) -> Arc<Semaphore> {
        let window = Arc::new(Semaphore::new(1));
        self.lock().insert(key, Arc::clone(&window));
        window
    }

    /// Forgets stream `key`.
    pub(crate) fn close(&self, key: u64) {
        if let Some(window) = self.lock().remove(&key) {
            window.close();
        }
    }

    /// Accepts acknowledging connections for the whole life of the process.
    pub(crate) async fn serve(self, listener: TcpListener) -> Result<()> {
        loop {
            let (io, _) = listener.accept().await?;
            tokio::spawn(self.clone().read(io));
        }
    }

    async fn read(self, mut io: TcpStream) {
        let mut buf = vec![0; 8 * 1024];
        let mut held = 0;
        while let Ok(n) = io.read(&mut buf[held..]).await {
            if n == 0 {
                break;
            }
            held += n;
            let whole = held - held % ACK;
            self.release(&buf[..whole]);
            buf.copy_within(whole..held, 0);
            held -= whole;
        }
        // One load runs at a time, so later loads wait for this connection.
        self.lock().drain().for_each(|(_, window)| window.close());
    }

    fn release(&self, acks: &[u8]) {
        let windows = self.lock();
        for ack in acks.as_chunks::<ACK>().0 {
            if let Some(window) = windows.get(&u64::from_be_bytes(*ack)) {
                window.add_permits(1);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end.
#[derive(Clone)]
pub(crate) struct Acks(Arc<Outbox>);

struct Outbox {
    pending: Mutex<Vec<u8>>,
    filled: Notify,
}

impl Acks {
    /// Connects to the upstream's acknowledgement port.
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let mut io = TcpStream::connect(addr).await?;
        io.set_nodelay(true)?;
        let outbox = Arc::new(Outbox { pending: Mutex::default(), filled: Notify::new() });
        let source = Arc::clone(&outbox);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                source.filled.notified().await;
                std::mem::swap(&mut batch, &mut source.pending.lock().unwrap_or_else(PoisonError::into_inner));
                if io.write_all(&batch).await.is_err() {
                    return;
                }
                batch.clear();
            }
        });
        Ok(Self(outbox))
    }

    /// Acknowledges `events` events of stream `key`; those of several streams share a write.
    pub(crate) fn send(&self, key: u64, events: u64) {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..events {
            pending.extend_from_slice(&key.to_be_bytes());
        }
        drop(pending);
        self.0.filled.notify_one();
    }
}
