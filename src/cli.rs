//! The command line and its help.
//!
//! Values of `serve` are taken as text, and checked with the rest of the configuration. So a wrong
//! flag is reported together with a wrong key.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use mcp_resume::config::Flags;
use mcp_resume::connect;

const SERVE_NOTES: &str = "\
Configuration:
  Every value comes from, in this order: a flag, the environment, the file, the default.
  In the environment a key is MCP_RESUME_SECTION__KEY, with two underscores between section
  and key: MCP_RESUME_DELIVERY__RETRY_MS=2000 is retry_ms in [delivery]. Sections for single
  tools, [tools.\"NAME\"], exist in the file only. config.example.toml lists every key.

Examples:
  mcp-resume serve --upstream http://127.0.0.1:3000/mcp
  mcp-resume serve -- npx -y @modelcontextprotocol/server-filesystem /data
  mcp-resume serve --upstream-sse http://127.0.0.1:3000/sse
  mcp-resume serve --config mcp-resume.toml --listen 0.0.0.0:8080

Exit codes:
  0  stopped by a signal    1  failed while running    2  wrong configuration";

const BALANCE_NOTES: &str = "\
Session IDs, event IDs and tokens say which sidecar a request belongs to; the balancer asks each
sidecar who it is and keeps nothing else. Any number of balancers may stand side by side. Configuration is
as for `serve`, in the section [balance]; [listen], [limits], [admin] and [log] count as there.

Examples:
  mcp-resume balance --replica http://10.0.0.7:8080 --replica http://10.0.0.8:8080
  mcp-resume balance --replica http://mcp.default.svc:8080 --listen 0.0.0.0:80

Exit codes:
  0  stopped by a signal, or a successor took over
  1  failed while running    2  wrong configuration, or built without the feature `balancer`";

const CHECK_NOTES: &str = "\
With a URL the server is asked what it is: `initialize` at each revision, `server/discover`,
`ping`, `tools/list`, GETs of its streams and OAuth documents; nothing else. Sessions that this
opens are left to expire, unless --end-session is given. Without one no connection is made.

A server that keeps sessions may ping their clients, and end sessions that are silent. One session is
watched for that, for five seconds or the time of --watch: pings are answered until two have come, a
later one is not. Some servers ping only after a call of a tool; many end silent sessions after minutes:
  mcp-resume check --upstream URL --tool slow --watch 320

How a long call is cut and resumed can only be tried with a tool of the server's own. Name one
that is safe to run three times, takes some seconds, and sends the same messages each time:
  mcp-resume check --upstream URL --tool slow --arguments '{\"seconds\": 3}'

Examples:
  mcp-resume check --config mcp-resume.toml
  mcp-resume check http://127.0.0.1:3000/mcp
  mcp-resume check -- npx -y @modelcontextprotocol/server-filesystem /data
  mcp-resume check --upstream http://127.0.0.1:3000/mcp --header \"Authorization: Bearer $TOKEN\" --json

Exit codes:
  0  the configuration is good, and the proxy can stand in front of the server
  1  it cannot, or that could not be found out    2  wrong configuration or command line";

const CONNECT_NOTES: &str = "\
A host starts this as its server on stdio, in place of mcp-remote or of the server itself. Calls outlive
cut connections and restarts of the server. Give each header as one argument; values can be
variables: 'X-Key: ${NAME}', or env:NAME and file:PATH as the whole value. The options of mcp-remote
are accepted under their own names; docs/connect.md says what each does.

Configuration:
  Each key of [connect] is an option here: --wait-secs is wait_secs. A value comes from, in this order:
  an option, the environment (MCP_RESUME_CONNECT__WAIT_SECS), --config, the file
  $HOME/.config/mcp-resume/connect.toml, the default. Other sections are those of `serve`.

Proxies of the environment are used: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, but for hosts in NO_PROXY and
servers on this machine.

Examples:
  mcp-resume connect https://mcp.example.com/mcp
  mcp-resume connect https://mcp.example.com/mcp --bearer env:TOKEN
  mcp-resume connect -- npx -y @modelcontextprotocol/server-everything
  mcp-resume connect --watch src -- python src/server.py

Exit codes:
  0  ended by the host or a signal    1  failed while running    2  wrong arguments";

const DRAIN_NOTES: &str = "\
From then on /readyz says 503. New calls are taken for replica.drain_delay_secs more, so that load
balancers notice first, and then refused with 503; running calls, resumes, answers and cancels go on.
The command returns when nothing is left to wait for, at the latest after
replica.drain_timeout_secs, when what still runs ends with an error. The process itself goes on: a
SIGTERM afterwards finds nothing to wait for. A drain cannot be taken back.

The same is GET /drain on the admin listener, with the header X-Drain.

Examples:
  mcp-resume drain
  mcp-resume drain --config /etc/mcp-resume/mcp-resume.toml
  mcp-resume drain --admin 127.0.0.1:9465

Exit codes:
  0  drained    1  no process could be asked, or the process ended first
  2  wrong configuration or command line";

const HEALTH_NOTES: &str = "\
Needs no shell and no other program, for health checks in containers:
  HEALTHCHECK CMD [\"/mcp-resume\", \"health\"]

In a script that has just started a sidecar, and wants to go on once it takes calls:
  mcp-resume health --wait 30

Exit codes:
  0  yes    1  no, or it did not say so within five seconds or --wait    2  wrong configuration or command line";

const COMPLETIONS_NOTES: &str = "\
Examples:
  mcp-resume completions bash > /usr/share/bash-completion/completions/mcp-resume
  mcp-resume completions zsh > \"${fpath[1]}/_mcp-resume\"
  mcp-resume completions fish > ~/.config/fish/completions/mcp-resume.fish

The packages install them.";

const MAN_NOTES: &str = "\
Examples:
  mcp-resume man | man -l -
  mcp-resume man --output /usr/local/share/man/man1

The packages install the pages.";

/// A reverse proxy that makes MCP servers resumable without changing them.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Stand before an MCP server and make it resumable.
    #[command(after_help = SERVE_NOTES)]
    Serve(Serve),
    /// Stand before several sidecars and send each request to its sidecar.
    #[command(after_help = BALANCE_NOTES)]
    Balance(Balance),
    /// Validate a configuration; probe a server and show what the proxy will add.
    #[command(after_help = CHECK_NOTES)]
    Check(Check),
    /// Serve one host on stdio before a server on HTTP, or a program.
    #[command(after_help = CONNECT_NOTES)]
    Connect(Box<Connect>),
    /// Drain a running sidecar: it refuses new calls and lets the running ones end; returns when
    /// they have.
    #[command(after_help = DRAIN_NOTES)]
    Drain(Process),
    /// Probe whether a running sidecar takes new calls, and print what it says.
    #[command(after_help = HEALTH_NOTES)]
    Health(Health),
    /// Show a call that is cut off and resumed; needs nothing else.
    ///
    /// After the show the proxy keeps running, with commands to try, until ctrl-c; where stdout is
    /// no terminal it ends.
    Demo(Demo),
    /// Print the completions of this command line for a shell.
    #[command(after_help = COMPLETIONS_NOTES)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands.
    #[command(after_help = MAN_NOTES)]
    Man {
        /// Directory for the pages of all commands, in place of stdout.
        #[arg(long, value_name = "DIR")]
        output: Option<PathBuf>,
    },
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The MCP server's endpoint; without a path, not even `/`, /mcp is meant
    /// [required here or elsewhere].
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Address for clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address for probes and metrics; "" for none [default: 127.0.0.1:9464].
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Store of the events: memory, disk:DIR, or redis:URL [default: memory].
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// URL of an MCP server on HTTP+SSE, in place of --upstream, e.g. http://127.0.0.1:3000/sse.
    #[arg(long, value_name = "URL")]
    upstream_sse: Option<String>,
    /// An MCP server on stdio, with its arguments: it is started for each session, and stands in
    /// place of --upstream.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Balance {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// URL of a sidecar; may be repeated, and a name may have several addresses
    /// [required here or elsewhere].
    #[arg(long, value_name = "URL")]
    pub(crate) replica: Vec<String>,
    /// Address for clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Address for probes and metrics; "" for none [default: 127.0.0.1:9464].
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
}

#[derive(Args)]
pub(crate) struct Check {
    /// The configuration file (TOML), read with the environment as `serve` reads it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// URL of the server to probe, as in --upstream.
    #[arg(value_name = "URL", groups = ["server", "endpoint"])]
    pub(crate) url: Option<String>,
    /// The MCP server to probe; without a path, not even `/`, /mcp is meant.
    #[arg(long, value_name = "URL", groups = ["server", "endpoint"])]
    pub(crate) upstream: Option<String>,
    /// An MCP server on HTTP+SSE to probe, in place of --upstream; without a path /sse is meant.
    #[arg(long, value_name = "URL", group = "server")]
    pub(crate) upstream_sse: Option<String>,
    /// A header for every request to a URL, as 'Authorization: Bearer …', or one of
    /// upstream.env_from_headers for a COMMAND; may be repeated.
    #[arg(long, value_name = "NAME: VALUE", requires = "server")]
    pub(crate) header: Vec<String>,
    /// A tool that is safe to run: it is run up to three times, and cut off.
    #[arg(long, value_name = "NAME", requires = "server")]
    pub(crate) tool: Option<String>,
    /// Arguments of the tool, a JSON object [default: {}].
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub(crate) arguments: Option<String>,
    /// Seconds to watch a session for pings and for its end, up to 3600; 0 for not at all [default:
    /// 5; 0 on stdio and HTTP+SSE].
    #[arg(long, value_name = "SECS", requires = "server", value_parser = clap::value_parser!(u64).range(..=3600))]
    pub(crate) watch: Option<u64>,
    /// End the sessions that are opened, with DELETE; a server with one session for its whole
    /// process opens none after that.
    #[arg(long, requires = "endpoint")]
    pub(crate) end_session: bool,
    /// Write JSON, for programs.
    #[arg(long)]
    pub(crate) json: bool,
    /// An MCP server on stdio to probe, with its arguments: it is started several times, and ended.
    #[arg(last = true, value_name = "COMMAND", group = "server")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Connect {
    /// URL of the server. A port behind it is ignored.
    #[arg(value_name = "URL", num_args = 0..=8)]
    positional: Vec<String>,
    /// A header for every request, as 'Name: value'; may be repeated.
    #[arg(long, value_name = "NAME: VALUE", allow_hyphen_values = true)]
    header: Vec<String>,
    /// A file with a header in each line, as in --header; may be repeated.
    #[arg(long, value_name = "FILE")]
    header_file: Vec<PathBuf>,
    /// Bearer token for every request, as env:NAME or file:PATH.
    #[arg(long, value_name = "SOURCE")]
    bearer: Option<String>,
    /// Transport of the server: auto, http or sse [default: auto].
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<String>,
    /// Allow plain http to other machines.
    #[arg(long)]
    allow_http: bool,
    /// Certificate authorities beside the system's and those of SSL_CERT_FILE, SSL_CERT_DIR and
    /// NODE_EXTRA_CA_CERTS (PEM).
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Use addresses of IPv4 alone.
    #[arg(long)]
    ipv4: bool,
    /// Clients whose revision is translated: auto for none that the server speaks, or always
    /// [default: auto].
    #[arg(long, value_name = "WHICH")]
    bridge: Option<String>,
    /// A tool that the host does not see, with * for any part of its name; may be repeated.
    #[arg(long, value_name = "NAME")]
    ignore_tool: Vec<String>,
    /// A file or folder of the program behind --, which is replaced when it changes; may be
    /// repeated.
    #[arg(long, value_name = "PATH")]
    watch: Vec<PathBuf>,
    /// Longest wait of a request for a server that is not reachable, in seconds [default: 50].
    #[arg(long, value_name = "SECS")]
    wait_secs: Option<String>,
    /// Longest repair of a request that was sent, in seconds from its last event [default: 600].
    #[arg(long, value_name = "SECS")]
    max_wait_secs: Option<String>,
    /// Calls of tools that are sent again after a break: read_only, or never [default: read_only].
    #[arg(long, value_name = "CALLS")]
    repeat: Option<String>,
    /// Remember handshake and lists for a start without the server: true or false [default: true].
    #[arg(long, value_name = "BOOL")]
    remember: Option<String>,
    /// A host that waits for its first lists for seconds only, by its name; may be repeated, and
    /// replaces the list of the configuration.
    #[arg(long, value_name = "HOST")]
    impatient: Vec<String>,
    /// A configuration file (TOML), which overrides connect.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log details to stderr and to a file, without secrets.
    #[arg(long)]
    pub(crate) debug: bool,
    #[command(flatten)]
    remote: Remote,
    /// An MCP server on stdio in place of a URL, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Options of mcp-remote that mean nothing here, or nothing yet.
#[derive(Args)]
struct Remote {
    #[arg(long, hide = true)]
    enable_proxy: bool,
    #[arg(long, hide = true)]
    keep_alive: bool,
    #[arg(long, hide = true)]
    silent: bool,
    #[arg(long, hide = true)]
    device_code: bool,
    #[arg(long, hide = true)]
    use_id_token: bool,
    #[arg(long, hide = true)]
    host: Option<String>,
    #[arg(long, hide = true)]
    auth_timeout: Option<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    resource: Option<String>,
    #[arg(long, hide = true)]
    disable_resource_parameter: bool,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    static_oauth_client_info: Option<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    static_oauth_client_metadata: Option<String>,
}

/// A running process.
#[derive(Args)]
pub(crate) struct Process {
    /// The configuration file of that process, for its admin address (TOML).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of its admin listener [default: 127.0.0.1:9464].
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
}

#[derive(Args)]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Only whether it runs; a sidecar whose server is away, or that drains, does.
    #[arg(long)]
    pub(crate) live: bool,
    /// Repeat the probe until it succeeds, for so many seconds at most; a process that is not there
    /// yet is waited for as well.
    #[arg(long, value_name = "SECS", default_value_t = 0)]
    pub(crate) wait: u32,
}

#[derive(Args)]
pub(crate) struct Demo {
    /// Address of the demo's proxy; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Exit after the show at a terminal too, instead of listening for commands of your own.
    #[arg(long)]
    pub(crate) once: bool,
}

impl Connect {
    /// Returns the options with the places of the user's files, and the variables of the
    /// environment.
    pub(crate) fn into_options(self, variables: impl Iterator<Item = (String, String)>) -> connect::Options {
        let (refused, without_effect) = (self.remote.refused(), self.remote.without_effect());
        connect::Options {
            positional: self.positional,
            command: self.command,
            headers: self.header,
            header_files: self.header_file,
            bearer: self.bearer,
            transport: self.transport,
            allow_http: self.allow_http,
            ca_file: self.ca_file,
            ipv4: self.ipv4,
            bridge: self.bridge,
            ignored_tools: self.ignore_tool,
            watch: self.watch,
            memory: connect::memory_folder(),
            config: self.config,
            own_config: connect::config_file(),
            variables: variables.filter(|(name, _)| name.starts_with("MCP_RESUME_")).collect(),
            wait_secs: self.wait_secs,
            max_wait_secs: self.max_wait_secs,
            repeat: self.repeat,
            remember: self.remember,
            impatient: self.impatient,
            refused,
            without_effect,
        }
    }
}

impl Remote {
    /// Returns the names of given options that would change who signs in.
    fn refused(&self) -> Vec<&'static str> {
        given(&[("--device-code", self.device_code), ("--use-id-token", self.use_id_token)])
    }

    /// Returns the names of given options about a sign-in.
    fn without_effect(&self) -> Vec<&'static str> {
        given(&[
            ("--host", self.host.is_some()),
            ("--auth-timeout", self.auth_timeout.is_some()),
            ("--resource", self.resource.is_some()),
            ("--disable-resource-parameter", self.disable_resource_parameter),
            ("--static-oauth-client-info", self.static_oauth_client_info.is_some()),
            ("--static-oauth-client-metadata", self.static_oauth_client_metadata.is_some()),
        ])
    }
}

