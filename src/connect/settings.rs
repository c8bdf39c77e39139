//! From the options of the command line to the configuration of the core.
//!
//! Keys of the configuration have the bounds and defaults of `serve`. Only settings that differ for
//! a pipe are set here. Invariant: no problem quotes an argument, because hosts show it.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, Uri};
use toml::Table;

use crate::config::{Config, Flags, ModernClients, PrincipalSource};
use crate::protocol::dialect::Declared;
use crate::protocol::headers::names::X_API_KEY;
use crate::protocol::origin;

/// Options of `connect`, as they were given.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// URL of the server, and a port that other programs take.
    pub positional: Vec<String>,
    /// A program in place of the URL, with its arguments.
    pub command: Vec<String>,
    /// Headers as `Name: value`.
    pub headers: Vec<String>,
    /// Source of a bearer token.
    pub bearer: Option<String>,
    /// Transport of the server.
    pub transport: Option<String>,
    /// True for plain http to other machines.
    pub allow_http: bool,
    /// Clients for which the bridge translates.
    pub bridge: Option<String>,
    /// Names of tools that the host does not see, with `*` for any part.
    pub ignored_tools: Vec<String>,
    /// Folder of the memory of servers, or `None` to remember nothing.
    pub memory: Option<PathBuf>,
}

/// A problem of the arguments, in words for the host.
pub type Problem = String;

const MIB: usize = 1024 * 1024;
/// Times of a pipe.
const WAIT: Duration = Duration::from_secs(50);
const MAX_WAIT: Duration = Duration::from_secs(600);
const PROGRESS_AFTER: Duration = Duration::from_secs(10);

/// The configuration, and what the pipe needs beside it.
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) wait: Duration,
    pub(super) max_wait: Duration,
    /// Origin of the server, or the name of the program.
    pub(super) origin: String,
    /// Names of the user's headers with credentials.
    pub(super) credentials: Vec<String>,
    /// Parts of the command line that name the server, for its memory.
    pub(super) server: Vec<String>,
}

impl Settings {
    /// Checks the options.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn of(options: &Options) -> Result<Self, Problem> {
        let url = target(options)?;
        let headers = headers(options)?;
        let credentials = headers.iter().map(|(name, _)| name.as_str()).filter(|name| is_credential(name));
        let credentials = credentials.map(str::to_owned).collect();
        let is_volatile = |name: &str| ["authorization", "cookie"].contains(&&*name.to_ascii_lowercase());
        let of_header = |(name, value): &(String, String)| {
            format!("{name}:{}", if is_volatile(name) { "" } else { value.as_str() })
        };
        let server = url.iter().cloned().chain(options.command.iter().cloned());
        let server = server.chain(headers.iter().map(of_header)).chain(options.ignored_tools.iter().cloned());
        let server = server.collect();
        let mut table = Table::new();
        if !headers.is_empty() {
            if url.is_none() {
                return Err("--header and --bearer are for a URL: a program takes variables".to_owned());
            }
            let headers: Table = headers.into_iter().map(|(name, value)| (name, value.into())).collect();
            table.insert("headers".to_owned(), headers.into());
        }
        table.insert("wait_secs".to_owned(), (WAIT.as_secs() as i64).into());
        let text = Table::from_iter([("upstream".to_owned(), table.into())]).to_string();
        let is_sse = transport_is_sse(options)?;
        let flags = Flags {
            // Not bound. A far side on the default port must not be taken for this process.
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some(String::new()),
            upstream: url.clone().filter(|_| !is_sse),
            upstream_sse: url.clone().filter(|_| is_sse),
            store: None,
            command: options.command.clone(),
        };
        let config = Config::load(Some(("connect", &text)), [], flags).map_err(|problems| problems.to_string())?;
        let origin =
            url.as_deref().and_then(|url| origin::of(&url.parse().ok()?)).unwrap_or_else(|| config.upstream.place());
        let mut config = adapted(config, options)?;
        if options.transport.as_deref() == Some("http") {
            config.upstream.recognisable = None;
        }
        Ok(Self { config, wait: WAIT, max_wait: MAX_WAIT, origin, credentials, server })
    }
}

