//! Listeners of a sidecar.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::error::Error;
use crate::config::Config;
use crate::server::listener;
use crate::tls::Certificates;

/// Addresses of a sidecar's listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Address for clients.
    pub data: SocketAddr,
    /// Address of the admin listener, or `None` without it.
    pub admin: Option<SocketAddr>,
    /// Address of the listener for metrics alone, or `None` without it.
    pub metrics: Option<SocketAddr>,
}

/// A listener and its local address.
pub(super) type BoundListener = (TcpListener, SocketAddr);

/// Bound listeners, before anything serves on them.
pub(super) struct Listeners {
    pub(super) data: BoundListener,
    pub(super) admin: Option<BoundListener>,
    /// Listener for metrics alone.
    pub(super) metrics: Option<BoundListener>,
    /// Certificates of the data listener, or `None` if it speaks plain HTTP.
    pub(super) certificates: Option<Arc<Certificates>>,
}

impl Listeners {
    /// Binds all configured listeners.
    ///
    /// # Errors
    /// If the certificates cannot be used, or an address is taken or not of this machine.
    pub(super) fn bind(config: &Config) -> Result<Self, Error> {
        let certificates = config.listen.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let data = listener::bind(listener::LISTEN, config.listen.address)?;
        let admin = config.admin.address.map(|address| listener::bind(listener::ADMIN, address)).transpose()?;
        let metrics =
            config.admin.metrics_address.map(|address| listener::bind(listener::METRICS, address)).transpose()?;
        Ok(Self { data, admin, metrics, certificates })
    }

    pub(super) fn addresses(&self) -> Addresses {
        let address = |bound: &Option<BoundListener>| bound.as_ref().map(|(_, address)| *address);
        Addresses { data: self.data.1, admin: address(&self.admin), metrics: address(&self.metrics) }
    }
}
