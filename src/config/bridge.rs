//! The section `[bridge]`: translation between the eras.

use std::time::Duration;

use super::read::Reader;
use super::value::YEAR;

/// Section of the configuration.
const SECTION: &str = "bridge";

/// Bridge between clients and servers that share no revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Clients of 2026-07-28 whose requests are translated for a server of older revisions.
    pub modern_clients: ModernClients,
    /// True if the requests of clients of older revisions are translated for a server that refuses
    /// their `initialize` and speaks 2026-07-28.
    pub legacy_clients: bool,
    /// Longest time without a request; the session that was opened for a caller is then ended.
    pub idle: Duration,
    /// Most sessions of one caller, at least 1.
    pub sessions_per_principal: usize,
}

/// Clients of 2026-07-28 whose requests are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModernClients {
    /// Clients that declare tasks, at a server that assigns no sessions.
    Auto,
    /// All.
    Always,
    /// None: their requests go to the server as they are.
    Never,
}

/// Reads the section. Returns `None` if nothing is translated.
pub(super) fn bridge(reader: &mut Reader) -> Option<Bridge> {
    let mut s = reader.section(SECTION);
    let words = [("auto", ModernClients::Auto), ("always", ModernClients::Always), ("never", ModernClients::Never)];
    let modern_clients = s.one_of("modern_clients", &words).unwrap_or(ModernClients::Auto);
    let legacy_clients = s.one_of("legacy_clients", &[("auto", true), ("never", false)]).unwrap_or(true);
    let idle = s.secs("idle_secs", 1..=YEAR).unwrap_or(Duration::from_secs(600));
    let sessions_per_principal = s.count("sessions_per_principal", 1).unwrap_or(8);
    let bridge = Bridge { modern_clients, legacy_clients, idle, sessions_per_principal };
    (legacy_clients || modern_clients != ModernClients::Never).then_some(bridge)
}