/// Sets what a pipe needs otherwise than a listener.
fn adapted(mut config: Config, options: &Options) -> Result<Config, Problem> {
    // One caller, whose token may change.
    config.auth.principal = PrincipalSource::None;
    (config.upstream.resume, config.upstream.resume_for) = (true, Some(MAX_WAIT));
    // The end of a call's reader is its cancel.
    config.streams.modern_grace = Some(Duration::ZERO);
    config.streams.max_wait = Some(MAX_WAIT);
    config.streams.retention = MAX_WAIT;
    config.streams.delivered_retention = Duration::ZERO;
    // One caller, whose results are as large as its lines may be.
    (config.streams.max_event_bytes, config.streams.max_bytes) = (64 * MIB, 96 * MIB);
    (config.streams.max_bytes_per_principal, config.streams.max_bytes_total) = (256 * MIB, 256 * MIB);
    // Drafts for connections that break.
    config.dialects.declared = Declared::default();
    config.dialects.stream_url = false;
    config.dialects.resume_tokens = None;
    config.tasks = None;
    if let Some(progress) = &mut config.delivery.progress {
        progress.after = PROGRESS_AFTER;
    }
    if let Some(bridge) = &mut config.bridge {
        bridge.modern_clients = match options.bridge.as_deref() {
            None | Some("auto") => ModernClients::Never,
            Some("always") => ModernClients::Always,
            Some(_) => return Err("--bridge takes auto or always".to_owned()),
        };
    }
    if let Some(command) = &mut config.upstream.command {
        // As from the host itself.
        command.inherit_env = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        command.adopts_orphans = true;
        command.idle = None;
    }
    config.log.level = "warn".to_owned();
    Ok(config)
}

/// Returns the URL, or `None` with a program.
fn target(options: &Options) -> Result<Option<String>, Problem> {
    let (url, port) = match (&options.positional[..], &options.command[..]) {
        ([], []) => return Err("the URL of the server is missing: mcp-resume connect URL".to_owned()),
        ([], _) => return Ok(None),
        ([_, ..], [_, ..]) => return Err("give a URL or a program behind --, not both".to_owned()),
        ([url], []) => (url, None),
        ([url, port], []) => (url, Some(port)),
        _ => return Err("too many arguments: a header is one argument, --header 'Name: value'".to_owned()),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        let text = "the second argument is no port: a header is one argument, --header 'Name: value'";
        return Err(text.to_owned());
    }
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.host().is_some());
    let Some(uri) = uri else {
        return Err("the first argument is no URL: give http:// or https:// with a host".to_owned());
    };
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if options.allow_http || uri.host().is_some_and(is_loopback) => {}
        Some("http") => {
            let text = "plain http is for servers on this machine: give https://, or --allow-http";
            return Err(text.to_owned());
        }
        Some(_) | None => return Err("the URL begins with neither http:// nor https://".to_owned()),
    }
    Ok(Some(url.clone()))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let is_address = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || host == "localhost" || host.ends_with(".localhost")
}

fn transport_is_sse(options: &Options) -> Result<bool, Problem> {
    let is_sse_path = || {
        let url = options.positional.first().and_then(|url| url.parse::<Uri>().ok());
        url.is_some_and(|url| url.path().ends_with("/sse"))
    };
    match options.transport.as_deref() {
        None | Some("auto" | "http-first" | "sse-first") => Ok(is_sse_path()),
        Some("http" | "http-only") => Ok(false),
        Some("sse" | "sse-only") => Ok(true),
        Some(_) => Err("--transport takes auto, http or sse".to_owned()),
    }
}

fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [AUTHORIZATION, COOKIE, X_API_KEY].iter().any(|known| known.as_str() == name)
        || name.contains("token")
        || name.contains("key")
}

/// Returns the headers of the options, by their names.
fn headers(options: &Options) -> Result<Vec<(String, String)>, Problem> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for text in &options.headers {
        let (name, value) = header(text)?;
        headers.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        headers.push((name, value));
    }
    if let Some(source) = &options.bearer {
        let token = match source.split_once(':') {
            Some(("env", name)) => {
                env::var(name).map_err(|_| format!("--bearer: the variable {} is not set", printable(name)))?
            }
            Some(("file", path)) => {
                std::fs::read_to_string(path).map_err(|error| format!("--bearer: the file cannot be read: {error}"))?
            }
            Some(_) | None => return Err("--bearer takes env:NAME or file:PATH, not the token itself".to_owned()),
        };
        headers.retain(|(other, _)| !other.eq_ignore_ascii_case("authorization"));
        headers.push(("Authorization".to_owned(), format!("Bearer {}", token.trim())));
    }
    Ok(headers)
}

