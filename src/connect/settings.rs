//! From the options of the command line to the configuration of the core.
//!
//! Keys of the configuration have the bounds and defaults of `serve`. Only settings that differ for
//! a pipe are set here. Invariant: no problem quotes an argument, because hosts show it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, io};

use http::Uri;

use super::headers::{has_visible_credential, headers, is_credential};
use super::options::{Options, Problem};
use super::proxies::{self, is_loopback};
use crate::config::{
    Config, Connect, ConnectFlags, Connecting, Flags, FurtherRoots, Liveness, ModernClients, PrincipalSource, Store,
    Way,
};
use crate::protocol::client_names::ClientName;
use crate::protocol::dialect::Declared;
use crate::protocol::origin;
use crate::tls;

/// Defaults that differ from those of `serve`: there is one caller, whose results are as large as
/// its lines may be.
const DEFAULTS: &str = "
[streams]
max_event_bytes = 67_108_864
max_bytes = 100_663_296
max_bytes_per_principal = 268_435_456
max_bytes_total = 268_435_456
[delivery]
progress_after_secs = 10
";
/// Times of a program's end: from the end of its stdin to SIGTERM, and from there to SIGKILL.
const END_TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1));

/// The configuration, and what the pipe needs beside it.
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) connect: Connect,
    /// Origin of the server, or the name of the program.
    pub(super) origin: String,
    /// Names of the user's headers with credentials.
    pub(super) credentials: Vec<String>,
    /// Parts of the command line that name the server, for its memory.
    pub(super) server: Vec<String>,
    /// Folder of that memory, or `None` to remember nothing.
    pub(super) memory: Option<PathBuf>,
    /// Sentences for the user.
    pub(super) warnings: Vec<String>,
}

impl Settings {
    /// Checks the options.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn of(options: &Options) -> Result<Self, Problem> {
        let url = target(options)?;
        check_watched(options)?;
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
        if !headers.is_empty() && url.is_none() {
            return Err("--header and --bearer are for a URL: a program takes variables".to_owned());
        }
        if let Some(option) = options.refused.first() {
            let text = "is not supported, as it would change who signs in: leave it out, or give --bearer env:NAME";
            return Err(format!("{option} {text}"));
        }
        let Connecting { core, connect } = load(options, url.as_deref(), headers)?;
        let of_url = url.as_deref().and_then(|url| origin::of(&url.parse().ok()?));
        let origin = of_url.unwrap_or_else(|| core.upstream.place());
        let mut config = adapted(core, &connect, options)?;
        if let Some(url) = url.as_deref().and_then(|url| url.parse().ok()) {
            config.upstream.way = way(&url, &connect)?;
            config.upstream.tls.further = Some(further_roots(&connect)?);
        }
        if matches!(options.transport.as_deref(), Some("http" | "http-only")) {
            config.upstream.recognisable = None;
        }
        let memory = options.memory.clone().filter(|_| connect.remember);
        Ok(Self { config, connect, origin, credentials, server, memory, warnings: warnings(options) })
    }
}

/// Returns the configuration of all layers.
fn load(options: &Options, url: Option<&str>, headers: Vec<(String, String)>) -> Result<Connecting, Problem> {
    let is_wrong = |name: &String| name.parse::<ClientName>().is_err();
    if options.impatient.iter().any(is_wrong) {
        return Err("--impatient takes the name of a host, with * at its end at most".to_owned());
    }
    let is_sse = transport_is_sse(options)?;
    let url = |of_sse: bool| url.filter(|_| is_sse == of_sse).map(str::to_owned);
    let flags = Flags {
        // Not bound. A far side on the default port must not be taken for this process.
        listen: Some("127.0.0.1:0".to_owned()),
        admin: Some(String::new()),
        upstream: url(false),
        upstream_sse: url(true),
        store: None,
        command: options.command.clone(),
    };
    let connect = ConnectFlags {
        headers,
        wait_secs: options.wait_secs.clone(),
        max_wait_secs: options.max_wait_secs.clone(),
        repeat: options.repeat.clone(),
        remember: options.remember.clone(),
        impatient: options.impatient.clone(),
        ca_file: options.ca_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
        ipv4: options.ipv4.then(|| "true".to_owned()),
    };
    let files = files(options)?;
    Connecting::load(&files, options.variables.clone(), flags, connect).map_err(|problems| problems.to_string())
}

