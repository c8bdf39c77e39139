//! Listeners: bound, or adopted from a process that bound them, and the signal that ends them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

/// Connections that wait to be accepted. After a restart of a load balancer, all its clients
/// connect at once.
pub(super) const BACKLOG: u32 = 4096;

/// Configuration key of the address for clients.
pub const LISTEN: &str = "listen.address";
/// Configuration key of the address of the admin listener.
pub const ADMIN: &str = "admin.address";
/// Configuration key of the address of the listener for metrics alone.
pub const METRICS: &str = "admin.metrics_address";

/// A listener could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({key}): {source}{}", advice(source))]
pub struct BindError {
    /// Configuration key of the address.
    pub key: &'static str,
    /// Address of the listener.
    pub address: SocketAddr,
    /// Cause of the failure.
    pub source: io::Error,
}

/// Returns advice for an address that cannot be bound, or an empty text if the cause is unknown.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process listens there: end it, or give another address",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
        _ => "",
    }
}

/// Binds a listener to `address`, and returns it with its local address. `key` is the configuration
/// key that errors name.
///
/// # Errors
/// If the address cannot be bound.
pub fn bind(key: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError { key, address, source };
    let listener = listen(address).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((listener, local_addr))
}

/// Takes over a `listener` that another process has bound to `address`; see [`bind`].
///
/// # Errors
/// If the runtime cannot use the listener.
pub fn adopt(
    key: &'static str,
    address: SocketAddr,
    listener: std::net::TcpListener,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError { key, address, source };
    listener.set_nonblocking(true).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((TcpListener::from_std(listener).map_err(failed)?, local_addr))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Unix the option allows a port that a server has just left, but not one in use. Elsewhere
    // it has another meaning.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Resolves once `stopping` holds `true` or its sender is gone.
pub fn stopped(stopping: &watch::Receiver<bool>) -> impl Future<Output = ()> + Send + 'static + use<> {
    let mut stopping = stopping.clone();
    async move {
        // A sender that is gone has stopped as well.
        let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
    }
}
