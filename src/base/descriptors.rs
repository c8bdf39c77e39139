//! Limit of file descriptors, and the connection limits that follow from it.
//!
//! Many systems start a process with a soft limit of 1,024, which it may raise to the hard limit. A
//! process without free descriptors accepts no connection, not even of probes, and reaches no
//! server. So the descriptors limit the connections of clients and the connections to the server. A
//! reserve is kept for the admin listener, the store, and the calls of disconnected clients.
//! Absent: refusing connections above a limit (`server::ConnectionLimit`, `upstream::connect`).

use tracing::{debug, warn};

/// Reserved descriptors: for the admin listener, the store, and calls whose clients are
/// disconnected.
const RESERVE: usize = 512;
/// Part of the reserve for the store and the process itself: a fourth, and at least so many
/// descriptors.
const OWN: usize = 4;
const OWN_LEAST: usize = 24;

/// Soft limit before it was raised, if it was.
#[cfg(unix)]
static BEFORE: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();

/// Raises the soft limit to the hard limit, and returns the limit then in force, or `None` if it is
/// unlimited or unknown.
pub fn raise() -> Option<usize> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        BEFORE.get_or_init(|| limit.current);
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            warn!(%error, "the limit of open files cannot be raised");
        }
        getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok())
    }
    #[cfg(not(unix))]
    None
}

/// Returns the soft limit that this process was started with if [`raise`] has raised it, else
/// `None`. Programs get it back: some take long with a large one, and `select` fails beyond 1,024.
#[cfg(unix)]
pub fn before_raise() -> Option<u64> {
    BEFORE.get().copied().flatten()
}

/// Sets the soft limit of this process.
///
/// # Errors
/// If the limit is above the hard limit.
#[cfg(unix)]
pub fn set_soft(limit: u64) -> std::io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(limit), maximum: hard })?)
}

/// Returns `wanted`, or the largest number of connections that `limit` descriptors allow, with a
/// warning unless `wanted` is the default (`is_default`). Each connection counts twice, because a
/// call needs one to the server.
pub fn connections(wanted: usize, is_default: bool, limit: Option<usize>) -> usize {
    let Some(limit) = limit else { return wanted };
    let possible = (limit - RESERVE.min(limit / 3)) / 2;
    if possible >= wanted {
        return wanted;
    }
    if is_default {
        // The number was not chosen, so it is no fault of the configuration.
        debug!(connections = possible, open_files = limit, "the limit of open files lowers the number of connections");
        return possible.max(1);
    }
    warn!(
        connections = possible,
        configured = wanted,
        open_files = limit,
        "limits.connections is more than the limit of open files allows, and is lowered"
    );
    possible.max(1)
}

/// Returns the number of connections to the server that `limit` descriptors allow. `clients` is the
/// number of connections of admitted clients, `beside` that of refused clients, probes and
/// collectors. A quarter of the reserve is left to the store and the process itself. The result is
/// at least one for each client.
pub fn upstream_connections(clients: usize, beside: usize, limit: Option<usize>) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let own = (RESERVE.min(limit / 3) / OWN).max(OWN_LEAST);
    limit.saturating_sub(clients + beside + own).max(clients).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_connections_leave_descriptors_for_the_server_and_a_reserve() {
        for (limit, connections_of) in [(Some(0), 1), (Some(128), 43), (Some(1024), 341), (Some(4096), 1792)] {
            assert_eq!(connections(20_480, true, limit), connections_of, "{limit:?}");
        }
        for limit in [Some(41_472), Some(1 << 20), None] {
            assert_eq!(connections(20_480, false, limit), 20_480, "{limit:?}");
        }
        assert_eq!(connections(10, false, Some(1024)), 10, "the wanted number is possible");
    }

    #[test]
    fn server_connections_get_the_descriptors_left_by_clients_probes_and_the_process() {
        for (limit, of_clients, beside, of_the_server) in [
            (0, 1, 18, 1),
            (128, 43, 20, 43),
            (1024, 341, 113, 485),
            (4096, 1792, 384, 1792),
            (1 << 20, 20_480, 1552, 1_026_416),
        ] {
            assert_eq!(upstream_connections(of_clients, beside, Some(limit)), of_the_server, "{limit}");
        }
        assert_eq!(upstream_connections(341, 113, None), usize::MAX);
    }

    #[cfg(unix)]
    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        use rustix::process::{Resource, getrlimit};
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise().map(|limit| limit as u64), hard);
    }
}
