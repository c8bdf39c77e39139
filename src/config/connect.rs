//! The section `[connect]`: a host on stdio.

use std::path::PathBuf;
use std::time::Duration;

use super::raw::RawConfig;
use super::read::Reader;
use super::value::{YEAR, file};
use super::{Config, Flags, Problems, build};
use mcp_resume_protocol::client_names::{ClientName, ClientNames};

/// Section of the configuration.
pub(super) const SECTION: &str = "connect";
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
    /// File of certificate authorities beside the system's and those of the environment.
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

/// Unchecked values of the command line of `connect`, beside [`Flags`].
///
/// Has no `Debug`: a header may be a credential.
#[derive(Clone, Default)]
pub struct ConnectFlags {
    /// `--header`, `--header-file` and `--bearer`, in place of `upstream.headers`.
    pub headers: Vec<(String, String)>,
    /// `--wait-secs`.
    pub wait_secs: Option<String>,
    /// `--max-wait-secs`.
    pub max_wait_secs: Option<String>,
    /// `--repeat`.
    pub repeat: Option<String>,
    /// `--remember`.
    pub remember: Option<String>,
    /// `--impatient`; empty for none.
    pub impatient: Vec<String>,
    /// `--ca-file`.
    pub ca_file: Option<String>,
    /// `--ipv4`.
    pub ipv4: Option<String>,
}

impl Connecting {
    /// Makes the configuration of `connect` from its layers; see [`Config::load`]. Of two `files`,
    /// the second overrides the first.
    ///
    /// # Errors
    /// All problems, including problems of keys that only `serve` uses. No problem quotes a value
    /// of the command line.
    pub fn load(
        files: &[(String, String)],
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
        connect: ConnectFlags,
    ) -> Result<Self, Problems> {
        let mut raw = RawConfig::of_files(files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        raw.add_environment(env);
        raw.add_flags(flags);
        raw.add_connect_flags(connect);
        build::connecting(raw)
    }
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