fn header(text: &str) -> Result<(String, String), Problem> {
    let malformed = || "--header takes 'Name: value' as one argument".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(malformed)?;
    let (name, value) = (name.trim(), value.trim());
    if HeaderName::try_from(name).is_err() {
        return Err(malformed());
    }
    if value.is_empty() {
        let text = "ends at its colon: give name and value as one argument, without the blank between them";
        return Err(format!("--header {name} {text}"));
    }
    let value = match value.split_once(':') {
        Some(("env", variable)) => variable_of(name, variable)?,
        Some(("file", path)) => {
            let read = std::fs::read_to_string(path).map(|text| text.trim().to_owned());
            read.map_err(|error| format!("--header {name}: its file cannot be read: {error}"))?
        }
        Some(_) | None => expanded(name, value)?,
    };
    Ok((name.to_owned(), value))
}

/// Returns a value with `${NAME}` replaced by the variables.
fn expanded(header: &str, value: &str) -> Result<String, Problem> {
    if value.contains("${env:") || value.contains("{env:") {
        return Err(format!("--header {header}: write ${{NAME}}, or env:NAME as the whole value"));
    }
    let mut text = String::new();
    let mut rest = value;
    while let Some(begin) = rest.find("${") {
        let Some(length) = rest[begin..].find('}') else { break };
        text.push_str(&rest[..begin]);
        text.push_str(&variable_of(header, &rest[begin + 2..begin + length])?);
        rest = &rest[begin + length + 1..];
    }
    text.push_str(rest);
    Ok(text)
}

fn variable_of(header: &str, name: &str) -> Result<String, Problem> {
    env::var(name)
        .map(|value| value.trim().to_owned())
        .map_err(|_| format!("--header {header}: the variable {} is not set", printable(name)))
}

/// Returns the name of a variable for a message, or a word in its place if it cannot be a name.
fn printable(name: &str) -> &str {
    let is_name = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name { name } else { "that is named" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(positional: &[&str]) -> Options {
        Options { positional: positional.iter().map(|text| (*text).to_owned()).collect(), ..Options::default() }
    }

    fn problem(options: &Options) -> String {
        Settings::of(options).err().expect("a problem")
    }

    #[test]
    fn a_url_has_its_settings() {
        let settings = Settings::of(&options(&["http://127.0.0.1:8080/mcp"])).expect("settings");
        assert_eq!(settings.origin, "http://127.0.0.1:8080");
        assert_eq!(settings.config.upstream.resume_for, Some(MAX_WAIT));
        assert!(settings.credentials.is_empty());
    }

    #[test]
    fn wrong_arguments_are_named_and_not_quoted() {
        for (positional, word) in [
            (&[][..], "URL"),
            (&["secret"][..], "https://"),
            (&["ftp://secret"][..], "https://"),
            (&["http://secret.example"][..], "--allow-http"),
            (&["https://a.example", "secret"][..], "--header"),
            (&["https://a.example", "1", "secret"][..], "--header"),
        ] {
            let problem = problem(&options(positional));
            assert!(problem.contains(word) && !problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn headers_have_values_of_variables() {
        let with = |header: &str| Options { headers: vec![header.to_owned()], ..options(&["https://a.example"]) };
        for header in ["X-Key: ${MCP_RESUME_TEST_NOPE}", "X-Key:env:MCP_RESUME_TEST_NOPE"] {
            assert!(problem(&with(header)).contains("MCP_RESUME_TEST_NOPE"), "{header}");
        }
        for header in ["X-Key:", "X-Key: ${env:A}", "X-Key: {env:A}", "secret", "a secret: b"] {
            let problem = problem(&with(header));
            assert!(problem.contains("--header") && !problem.contains("secret"), "{problem}");
        }
        assert_eq!(header("X-Key:a b "), Ok(("X-Key".to_owned(), "a b".to_owned())));
        let path = env::var("PATH").expect("a path");
        assert_eq!(header("X-Key: a${PATH}b"), Ok(("X-Key".to_owned(), format!("a{}b", path.trim()))));
        let settings = Settings::of(&with("Authorization: Bearer x")).expect("settings");
        assert_eq!(settings.credentials, ["Authorization"]);
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        for url in ["http://localhost:1/mcp", "http://a.localhost/mcp", "http://[::1]:1/mcp", "http://127.1.2.3/"] {
            assert!(Settings::of(&options(&[url])).is_ok(), "{url}");
        }
        let allowed = Options { allow_http: true, ..options(&["http://a.example/mcp"]) };
        assert!(Settings::of(&allowed).is_ok());
    }
}
