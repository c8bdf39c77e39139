//! The section `[connect]`: a host on stdio.

use std::path::PathBuf;
use std::time::Duration;

use super::Config;
use super::read::Reader;
use super::value::{YEAR, file};
use mcp_resume_protocol::client_names::{ClientName, ClientNames};

/// Section of the configuration.
const SECTION: &str = "connect";
/// Names that hosts with short deadlines give in `clientInfo`. Codex counts its start and the first
/// list as one.
const IMPATIENT: &[&str] = &["codex-mcp-client"];

/// The configuration of `connect`. See `config.example.toml` for the reason behind each default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connecting {
    /// The core behind the pipe.
    pub core: Config,
    /// The pipe.
    pub connect: Connect,
}

/// A host on stdio, and its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Longest wait of a request for a server that is not reachable; zero = not at all.
    pub wait: Duration,
    /// Longest time for the repair of a request that was sent; at least 1 s.
    pub max_wait: Duration,
    /// Calls that are sent again although they may have run.
    pub repeat: Repeat,
    /// True if handshakes and lists are kept for a start without the server.
    pub remember: bool,
    /// Hosts whose first lists get little time.
    pub impatient: ClientNames,
    /// File of further certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// True if only addresses of IPv4 are used.
    pub ipv4: bool,
}

/// Calls of tools that are sent again, at a server that joins no calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Calls of tools whose `readOnlyHint` is true in a list of this session, once.
    ReadOnly,
    /// None.
    Never,
}

/// Reads the section.
pub(super) fn connect(reader: &mut Reader) -> Connect {
    let mut s = reader.section(SECTION);
    // A problem must not quote the word: it may be a misplaced secret of the command line.
    let repeat = |text: &str| match text {
        "read_only" => Ok(Repeat::ReadOnly),
        "never" => Ok(Repeat::Never),
        _ => Err(r#"must be "read_only" or "never""#.to_owned()),
    };
    let impatient = s.list::<ClientName>("impatient", 0);
    Connect {
        wait: s.secs("wait_secs", 0..=YEAR).unwrap_or(Duration::from_secs(50)),
        max_wait: s.secs("max_wait_secs", 1..=YEAR).unwrap_or(Duration::from_secs(600)),
        repeat: s.text("repeat", repeat).unwrap_or(Repeat::ReadOnly),
        remember: s.boolean("remember").unwrap_or(true),
        ca_file: s.text("ca_file", file).flatten(),
        ipv4: s.boolean("ipv4").unwrap_or(false),
        impatient: impatient.map_or_else(|| ClientNames::of(IMPATIENT), |names| names.into_iter().collect()),
    }
}
