//! Every key with its bounds and its default, and the rules between keys.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

use super::balance::{Balance, Balancing, balance};
use super::bridge::bridge;
use super::command::{Command, Variable};
use super::connect::{Connect, Connecting, connect};
use super::otel::otel;
use super::problem::Problem;
use super::public_url::{public_url, refuse_credentials_beside, refuse_unchecked_metadata, with_public_host};
use super::raw::{RawConfig, tool_section};
use super::read::{Reader, Section};
use super::streams::streams;
use super::tasks::tasks;
use super::value::{
    DAY_MS, YEAR, file, host, key_pair, log_level, non_empty, none_if_zero, principal, redis_prefix, redis_url,
    socket_address,
};
use super::{
    Admin, AnswerPings, Auth, ClientVariable, Config, Delivery, Dialects, DiskStore, Fsync, HostHeader, Limits, Listen,
    ListenTls, Log, LogFormat, Mode, OnUnreachable, Prime, PrincipalSource, Problems, ProgressBeats, RedisStore,
    Replica, ResumeTokens, SessionCookies, SessionFront, Sessions, SseServer, StaticHeaders, Store, TaskSupport,
    ToolOverrides, Turns, Upstream, UpstreamTls, UpstreamUrl, Way,
};
use mcp_resume_protocol::access::{AllowedHosts, AllowedOrigins, HostPattern, OriginPattern};
use mcp_resume_protocol::classify;
use mcp_resume_protocol::client_address::{Network, Trust};
use mcp_resume_protocol::client_names::{ClientName, ClientNames};
use mcp_resume_protocol::dialect::{Declared, resume_tokens};
use mcp_resume_protocol::headers::names;

const MIB: usize = 1024 * 1024;
/// hyper panics if it must read heads into less.
const HEADER_BYTES_MIN: usize = 8192;

const PINGS: [(&str, AnswerPings); 2] = [("absent", AnswerPings::Absent), ("never", AnswerPings::Never)];
const MODES: [(&str, Mode); 2] = [("stream", Mode::Stream), ("poll", Mode::Poll)];

pub(super) fn build(raw: RawConfig) -> Result<Config, Problems> {
    let mut reader = Reader::new(raw);
    let config = config(&mut reader);
    Problems::check(reader.finish())?;
    Ok(config)
}

/// Reads the one key that requests to a running sidecar need.
pub(super) fn admin_address(raw: RawConfig) -> Result<Option<SocketAddr>, Problems> {
    let is_unreadable = raw.is_unreadable;
    let mut reader = Reader::new(raw);
    let Admin { address, .. } = admin(&mut reader, None);
    let of_key = |problem: &Problem| is_unreadable || problem.key == "admin.address";
    Problems::check(reader.finish().into_iter().filter(of_key).collect())?;
    Ok(address)
}

/// Builds the configuration of `balance`, which has replicas in place of an upstream.
pub(super) fn balancing(raw: RawConfig) -> Result<Balancing, Problems> {
    let mut reader = Reader::new(raw);
    let Sections { config: Config { listen, auth, limits, admin, log, .. }, balance, .. } = sections(&mut reader);
    if balance.replicas.is_empty() && balance.file.is_none() {
        let text = "nowhere to go: give --replica URL, or replicas or file in [balance]";
        reader.missing("balance", "replicas", text);
    }
    Problems::check(reader.finish())?;
    Ok(Balancing { listen, balance, auth, limits, admin, log })
}

/// Builds the configuration of `connect`, whose server is on the command line.
pub(super) fn connecting(raw: RawConfig) -> Result<Connecting, Problems> {
    let mut reader = Reader::new(raw);
    let Sections { config: core, connect, .. } = sections(&mut reader);
    Problems::check(reader.finish())?;
    Ok(Connecting { core, connect })
}

/// All sections. A bad value is replaced by its default, and a missing upstream by another one.
struct Sections {
    config: Config,
    balance: Balance,
    connect: Connect,
    has_upstream: bool,
}

/// Reads the configuration of `serve`. A bad or missing value has a problem, and a replacement.
pub(super) fn config(reader: &mut Reader) -> Config {
    let sections = sections(reader);
    if !sections.has_upstream {
        let text = "is required: give --upstream URL, MCP_RESUME_UPSTREAM__URL, or url in [upstream]; a server on stdio has a command, one on HTTP+SSE sse_url";
        reader.missing("upstream", "url", text);
    }
    sections.config
}

