//! Open connections of this process, which are probed after the machine has slept.
//!
//! During a sleep the way to the server forgets its connections, and says nothing. The kernel would
//! find that out after its usual time. Here it sends a probe at once. A connection whose probe has
//! no answer for two seconds is dead, and its streams are resumed on another. Absent: the detection
//! of the sleep, which is the caller's.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::clock;
use crate::config::Liveness;
use crate::sync;

/// Silence before a probe, and the wait for its answer.
const IDLE: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(2);
/// Time after which the usual settings are restored.
const RESTORE_AFTER: Duration = Duration::from_secs(5);

/// Second handles of open connections, by number. Settings of a socket are those of all handles.
#[cfg(unix)]
type Handle = std::os::fd::OwnedFd;
#[cfg(windows)]
type Handle = std::os::windows::io::OwnedSocket;

static OPEN: OnceLock<Mutex<HashMap<u64, (Handle, Liveness)>>> = OnceLock::new();

fn open() -> &'static Mutex<HashMap<u64, (Handle, Liveness)>> {
    OPEN.get_or_init(Mutex::default)
}

/// The place of an open connection. Dropped behind the connection, it closes the socket.
#[derive(Debug)]
pub(super) struct OpenSocket(u64);

impl OpenSocket {
    /// Enters a connection, unless there is no room for another handle.
    pub(super) fn enter(connection: &TcpStream, liveness: Liveness) -> Option<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let handle = second_handle(connection).ok()?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        sync::lock(open()).insert(number, (handle, liveness));
        Some(Self(number))
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        sync::lock(open()).remove(&self.0);
    }
}

#[cfg(unix)]
fn second_handle(connection: &TcpStream) -> io::Result<Handle> {
    use std::os::fd::AsFd;
    connection.as_fd().try_clone_to_owned()
}

#[cfg(windows)]
fn second_handle(connection: &TcpStream) -> io::Result<Handle> {
    use std::os::windows::io::AsSocket;
    connection.as_socket().try_clone_to_owned()
}

/// Probes all open connections, and restores their settings after some seconds.
pub async fn probe_open_connections() {
    let probing = Liveness { idle: IDLE, interval: ANSWER, retries: 1, user_timeout: ANSWER, ..Liveness::default() };
    for (handle, _) in sync::lock(open()).values() {
        apply(&SockRef::from(handle), probing);
    }
    clock::sleep(RESTORE_AFTER).await;
    for (handle, liveness) in sync::lock(open()).values() {
        apply(&SockRef::from(handle), *liveness);
    }
}

/// Sets the detection of a dead connection. A system that does not take it keeps its own.
fn apply(socket: &SockRef<'_>, liveness: Liveness) {
    let keepalive = TcpKeepalive::new().with_time(liveness.idle).with_interval(liveness.interval);
    #[cfg(unix)]
    let keepalive = keepalive.with_retries(liveness.retries);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(liveness.user_timeout));
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    fn idle(connection: &TcpStream) -> Duration {
        SockRef::from(connection).tcp_keepalive_time().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn open_connections_are_probed_soon_and_only_then() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let entered = OpenSocket::enter(&connection, Liveness::of_strangers());
        assert!(entered.is_some());
        let mut probing = Box::pin(probe_open_connections());
        assert!(tokio::time::timeout(Duration::from_millis(1), probing.as_mut()).await.is_err());
        assert_eq!(idle(&connection), IDLE);
        let user_timeout = SockRef::from(&connection).tcp_user_timeout().unwrap();
        assert_eq!(user_timeout, Some(ANSWER));
        probing.await;
        assert_eq!(idle(&connection), Duration::from_secs(15));
        // The second handle does not keep the socket open.
        drop(connection);
        drop(entered);
        assert_eq!(other.read(&mut [0]).await.unwrap(), 0);
    }
}
