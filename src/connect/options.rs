//! The options of the command line, and the problem with them.

use std::path::PathBuf;

/// Options of `connect`, as they were given.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// URL of the server, and a port that other programs take.
    pub positional: Vec<String>,
    /// A program in place of the URL, with its arguments.
    pub command: Vec<String>,
    /// Headers as `Name: value`.
    pub headers: Vec<String>,
    /// Files with a header in each line.
    pub header_files: Vec<PathBuf>,
    /// Source of a bearer token.
    pub bearer: Option<String>,
    /// Transport of the server.
    pub transport: Option<String>,
    /// True for plain http to other machines.
    pub allow_http: bool,
    /// Value in place of `connect.ca_file`.
    pub ca_file: Option<PathBuf>,
    /// True in place of `connect.ipv4`.
    pub ipv4: bool,
    /// Clients for which the bridge translates.
    pub bridge: Option<String>,
    /// Names of tools that the host does not see, with `*` for any part.
    pub ignored_tools: Vec<String>,
    /// Files and folders whose change replaces the program.
    pub watch: Vec<PathBuf>,
    /// Folder of the memory of servers, or `None` to remember nothing.
    pub memory: Option<PathBuf>,
    /// File of the configuration. It must exist.
    pub config: Option<PathBuf>,
    /// The user's file of the configuration. It need not exist, and the other one overrides it.
    pub own_config: Option<PathBuf>,
    /// Variables of the environment with values of the configuration.
    pub variables: Vec<(String, String)>,
    /// Value in place of `connect.wait_secs`.
    pub wait_secs: Option<String>,
    /// Value in place of `connect.max_wait_secs`.
    pub max_wait_secs: Option<String>,
    /// Value in place of `connect.repeat`.
    pub repeat: Option<String>,
    /// Value in place of `connect.remember`.
    pub remember: Option<String>,
    /// Names in place of `connect.impatient`, or empty to leave that.
    pub impatient: Vec<String>,
    /// Options of mcp-remote that are given and would change who signs in.
    pub refused: Vec<&'static str>,
    /// Options of mcp-remote that are given, and have no effect yet.
    pub without_effect: Vec<&'static str>,
}

/// A problem of the arguments, in words for the host.
pub type Problem = String;