/// Returns the names and texts of the files of the configuration, the weakest first.
fn files(options: &Options) -> Result<Vec<(String, String)>, Problem> {
    let read = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::read_to_string(path).map(|text| (name, text))
    };
    let mut files = vec![("the defaults".to_owned(), DEFAULTS.to_owned())];
    match options.own_config.as_deref().map(read) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("connect.toml cannot be read: {error}"));
        }
        Some(Ok(file)) => files.push(file),
        Some(Err(_)) | None => {}
    }
    if let Some(path) = &options.config {
        files.push(read(path).map_err(|error| format!("--config: the file cannot be read: {error}"))?);
    }
    Ok(files)
}

/// Returns sentences about options that do less or more than the user may expect.
fn warnings(options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    if has_visible_credential(options) {
        let text = "a credential in --header is visible in the list of processes: give ${NAME}, env:NAME or file:PATH";
        warnings.push(text.to_owned());
    }
    if options.positional.first().is_some_and(|url| has_credential_in_query(url)) {
        let text = "the query of the URL seems to hold a credential, which is visible in the list of processes";
        warnings.push(text.to_owned());
    }
    if !options.without_effect.is_empty() {
        let names = options.without_effect.join(", ");
        warnings.push(format!("without effect, since there is no sign-in yet: {names}"));
    }
    warnings
}

fn has_credential_in_query(url: &str) -> bool {
    let (_, query) = url.split_once('?').unwrap_or_default();
    query.split('&').filter_map(|pair| pair.split_once('=')).any(|(name, _)| is_credential(name))
}

/// Sets what a pipe needs otherwise than a listener.
fn adapted(mut config: Config, connect: &Connect, options: &Options) -> Result<Config, Problem> {
    // One caller, whose token may change.
    config.auth.principal = PrincipalSource::None;
    config.upstream.wait = connect.wait;
    (config.upstream.resume, config.upstream.resume_for) = (true, Some(connect.max_wait));
    // The end of a call's reader is its cancel.
    config.streams.modern_grace = Some(Duration::ZERO);
    config.streams.max_wait = Some(connect.max_wait);
    config.streams.retention = connect.max_wait;
    config.streams.delivered_retention = Duration::ZERO;
    // Nothing outlives the process, and no other process has a part of it.
    config.store = Store::Memory;
    // The pipe compares what the host was told with what the server is (`told.rs`).
    config.sessions.front.takes_any_server = true;
    // Drafts for connections that break.
    config.dialects.declared = Declared::default();
    config.dialects.stream_url = false;
    config.dialects.resume_tokens = None;
    config.tasks = None;
    if let Some(bridge) = &mut config.bridge {
        bridge.modern_clients = match options.bridge.as_deref() {
            None | Some("auto") => ModernClients::Never,
            Some("always") => ModernClients::Always,
            Some(_) => return Err("--bridge takes auto or always".to_owned()),
        };
    }
    config.sessions.front.announces_undeclared = !options.watch.is_empty();
    if let Some(command) = &mut config.upstream.command {
        (command.stderr_to_client, command.last_lines_to_client) = (true, true);
        (command.end, command.keeps_asked) = (Some(END_TIMES), true);
        // As from the host itself.
        command.inherit_env = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        command.adopts_orphans = true;
        command.idle = None;
    }
    Ok(config)
}

/// Returns the way to a server, which leads through networks of others.
fn way(url: &Uri, connect: &Connect) -> Result<Way, Problem> {
    let proxies = proxies::on_the_way(url, |name| env::var(name).ok())?;
    Ok(Way { proxies, ipv4_only: connect.ipv4, liveness: Liveness::of_strangers(), has_strangers: true })
}

/// Returns the authorities of the configuration and of the environment.
fn further_roots(connect: &Connect) -> Result<FurtherRoots, Problem> {
    if let Some(path) = &connect.ca_file {
        let unusable = |error| match error {
            tls::Error::Read { source, .. } => {
                format!("connect.ca_file (--ca-file): the file cannot be read: {source}")
            }
            _ => "connect.ca_file (--ca-file): there is no certificate in PEM form in the file".to_owned(),
        };
        tls::read_authorities(path).map_err(unusable)?;
    }
    let of_name = |name: &&str| env::var_os(name).filter(|value| !value.is_empty());
    let files = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"].iter().filter_map(of_name).map(PathBuf::from);
    let folders =
        of_name(&"SSL_CERT_DIR").map(|value| env::split_paths(&value).collect::<Vec<_>>()).unwrap_or_default();
    let folders = folders.into_iter().filter(|folder| !folder.as_os_str().is_empty()).collect();
    Ok(FurtherRoots { files: files.chain(connect.ca_file.clone()).collect(), folders })
}

