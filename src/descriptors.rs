//! How many descriptors the process may have, and how many connections of clients that makes.
//!
//! Many systems begin a process with a soft limit of 1,024 and leave it to raise that to the hard one. A process without descriptors
//! accepts nothing, its probes included, and reaches no server. So connections of clients and connections to the server are bounded by
//! what there is, and the admin listener, the store and the calls of clients that are away have a reserve. Absent: refusing one connection
//! too many (`server::ConnectionLimit`, `upstream::connect`).

use tracing::warn;

/// Descriptors that are not for clients and their calls: the admin listener's, the store's, those of calls whose clients are away.
const RESERVE: usize = 512;
/// This part of the reserve is the store's and the process's own, and so many at the least.
const OWN: usize = 4;
const OWN_LEAST: usize = 24;

/// Raises the soft limit to the hard one and returns the limit that holds then. `None`: there is none, or none is known.
pub fn raise() -> Option<usize> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            warn!(%error, "the limit of open files cannot be raised");
        }
        getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok())
    }
    #[cfg(not(unix))]
    None
}

/// Returns `wanted`, or as many connections as `limit` descriptors are enough for, and says so. Each connection counts twice, because a
/// call takes one to the server.
pub fn connections(wanted: usize, limit: Option<usize>) -> usize {
    let Some(limit) = limit else { return wanted };
    let possible = (limit - RESERVE.min(limit / 3)) / 2;
    if possible >= wanted {
        return wanted;
    }
    warn!(
        connections = possible,
        configured = wanted,
        open_files = limit,
        "limits.connections is more than the limit of open files allows, and is lowered"
    );
    possible.max(1)
}

/// Returns how many connections to the server `limit` descriptors are enough for beside `clients` connections of clients that are served,
/// and those `beside` them: of clients that are refused, of probes and of collectors. A quarter of the reserve is left to the store and to
/// what the process itself needs. Never less than one for each client.
pub fn upstream_connections(clients: usize, beside: usize, limit: Option<usize>) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let own = (RESERVE.min(limit / 3) / OWN).max(OWN_LEAST);
    limit.saturating_sub(clients + beside + own).max(clients).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_descriptor_each_for_the_server_and_a_reserve() {
        for (limit, connections_of) in [(Some(0), 1), (Some(128), 43), (Some(1024), 341), (Some(4096), 1792)] {
            assert_eq!(connections(20_480, limit), connections_of, "{limit:?}");
        }
        for limit in [Some(41_472), Some(1 << 20), None] {
            assert_eq!(connections(20_480, limit), 20_480, "{limit:?}");
        }
        assert_eq!(connections(10, Some(1024)), 10, "what is asked for is enough");
    }

    #[test]
    fn connections_to_the_server_take_what_clients_probes_and_the_process_leave() {
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
    fn the_soft_limit_becomes_the_hard_one() {
        use rustix::process::{Resource, getrlimit};
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise().map(|limit| limit as u64), hard);
    }
}
