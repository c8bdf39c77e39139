//! Upgrade on platforms without Unix sockets: never offered, never taken.

use std::convert::Infallible;
use std::future::pending;
use std::path::Path;

use tracing::warn;

use super::{Error, Listeners};

/// A predecessor. This platform has none.
pub struct Predecessor(Infallible);

/// An offer that is never accepted.
pub struct Offer(());

/// Returns `None`.
///
/// # Errors
/// None.
pub fn take(_path: &Path) -> Result<Option<(Listeners, Predecessor)>, Error> {
    Ok(None)
}

/// Offers nothing.
///
/// # Errors
/// None.
pub async fn offer(path: &Path, _: Listeners, _: Option<Predecessor>) -> Result<Offer, Error> {
    warn!(path = %path.display(), "no upgrade without downtime: this platform has no Unix sockets");
    Ok(Offer(()))
}

impl Offer {
    /// Never resolves.
    pub async fn handed_over(self) {
        pending().await
    }
}