fn given(options: &[(&'static str, bool)]) -> Vec<&'static str> {
    options.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect()
}

impl Serve {
    pub(crate) fn into_flags(self) -> Flags {
        let Serve { config: _, upstream, listen, admin, store, upstream_sse, command } = self;
        Flags { upstream, listen, admin, store, upstream_sse, command }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_mcp_remote_are_accepted() {
        let line = "x connect https://a.example/mcp 3334 --header X-Key:${K} --host 127.0.0.1 --allow-http --debug --silent \
                    --enable-proxy --keep-alive --transport http-first --ignore-tool delete* --auth-timeout 60 \
                    --resource https://b.example/ --disable-resource-parameter --static-oauth-client-info @f \
                    --static-oauth-client-metadata {} --device-code";
        let parsed =
            Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string()).expect("a command line");
        let Command::Connect(connect) = parsed.command else { panic!("not connect") };
        assert!(connect.debug);
        let options = connect.into_options(std::iter::empty());
        assert_eq!(options.positional, ["https://a.example/mcp", "3334"]);
        assert_eq!(options.refused, ["--device-code"]);
        assert_eq!(options.without_effect.len(), 6, "{:?}", options.without_effect);
    }

    #[test]
    fn every_flag_of_serve_reaches_the_configuration() {
        let line = "x serve --config f --upstream u --listen l --admin a --store s --upstream-sse e -- c -x";
        let Command::Serve(serve) = Cli::parse_from(line.split(' ')).command else { panic!("not serve") };
        assert_eq!(serve.config.as_deref(), Some("f".as_ref()));
        let Flags { upstream, listen, admin, store, upstream_sse, command } = serve.into_flags();
        assert_eq!(command, ["c", "-x"]);
        let flags = [upstream, listen, admin, store, upstream_sse].map(Option::unwrap);
        assert_eq!(flags, ["u", "l", "a", "s", "e"]);
    }
}