fn sections(reader: &mut Reader) -> Sections {
    let (mut upstream, has_upstream) = upstream(reader);
    let hosts = allowed_hosts(&mut reader.section("listen"));
    let listen = listen(reader, hosts.clone());
    let admin = admin(reader, hosts);
    if admin.address == Some(listen.address) && listen.address.port() != 0 {
        let text = format!("the data and the admin listener both have {}", listen.address);
        reader.conflict([("admin", "address"), ("listen", "address")], text);
    }
    if has_upstream && upstream.command.is_none() {
        refuse_loop(reader, &upstream.url, &listen, &admin);
    }
    refuse_headers(reader, &upstream);
    let streams = streams(reader, upstream.is_channel());
    let delivery = delivery(&mut reader.section("delivery"));
    let resume_tokens = resume_tokens(reader);
    let dialects = dialects(&mut reader.section("dialects"), resume_tokens);
    let names = reader.tools();
    let tools = names.into_iter().map(|name| {
        let tool = tool(&mut reader.section(tool_section(&name)));
        (name, tool)
    });
    let tools = tools.collect();
    let auth = Auth { principal: reader.section("auth").text("principal", principal).unwrap_or(PrincipalSource::Auto) };
    upstream.session_cookies.credentials = credential_headers(&auth.principal);
    if has_upstream {
        refuse_unchecked_metadata(reader, &listen, &upstream, &auth);
        refuse_credentials_beside(reader, &listen, &upstream);
    }
    if has_upstream && auth.principal == PrincipalSource::SigV4 {
        refuse_unread_signatures(reader, &upstream);
    }
    let store = store(reader);
    let limits = limits(&mut reader.section("limits"));
    let replica = replica(reader);
    let sessions = sessions(&mut reader.section("sessions"));
    if has_upstream {
        refuse_short_wait(reader, &upstream, &store, &replica, &sessions);
    }
    let tasks = tasks(reader).map(Arc::new);
    let bridge = bridge(reader);
    let balance = balance(reader);
    let connect = connect(reader);
    let otel = otel(reader).map(Box::new);
    let log = log(&mut reader.section("log"));
    let config = Config {
        listen,
        upstream,
        streams,
        delivery,
        dialects,
        tools,
        auth,
        limits,
        store,
        replica,
        sessions,
        tasks,
        bridge,
        admin,
        otel,
        log,
    };
    Sections { config, balance, connect, has_upstream }
}

/// Returns the headers that distinguish callers.
fn credential_headers(principal: &PrincipalSource) -> Vec<HeaderName> {
    let own = match principal {
        PrincipalSource::Auto | PrincipalSource::SigV4 | PrincipalSource::None => None,
        PrincipalSource::Header(name) => Some(name.clone()),
        PrincipalSource::Cookie(_) => Some(COOKIE),
    };
    [AUTHORIZATION, names::X_API_KEY].into_iter().chain(own).collect()
}