/// Checks the paths of `--watch`.
fn check_watched(options: &Options) -> Result<(), Problem> {
    if options.watch.is_empty() {
        return Ok(());
    }
    if options.command.is_empty() {
        return Err("--watch is for a program: give it behind --, as in --watch src -- python server.py".to_owned());
    }
    if !options.watch.iter().all(|path| path.exists()) {
        return Err("--watch: a path does not exist: give files or folders of the program".to_owned());
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Repeat;

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
        assert_eq!(settings.config.upstream.resume_for, Some(Duration::from_secs(600)));
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
    fn options_and_variables_and_files_are_layers() {
        let path = env::temp_dir().join(format!("mcp-resume-settings-{}", std::process::id()));
        std::fs::write(&path, "[connect]\nwait_secs = 1\nmax_wait_secs = 2\nrepeat = \"never\"\n").expect("a file");
        let mut given = Options { own_config: Some(path.clone()), ..options(&["https://a.example"]) };
        let (at, fixed) = ("MCP_RESUME_CONNECT__MAX_WAIT_SECS", "MCP_RESUME_HOME");
        given.variables = [(at, "3"), (fixed, "/tmp")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let read = |given: &Options| {
            let Settings { connect, config, .. } = Settings::of(given).expect("settings");
            assert_eq!((config.upstream.wait, config.upstream.resume_for), (connect.wait, Some(connect.max_wait)));
            (connect.wait.as_secs(), connect.max_wait.as_secs(), connect.repeat)
        };
        assert_eq!(read(&given), (1, 3, Repeat::Never));
        given.max_wait_secs = Some("4".to_owned());
        assert_eq!(read(&given), (1, 4, Repeat::Never));
        given.repeat = Some("secret".to_owned());
        given.impatient = vec!["secret*b".to_owned()];
        given.wait_secs = Some("secret".to_owned());
        let problem = problem(&given);
        assert!(!problem.contains("secret"), "{problem}");
        std::fs::remove_file(&path).expect("the file");
        assert!(Settings::of(&Options { own_config: Some(path.clone()), ..options(&["https://a.example"]) }).is_ok());
        assert!(Settings::of(&Options { config: Some(path), ..options(&["https://a.example"]) }).is_err());
    }

    #[test]
    fn secrets_that_other_processes_see_are_warned_about() {
        let warnings = |options: &Options| Settings::of(options).expect("settings").warnings.len();
        assert_eq!(warnings(&options(&["https://a.example/mcp?page=1"])), 0);
        assert_eq!(warnings(&options(&["https://a.example/mcp?apiKey=1"])), 1);
        let headers = vec!["Authorization: Bearer x".to_owned()];
        assert_eq!(warnings(&Options { headers, ..options(&["https://a.example/mcp"]) }), 1);
    }

    #[test]
    fn options_that_change_who_signs_in_are_refused() {
        let given = Options { refused: vec!["--device-code"], ..options(&["https://a.example/mcp"]) };
        assert!(problem(&given).contains("--device-code"));
        let given = Options { without_effect: vec!["--host"], ..options(&["https://a.example/mcp"]) };
        assert_eq!(Settings::of(&given).expect("settings").warnings.len(), 1);
    }

    #[test]
    fn only_the_files_of_a_program_are_watched() {
        let watch = |path: &str| vec![PathBuf::from(path)];
        let of_url = Options { watch: watch("/"), ..options(&["https://a.example"]) };
        assert!(problem(&of_url).contains("--watch is for a program"));
        let program = |path: &str| Options { watch: watch(path), command: vec!["a".to_owned()], ..options(&[]) };
        let problem = problem(&program("/secret/absent"));
        assert!(problem.contains("does not exist") && !problem.contains("secret"), "{problem}");
        let settings = Settings::of(&program("/")).expect("settings");
        assert!(settings.config.sessions.front.announces_undeclared);
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