/// Reads the upstream. Returns true beside it if it is usable, else it is a replacement.
fn upstream(reader: &mut Reader) -> (Upstream, bool) {
    let mut s = reader.section("upstream");
    let url = s.parsed::<UpstreamUrl>("url");
    let (idle, start) = (s.secs("child_idle_secs", 0..=YEAR), s.secs("start_secs", 1..=YEAR));
    let idle = none_if_zero(idle.unwrap_or(Duration::from_secs(300)));
    let start = start.unwrap_or(Duration::from_secs(55));
    let shared = s.boolean("shared").unwrap_or(false);
    let env_from_headers = s.table("env_from_headers", ClientVariable::parse_all).unwrap_or_default();
    let has_client_variables = !env_from_headers.is_empty();
    let command = command(&mut s, idle, start, shared, env_from_headers);
    let sse_url = s.text("sse_url", |text| UpstreamUrl::parse_sse(text).map_err(|error| error.to_string()));
    let is_plain = url.as_ref().is_some_and(|url| !url.is_https());
    let servers = [("url", url.is_some()), ("sse_url", sse_url.is_some()), ("command", command.is_some())];
    let given: Vec<&str> = servers.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect();
    // A program has no URL; the server at the usual path is in its place.
    let url = match &sse_url {
        _ if command.is_some() => None,
        Some(sse_url) => Some(sse_url.to_default_endpoint()),
        None => url,
    };
    let url = url.unwrap_or_else(|| "http://localhost".parse().expect("a valid URL"));
    let on_sse = |url| SseServer { url, idle, start };
    let mut upstream = Upstream {
        host: s.text("host", host).unwrap_or(HostHeader::Upstream),
        http2: s.boolean("http2").unwrap_or(false),
        connect_timeout: s.millis("connect_timeout_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(5)),
        wait: s.secs("wait_secs", 0..=YEAR).unwrap_or(Duration::from_secs(20)),
        unready: s.secs("unready_secs", 0..=YEAR).unwrap_or(Duration::from_secs(5)),
        connections: usize::MAX,
        header_timeout: s.secs("header_timeout_secs", 0..=YEAR).and_then(none_if_zero),
        pool_idle: s.secs("pool_idle_secs", 0..=YEAR).unwrap_or(Duration::from_secs(4)),
        resume: s.boolean("resume").unwrap_or(false),
        resume_for: None,
        headers: s.table("headers", StaticHeaders::parse).unwrap_or_default(),
        session_cookies: SessionCookies {
            names: s.list("session_cookies", 0).unwrap_or_default(),
            credentials: vec![],
        },
        answer_pings: s.one_of("answer_pings", &PINGS).unwrap_or(AnswerPings::Absent),
        keepalive: none_if_zero(s.secs("keepalive_secs", 0..=YEAR).unwrap_or(Duration::from_secs(120))),
        recognisable: if command.is_none() && sse_url.is_none() { Some(on_sse(url.clone())) } else { None },
        sse: sse_url.map(on_sse),
        tls: upstream_tls(reader),
        way: Way::default(),
        url,
        command,
    };
    if upstream.command.is_some() {
        // Nothing between the proxy and a program ends for silence.
        upstream.keepalive = None;
    }
    if upstream.tls != UpstreamTls::default() && is_plain {
        let text = "[upstream.tls] is for an https:// upstream, and upstream.url is none".to_owned();
        reader.conflict([("upstream.tls", "ca"), ("upstream.tls", "cert")], text);
    }
    if let [one, other, ..] = given[..] {
        let text = "an upstream is one server: at a URL, or a program".to_owned();
        reader.conflict([("upstream", one), ("upstream", other)], text);
    }
    refuse_program_keys(reader, upstream.command.is_some(), shared, has_client_variables);
    (upstream, !given.is_empty())
}

/// Reports keys of a program without one, and a program on a system that starts none.
fn refuse_program_keys(reader: &mut Reader, is_program: bool, shared: bool, has_client_variables: bool) {
    if shared && !is_program {
        let text = "sessions share processes, which a server on stdio has alone: give upstream.command".to_owned();
        reader.conflict([("upstream", "shared"), ("upstream", "command")], text);
    }
    if has_client_variables && !is_program {
        let text = "headers become variables of a program: give upstream.command".to_owned();
        reader.conflict([("upstream", "env_from_headers"), ("upstream", "command")], text);
    }
    if is_program && !cfg!(unix) {
        let text = "programs are started on Unix systems only".to_owned();
        reader.conflict([("upstream", "command"), ("upstream", "command")], text);
    }
}

/// Reads the program of a server on stdio. `None` without one.
fn command(
    s: &mut Section<'_>,
    idle: Option<Duration>,
    start: Duration,
    shared: bool,
    env_from_headers: Vec<ClientVariable>,
) -> Option<Command> {
    let line = s.json_list::<String>("command", 1);
    let env = s.json_list::<Variable>("env", 0).unwrap_or_default();
    let command = Command {
        line: line.clone().unwrap_or_default(),
        env: env.into_iter().map(|Variable(name, value)| (name, value)).collect(),
        inherit_env: s.list("inherit_env", 0).unwrap_or_default(),
        env_from_headers,
        cwd: s.text("cwd", file).flatten(),
        idle,
        shared,
        max_children: s.count("max_children", 1).unwrap_or(64),
        max_children_per_principal: s.count("max_children_per_principal", 1).unwrap_or(8),
        starts_per_minute: s.count("starts_per_minute", 1),
        start,
        stderr_to_client: s.boolean("stderr_to_client").unwrap_or(false),
        own_binary: None,
        last_lines_to_client: false,
        end: None,
        keeps_asked: false,
        adopts_orphans: false,
    };
    line.map(|_| command)
}

/// Reports headers for the server, and headers that become variables, that exclude other settings.
fn refuse_headers(reader: &mut Reader, upstream: &Upstream) {
    let Upstream { headers, session_cookies, command, .. } = upstream;
    if let Some(command) = command {
        if !headers.is_empty() {
            let text = "a program gets no headers: give upstream.env".to_owned();
            reader.conflict([("upstream", "headers"), ("upstream", "command")], text);
        }
        let is_given = |name: &String| command.env.iter().any(|(given, _)| given == name);
        let names = command.env_from_headers.iter().map(|client| &client.variable);
        for name in names.filter(|name| is_given(name) || command.inherit_env.contains(name)) {
            let text = format!("{name} has a value already, which a client without the header would get");
            reader.conflict([("upstream", "env_from_headers"), ("upstream", "env")], text);
        }
    }
    if headers.names().any(|name| *name == COOKIE) && !session_cookies.names.is_empty() {
        let text = "a header cookie replaces all cookies, and so those of sessions".to_owned();
        reader.conflict([("upstream", "headers"), ("upstream", "session_cookies")], text);
    }
}

/// Reports signatures that the server cannot verify. A program gets no signature, and a signature
/// covers the `Host` that the client sent.
fn refuse_unread_signatures(reader: &mut Reader, upstream: &Upstream) {
    let (key, text) = if upstream.command.is_some() {
        ("command", "is \"sigv4\", and a program gets no signatures, so no one verifies them: give another source")
    } else if upstream.host != HostHeader::Client {
        ("host", "is \"sigv4\", and signatures cover Host: give upstream.host = \"client\"")
    } else {
        return;
    };
    reader.conflict([("auth", "principal"), ("upstream", key)], text.to_owned());
}

/// Reports a wait for a replica that is gone which ends before its lease does: a session could
/// never be taken over while its client waits.
fn refuse_short_wait(reader: &mut Reader, upstream: &Upstream, store: &Store, replica: &Replica, sessions: &Sessions) {
    let is_shared = matches!(store, Store::Redis(_));
    if is_shared && sessions.revive && !upstream.wait.is_zero() && upstream.wait < replica.lease {
        let text = "a request in the session of a replica that is gone waits for upstream.wait_secs, and its lease runs for \
                    replica.lease_secs: give a wait that is as long as the lease, or 0 for none";
        reader.conflict([("upstream", "wait_secs"), ("replica", "lease_secs")], text.to_owned());
    }
}

/// Reports an upstream that is a listener of this process.
fn refuse_loop(reader: &mut Reader, url: &UpstreamUrl, listen: &Listen, admin: &Admin) {
    let listeners = [
        ("listen", "address", Some(listen.address)),
        ("admin", "address", admin.address),
        ("admin", "metrics_address", admin.metrics_address),
    ];
    for (section, key, address) in listeners {
        if let Some(address) = address.filter(|address| url.reaches(*address)) {
            let text = format!(
                "leads back to this proxy, which listens on {address} ({section}.{key}): give the MCP server's URL"
            );
            reader.conflict([("upstream", "url"), (section, key)], text);
        }
    }
}

fn upstream_tls(reader: &mut Reader) -> UpstreamTls {
    let ca = reader.section("upstream.tls").text("ca", file).flatten();
    UpstreamTls { ca, identity: key_pair(reader, "upstream.tls"), ..UpstreamTls::default() }
}

/// Returns the configured host names, or `None` by default.
fn allowed_hosts(s: &mut Section<'_>) -> Option<Vec<HostPattern>> {
    s.list("allowed_hosts", 1)
}

fn listen_tls(reader: &mut Reader) -> Option<ListenTls> {
    let client_ca = reader.section("listen.tls").text("client_ca", file).flatten();
    let identity = key_pair(reader, "listen.tls");
    if client_ca.is_some() && identity.is_none() {
        let text = "clients can show a certificate only to a listener that has one: give cert and key".to_owned();
        reader.conflict([("listen.tls", "client_ca"), ("listen.tls", "cert")], text);
    }
    Some(ListenTls { identity: identity?, client_ca })
}

fn listen(reader: &mut Reader, hosts: Option<Vec<HostPattern>>) -> Listen {
    let tls = listen_tls(reader);
    let mut s = reader.section("listen");
    let address = s.text("address", socket_address).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
    let origins = s.list("allowed_origins", 0);
    let proxies = s.list::<Network>("trusted_proxies", 0).unwrap_or_default();
    let idle = s.secs("idle_secs", 1..=YEAR).unwrap_or(Duration::from_secs(75));
    let public_url = s.text("public_url", public_url).flatten();
    let resource_metadata = s.text("resource_metadata", file).flatten();
    let is_loopback = address.ip().is_loopback();
    let hosts = match hosts {
        Some(hosts) if hosts.iter().any(HostPattern::is_any) => AllowedHosts::Any,
        Some(hosts) => AllowedHosts::Listed(hosts),
        None if is_loopback => AllowedHosts::Loopback,
        None => AllowedHosts::Any,
    };
    Listen {
        address,
        tls,
        allowed_hosts: with_public_host(hosts, public_url.as_ref()),
        allowed_origins: match origins {
            Some(origins) if origins.contains(&OriginPattern::Any) => AllowedOrigins::Any,
            Some(origins) => AllowedOrigins::Listed(origins),
            None if is_loopback => AllowedOrigins::Loopback,
            None => AllowedOrigins::OwnHost,
        },
        trusted_proxies: Trust::new(proxies.into_iter().map(Into::into)),
        idle,
        public_url,
        resource_metadata,
    }
}

fn admin(reader: &mut Reader, hosts: Option<Vec<HostPattern>>) -> Admin {
    let optional = |text: &str| match text {
        "" => Ok(None),
        text => socket_address(text).map(Some),
    };
    let metrics_address = reader.section("admin").text("metrics_address", optional).flatten();
    let address = reader.section("admin").text("address", optional);
    let address = address.unwrap_or(Some(SocketAddr::from(([127, 0, 0, 1], 9464))));
    let mut addresses = address.into_iter().chain(metrics_address);
    let is_loopback = addresses.all(|address| address.ip().is_loopback());
    // Probes of a pod use its address.
    let allowed_hosts =
        if is_loopback { AllowedHosts::LoopbackAnd(hosts.unwrap_or_default()) } else { AllowedHosts::Any };
    Admin { address, metrics_address, allowed_hosts }
}

fn delivery(s: &mut Section<'_>) -> Delivery {
    let primes = [("all", Prime::All), ("2025-11-25", Prime::Since20251125)];
    let commit_after = s.millis("commit_after_ms", 0..=DAY_MS);
    Delivery {
        prime: s.one_of("prime", &primes).unwrap_or(Prime::All),
        commit_after: none_if_zero(commit_after.unwrap_or(Duration::from_millis(2000))),
        retry: s.millis("retry_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        retry_long: s.millis("retry_long_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(5)),
        retry_long_after: Duration::from_secs(10),
        heartbeat: s.secs("heartbeat_secs", 1..=YEAR).unwrap_or(Duration::from_secs(10)),
        max_connection: s.secs("max_connection_secs", 0..=YEAR).and_then(none_if_zero),
        mode: s.one_of("mode", &MODES).unwrap_or(Mode::Stream),
        poll_retry: s.millis("poll_retry_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(5)),
        drain_retry: s.millis("drain_retry_ms", 1..=DAY_MS).unwrap_or(Duration::from_secs(5)),
        progress: progress_beats(s),
        by_get: client_names(s, "by_get", &["Visual Studio Code*", "code-server", "ai-sdk-mcp-client"]),
        graceful_for: client_names(s, "graceful_for", &[]),
        adopt_for: client_names(s, "adopt_for", &[]),
    }
}

fn progress_beats(s: &mut Section<'_>) -> Option<ProgressBeats> {
    let after = s.secs("progress_after_secs", 0..=YEAR).unwrap_or(Duration::from_secs(20));
    let max = s.secs("progress_max_secs", 1..=YEAR).unwrap_or(Duration::from_secs(3600));
    let except = client_names(s, "progress_except", &["inspector-client"]);
    none_if_zero(after).map(|after| ProgressBeats { after, max, except })
}

/// Reads a list of clients.
fn client_names(s: &mut Section<'_>, key: &'static str, default: &[&str]) -> ClientNames {
    let names: Option<Vec<ClientName>> = s.list(key, 0);
    names.map_or_else(|| ClientNames::of(default), ClientNames::from_iter)
}

fn dialects(s: &mut Section<'_>, resume_tokens: Option<ResumeTokens>) -> Dialects {
    let turns = [("seen", Turns::Seen), ("all", Turns::All), ("off", Turns::Off)];
    let stream_url = s.boolean("stream_url").unwrap_or(true);
    let stream_url_turns = s.one_of("stream_url_turns", &turns).unwrap_or(Turns::Seen);
    Dialects {
        declared: Declared {
            resumable_requests: s.boolean("resumable_requests").unwrap_or(true),
            resumable_streams: s.boolean("resumable_streams").unwrap_or(true),
        },
        min_wait: s.secs("min_wait_secs", 0..=YEAR).unwrap_or(Duration::from_secs(1)),
        stream_url,
        // Guaranteed by the field's docs.
        stream_url_turns: if stream_url { stream_url_turns } else { Turns::Off },
        input_grace: s.millis("input_grace_ms", 0..=DAY_MS).unwrap_or(Duration::from_secs(1)),
        resume_tokens: resume_tokens.map(Arc::new),
    }
}

fn resume_tokens(reader: &mut Reader) -> Option<ResumeTokens> {
    const SECTION: &str = "dialects.resume_tokens";
    let mut s = reader.section(SECTION);
    let enabled = s.boolean("enabled").unwrap_or(false);
    let slice = s.secs("slice_secs", 1..=YEAR).unwrap_or(Duration::from_secs(30));
    let tools: Vec<String> = s.list("tools", 0).unwrap_or_default();
    let methods: Vec<SlicedMethod> = s.list("methods", 0).unwrap_or_default();
    if enabled && tools.is_empty() && methods.is_empty() {
        let text = "is on, and neither tools nor methods names what is answered in slices".to_owned();
        reader.conflict([(SECTION, "enabled"), (SECTION, "tools")], text);
    }
    let methods = methods.into_iter().map(|SlicedMethod(method)| method).collect();
    if enabled { Some(ResumeTokens { slice, tools: tools.into_iter().collect(), methods }) } else { None }
}

/// A method that may have an interim result.
struct SlicedMethod(String);

impl FromStr for SlicedMethod {
    type Err = &'static str;

    fn from_str(method: &str) -> Result<Self, Self::Err> {
        match method {
            resume_tokens::CALLS_TOOL => Err("goes by the names in tools"),
            method if resume_tokens::may_be_sliced(method) => Ok(Self(method.to_owned())),
            _ => Err("cannot be answered in slices"),
        }
    }
}

fn tool(s: &mut Section<'_>) -> ToolOverrides {
    ToolOverrides {
        max_wait: s.secs("max_wait_secs", 0..=YEAR).map(none_if_zero),
        call_timeout: s.secs("call_timeout_secs", 0..=YEAR).map(none_if_zero),
        mode: s.one_of("mode", &MODES),
        task: s.one_of(
            "task",
            &[("auto", TaskSupport::Auto), ("never", TaskSupport::Never), ("required", TaskSupport::Required)],
        ),
        task_after: s.millis("task_after_ms", 0..=DAY_MS),
    }
}

fn limits(s: &mut Section<'_>) -> Limits {
    Limits {
        body_bytes: s.count("body_bytes", 1).unwrap_or(16 * MIB),
        header_bytes: s.count("header_bytes", HEADER_BYTES_MIN).unwrap_or(64 * 1024),
        connections: s.count("connections", 1).unwrap_or(Limits::DEFAULT_CONNECTIONS),
        streams_per_principal: s.count("streams_per_principal", 1).unwrap_or(16_384),
        detached_calls_per_principal: s.count("detached_calls_per_principal", 1).unwrap_or(1024),
        resumes_per_sec: s.rate("resumes_per_sec").unwrap_or(1000),
        batch: s.count("batch", 1).unwrap_or(classify::BATCH_MAX),
        sessions: s.count("sessions", 1).unwrap_or(65_536),
        tasks_per_principal: s.count("tasks_per_principal", 1).unwrap_or(64),
        held_posts_per_session: s.count("held_posts_per_session", 1).unwrap_or(256),
    }
}

fn sessions(s: &mut Section<'_>) -> Sessions {
    Sessions {
        revive: s.one_of("revive", &[("auto", true), ("never", false)]).unwrap_or(true),
        refusals: s.list("refusals", 0).unwrap_or_default(),
        keep: s.secs("keep_secs", 1..=YEAR).unwrap_or(Duration::from_secs(604_800)),
        front: SessionFront::default(),
    }
}

/// Reads the store. After a problem the returned value is never used.
fn store(reader: &mut Reader) -> Store {
    let identity = key_pair(reader, "store.tls");
    let ca = reader.section("store.tls").text("ca", file).flatten();
    let mut s = reader.section("store");
    let kinds = [("memory", Kind::Memory), ("disk", Kind::Disk), ("redis", Kind::Redis)];
    let given = s.one_of("kind", &kinds);
    let path = s.text("path", file).flatten();
    let fsync = s.one_of("fsync", &[("always", Fsync::Always), ("interval", Fsync::Interval)]);
    let max_bytes = s.count("max_bytes", 64 * MIB);
    let url = s.text("url", redis_url).flatten();
    let prefix = s.text("prefix", redis_prefix).unwrap_or_else(|| "mcp-resume:".to_owned());
    let policies = [("degrade", OnUnreachable::Degrade), ("refuse", OnUnreachable::Refuse)];
    let on_unreachable = s.one_of("on_unreachable", &policies).unwrap_or(OnUnreachable::Degrade);
    let meant = [(path.is_some(), "path", "disk"), (url.is_some(), "url", "redis")];
    for (_, key, kind) in meant.into_iter().filter(|(is_given, ..)| *is_given && given.is_none()) {
        reader.kind_missing(key, kind);
    }
    match given.unwrap_or(Kind::Memory) {
        Kind::Memory => Store::Memory,
        Kind::Disk => {
            if path.is_none() {
                reader.missing("store", "path", "a disk store needs a directory of its own");
            }
            let max_bytes = max_bytes.unwrap_or(4096 * MIB) as u64;
            let fsync = fsync.unwrap_or(Fsync::Always);
            Store::Disk(DiskStore { path: path.unwrap_or_default(), fsync, max_bytes })
        }
        Kind::Redis => {
            if url.is_none() {
                reader.missing("store", "url", "a Redis store needs the URL of a Redis, as redis://127.0.0.1:6379");
            }
            Store::Redis(RedisStore { url: url.unwrap_or_default(), prefix, ca, identity, on_unreachable })
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Memory,
    Disk,
    Redis,
}

fn replica(reader: &mut Reader) -> Replica {
    let replica = replica_alone(&mut reader.section("replica"));
    let is_too_long = |delay: &Duration| !delay.is_zero() && *delay >= replica.drain_timeout;
    if replica.drain_delay.as_ref().is_some_and(is_too_long) {
        let text = "a drain ends at drain_timeout_secs, which counts from its beginning, before new calls are refused at \
                    drain_delay_secs: give a shorter delay or a longer timeout";
        let keys = [("replica", "drain_delay_secs"), ("replica", "drain_timeout_secs")];
        reader.conflict(keys, text.to_owned());
    }
    replica
}

fn replica_alone(s: &mut Section<'_>) -> Replica {
    Replica {
        name: s.text("name", non_empty).flatten(),
        key_file: s.text("key_file", file).flatten(),
        wrap_sessions: s.boolean("wrap_sessions").unwrap_or(false),
        lease: s.secs("lease_secs", 2..=3600).unwrap_or(Duration::from_secs(15)),
        drain_delay: s.secs("drain_delay_secs", 0..=YEAR),
        drain_timeout: s.secs("drain_timeout_secs", 0..=YEAR).unwrap_or(Duration::from_secs(30)),
    }
}

fn log(s: &mut Section<'_>) -> Log {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    Log {
        format: s.one_of("format", &formats).unwrap_or(LogFormat::Text),
        level: s.text("level", log_level).unwrap_or_else(|| "info".to_owned()),
        stderr_on_failure: s.boolean("stderr_on_failure").unwrap_or(true),
    }
}
