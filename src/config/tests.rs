//! All layers together, and `config.example.toml` against the code.

use http::HeaderValue;

use super::*;

const EXAMPLE: &str = include_str!("../../config.example.toml");

fn upstream() -> Flags {
    Flags { upstream: Some("http://127.0.0.1:3000/mcp".to_owned()), ..Flags::default() }
}

fn from_file(text: &str) -> Result<Config, Problems> {
    Config::load(Some(("c.toml", text)), [], upstream())
}

fn from_env(env: &[(&str, &str)]) -> Result<Config, Problems> {
    Config::load(None, owned(env), upstream())
}

fn owned(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the problems, a line each.
fn lines(result: Result<Config, Problems>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

/// Returns the example with all its commented-out keys uncommented.
fn example_in_full() -> String {
    let uncomment = |line: &'static str| {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let is_key = bare
            .split_once(" = ")
            .is_some_and(|(key, value)| !key.contains(' ') && value.parse::<toml::Value>().is_ok());
        if is_key || bare.starts_with("[tools.") { bare } else { line }
    };
    EXAMPLE.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_has_the_defaults() {
    let example = Config::load(Some(("example", EXAMPLE)), [], Flags::default()).unwrap();
    assert_eq!(example, Config::load(None, [], upstream()).unwrap());
}

#[test]
fn the_example_has_every_key_and_is_read() {
    let mut raw = raw::RawConfig::default();
    raw.add_file("example", &example_in_full());
    let given: Vec<_> = raw.values.keys().cloned().collect();
    let mut reader = read::Reader::new(raw);
    let config = build::config(&mut reader);
    assert_eq!(config.tools["long-report"].mode, Some(Mode::Poll));
    assert_eq!(config.streams.modern_grace, Some(Duration::from_secs(3)));
    assert_eq!(config.replica.drain_delay, Some(Duration::from_secs(5)));

    let keys = |(section, keys): (&String, &Vec<&str>)| {
        keys.iter().map(|key| (section.clone(), (*key).to_owned())).collect::<Vec<_>>()
    };
    let mut known: Vec<_> = reader.known().iter().flat_map(keys).collect();
    known.sort();
    assert!(known.len() > 30, "{known:?}");
    assert_eq!(given, known);
}

#[test]
fn a_drain_waits_for_load_balancers_unless_the_listener_is_local() {
    for (file, expected) in [
        ("", 0),
        ("[listen]\naddress = \"0.0.0.0:8080\"", 5),
        ("[listen]\naddress = \"0.0.0.0:8080\"\n[replica]\ndrain_delay_secs = 0", 0),
        ("[replica]\ndrain_delay_secs = 7", 7),
        ("[listen]\naddress = \"0.0.0.0:8080\"\n[replica]\ndrain_timeout_secs = 4", 2),
        ("[listen]\naddress = \"0.0.0.0:8080\"\n[replica]\ndrain_timeout_secs = 0", 0),
        ("[replica]\ndrain_delay_secs = 0\ndrain_timeout_secs = 0", 0),
        ("[replica]\ndrain_delay_secs = 7\ndrain_timeout_secs = 8", 7),
    ] {
        assert_eq!(from_file(file).unwrap().drain_delay(), Duration::from_secs(expected), "{file}");
    }
}

#[test]
fn all_problems_of_all_layers_are_reported_at_once_with_their_place() {
    let file = r#"
stray = 1
[delivery]
retry_ms = "fast"
retry = 2
mode = "push"
[flavours]
stream_url = true
[streams]
max_wait_secs = -1
linger_ms = 1.5
max_events = 99999999999999999999
[tools."a b"]
mode = "pull"
colour = "red"
[listen]
address = "localhost:8080"
[auth]
principal = "header:not a name"
[log]
level = "inof"
"#;
    let env = [
        ("MCP_RESUME_UPSTREAM__RESUME", "maybe"),
        ("MCP_RESUME_DELIVERY__RETRI_MS", "1"),
        ("MCP_RESUME_CACHE__SIZE", "1"),
        ("MCP_RESUME_RETRY_MS", "1"),
        ("MCP_RESUME_delivery__retry_ms", "1"),
        ("MCP_RESUME_TOOLS__X__MODE", "poll"),
    ];
    let flags =
        Flags { upstream: Some("ftp://h/mcp".to_owned()), store: Some("tape:/var".to_owned()), ..Flags::default() };
    let lines = lines(Config::load(Some(("c.toml", file)), owned(&env), flags));
    let expected = [
        "c.toml:2: stray: must be a section",
        "c.toml:4: delivery.retry_ms: must be a whole number, not a text in quotes",
        "c.toml:5: delivery.retry: unknown key; did you mean retry_ms? [delivery] has commit_after_ms, prime, retry_ms",
        "c.toml:6: delivery.mode: must be \"stream\" or \"poll\", not \"push\"",
        "c.toml:7: flavours: unknown section; there are admin, auth, ",
        "c.toml:10: streams.max_wait_secs: must be a whole number from 0 to 31536000",
        "c.toml:11: streams.linger_ms: must be a whole number, not a fraction",
        "c.toml:12: streams.max_events: must be a whole number, not one this large",
        "c.toml:14: tools.\"a b\".mode: must be \"stream\" or \"poll\"",
        "c.toml:15: tools.\"a b\".colour: unknown key; [tools.\"a b\"] has max_wait_secs, ",
        "c.toml:17: listen.address: must be an IP address and a port",
        "c.toml:19: auth.principal: must be \"auto\"",
        "c.toml:21: log.level: must be off, error",
        "MCP_RESUME_CACHE__SIZE in the environment: unknown section",
        "MCP_RESUME_DELIVERY__RETRI_MS in the environment: unknown key; did you mean retry_ms? [delivery] has",
        "MCP_RESUME_RETRY_MS in the environment: unknown variable",
        "MCP_RESUME_TOOLS__X__MODE in the environment: tools are configured in the file only",
        "MCP_RESUME_UPSTREAM__RESUME in the environment: must be true or false",
        "MCP_RESUME_delivery__retry_ms in the environment: unknown variable",
        "--store: must be \"memory\" or \"disk\" or \"redis\", not \"tape:/var\"",
        "--upstream: must begin with http:// or https://",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\nis not {expected}…");
    }
}

#[test]
fn flags_win_over_the_environment_the_environment_over_the_file() {
    let file = "[listen]\naddress = '127.0.0.1:1'\n[upstream]\nurl = 'http://file'";
    let env = [("MCP_RESUME_LISTEN__ADDRESS", "127.0.0.1:2")];
    let load = |env: &[_], listen: Option<&str>| {
        let flags = Flags { listen: listen.map(str::to_owned), ..Flags::default() };
        let config = Config::load(Some(("c.toml", file)), owned(env), flags).unwrap();
        assert_eq!(config.upstream.url.origin(), "http://file");
        config.listen.address.port()
    };
    assert_eq!(load(&[], None), 1);
    assert_eq!(load(&env, None), 2);
    assert_eq!(load(&env, Some("127.0.0.1:3")), 3);
    assert_eq!(Config::load(None, [], upstream()).unwrap().listen.address.port(), 8080);
}

#[test]
fn a_bad_value_is_reported_even_if_overridden() {
    let file = "[listen]\naddress = 'here'";
    let flags = Flags { listen: Some("127.0.0.1:3".to_owned()), ..upstream() };
    let lines = lines(Config::load(Some(("c.toml", file)), [], flags));
    assert!(matches!(&lines[..], [line] if line.starts_with("c.toml:2: listen.address")));
}

#[test]
fn the_environment_can_hold_every_kind_of_value() {
    let config = from_env(&[
        ("MCP_RESUME_DELIVERY__RETRY_MS", "250"),
        ("MCP_RESUME_DELIVERY__PRIME", "2025-11-25"),
        ("MCP_RESUME_UPSTREAM__RESUME", "true"),
        ("MCP_RESUME_UPSTREAM__HOST", "mcp.example.com:81"),
        ("MCP_RESUME_ADMIN__ADDRESS", ""),
        ("MCP_RESUME_REPLICA__NAME", "a"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!(config.delivery.retry, Duration::from_millis(250));
    assert_eq!(config.delivery.prime, Prime::Since20251125);
    assert!(config.upstream.resume);
    let name = HeaderValue::from_static("mcp.example.com:81");
    assert_eq!(config.upstream.host, HostHeader::Name(name));
    assert_eq!(config.admin.address, None);
    assert_eq!(config.replica.name.as_deref(), Some("a"));
}

#[test]
fn only_variables_of_kubernetes_services_are_ignored() {
    for name in [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_8080_TCP",
        "PORT_8080_TCP_ADDR",
        "PORT_53_UDP_PROTO",
        "ADMIN_SERVICE_HOST",
        "ADMIN_PORT_1_TCP_PORT",
    ] {
        from_env(&[(&format!("MCP_RESUME_{name}"), "tcp://10.0.0.1:8080")]).unwrap();
    }
    for name in ["HOST", "PORTS", "PORT_X_TCP", "PORT_80", "SERVICE", "LISTEN_ADDRESS", ""] {
        assert_eq!(lines(from_env(&[(&format!("MCP_RESUME_{name}"), "1")])).len(), 1, "{name}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_reported_without_its_contents() {
    let file = "[upstream]\nurl = http://me:hunter2@h\n[listen\naddress = 'x'\n";
    let flags = Flags { admin: Some("x".to_owned()), ..Flags::default() };
    let lines = lines(Config::load(Some(("c.toml", file)), [], flags));
    let of_file = lines.iter().filter(|line| line.contains(": not TOML: ")).count();
    assert!(of_file >= 2, "{lines:#?}");
    assert!(lines[0].starts_with("c.toml:2: "), "{lines:#?}");
    assert_eq!(lines.len(), of_file + 1, "the flag, and no missing upstream: {lines:#?}");
    assert!(!lines.concat().contains("hunter2"), "{lines:#?}");
}

#[test]
fn a_missing_upstream_is_reported_with_every_way_to_give_it() {
    let lines = lines(Config::load(None, [], Flags::default()));
    assert_eq!(
        lines,
        ["upstream.url: is required: give --upstream URL, MCP_RESUME_UPSTREAM__URL, \
          or url in [upstream]; a server on stdio has a command, one on HTTP+SSE sse_url"]
    );
}

#[test]
fn a_silent_server_has_two_seconds_for_its_own_response() {
    let config = Config::for_upstream("http://127.0.0.1:1/mcp").unwrap();
    assert_eq!(config.delivery.commit_after, Some(Duration::from_secs(2)));
}

#[test]
fn zero_means_none_for_the_documented_keys() {
    let config = from_file(
        "[streams]\nmax_wait_secs = 0\nmodern_grace_ms = 0\nretention_secs = 7\n\
         [delivery]\ncommit_after_ms = 0\n[upstream]\nheader_timeout_secs = 2",
    )
    .unwrap();
    assert_eq!(config.streams.max_wait, None);
    assert_eq!(config.streams.retention, Duration::from_secs(7));
    assert_eq!(config.streams.modern_grace, Some(Duration::ZERO));
    assert_eq!(config.delivery.commit_after, None);
    assert_eq!(config.upstream.header_timeout, Some(Duration::from_secs(2)));
    assert_eq!(config.streams.call_timeout, None);
    for key in ["retry_ms", "poll_retry_ms", "heartbeat_secs"] {
        assert_eq!(lines(from_file(&format!("[delivery]\n{key} = 0"))).len(), 1, "{key}");
    }
}

#[test]
fn progress_of_the_proxy_is_off_at_zero_and_its_clients_are_named() {
    let progress = |text: &str| from_file(&format!("[delivery]\n{text}")).unwrap().delivery.progress;
    let secs = Duration::from_secs;
    let default = progress("").unwrap();
    assert_eq!(
        (default.after, default.max, default.except),
        (secs(20), secs(3600), ClientNames::of(&["inspector-client"]))
    );
    assert_eq!(progress("progress_after_secs = 0"), None);
    let other = progress("progress_after_secs = 5\nprogress_max_secs = 60\nprogress_except = ['a b', 'c*']").unwrap();
    assert_eq!((other.after, other.max, other.except), (secs(5), secs(60), ClientNames::of(&["a b", "c*"])));
    assert!(progress("progress_except = []").unwrap().except.is_empty());
    for wrong in [
        "progress_max_secs = 0",
        "progress_after_secs = -1",
        "progress_except = ['']",
        "progress_except = 'a'",
        "progress_except = ['*a']",
    ] {
        assert_eq!(lines(from_file(&format!("[delivery]\n{wrong}"))).len(), 1, "{wrong}");
    }
}

#[test]
fn clients_are_named_by_the_whole_name_or_its_beginning() {
    let delivery = |text: &str| from_file(&format!("[delivery]\n{text}")).unwrap().delivery;
    let default = delivery("");
    for name in ["Visual Studio Code", "Visual Studio Code - Insiders", "code-server", "ai-sdk-mcp-client"] {
        assert!(default.by_get.has(name), "{name}");
    }
    assert!(!default.by_get.has("code-server-2") && default.graceful_for.is_empty() && default.adopt_for.is_empty());
    let other = delivery("by_get = []\ngraceful_for = ['a*', 'b c']\nadopt_for = ['d*']");
    assert_eq!(other.adopt_for, ClientNames::of(&["d*"]));
    assert!(other.by_get.is_empty());
    assert_eq!(other.graceful_for, ClientNames::of(&["a*", "b c"]));
    for wrong in ["by_get = ['a*b']", "graceful_for = ['']", "by_get = 'a'"] {
        assert_eq!(lines(from_file(&format!("[delivery]\n{wrong}"))).len(), 1, "{wrong}");
    }
}

#[test]
fn retention_is_never_shorter_than_max_wait() {
    let config = from_file(
        "[streams]\nmax_wait_secs = 100\nretention_secs = 10\n\
         [tools.long]\nmax_wait_secs = 900\ncall_timeout_secs = 5\nmode = 'poll'\n\
         [tools.ever]\nmax_wait_secs = 0",
    )
    .unwrap();
    let secs = Duration::from_secs;
    assert_eq!(config.streams.retention, secs(100));
    let general = Call { max_wait: Some(secs(100)), retention: secs(100), call_timeout: None, mode: Mode::Stream };
    assert_eq!(config.call(None), general);
    assert_eq!(config.call(Some("other")), general);
    let long = Call { max_wait: Some(secs(900)), retention: secs(900), call_timeout: Some(secs(5)), mode: Mode::Poll };
    assert_eq!(config.call(Some("long")), long);
    assert_eq!(config.call(Some("ever")), Call { max_wait: None, ..general });
}

#[test]
fn resume_tokens_need_tools_or_methods() {
    let section = "[dialects.resume_tokens]\n";
    let on = from_file(&format!("{section}enabled = true\ntools = ['a']\nmethods = ['prompts/get', 'x/y']")).unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let expected =
        ResumeTokens { slice: Duration::from_secs(30), tools: names(&["a"]), methods: names(&["prompts/get", "x/y"]) };
    assert_eq!(on.dialects.resume_tokens.as_deref(), Some(&expected));
    let env = [
        ("MCP_RESUME_DIALECTS__RESUME_TOKENS__ENABLED", "true"),
        ("MCP_RESUME_DIALECTS__RESUME_TOKENS__TOOLS", "a, b"),
    ];
    assert_eq!(from_env(&env).unwrap().dialects.resume_tokens.unwrap().tools, names(&["a", "b"]));
    assert_eq!(from_file(&format!("{section}tools = ['a']")).unwrap().dialects.resume_tokens, None, "off");
    let nothing = lines(from_file(&format!("{section}enabled = true")));
    assert_eq!(nothing.len(), 1, "{nothing:?}");
    assert!(nothing[0].starts_with("c.toml:2: dialects.resume_tokens.enabled: is on, and neither"), "{nothing:?}");
    let wrong = lines(from_file(&format!("{section}methods = ['tools/call', 'initialize']\nslice_secs = 0")));
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    let texts = wrong.join("\n");
    assert!(texts.contains("\"tools/call\" goes by the names in tools; \"initialize\" cannot be"), "{texts}");
}

#[test]
fn conflicting_values_are_reported_at_their_origin() {
    let bytes = lines(from_file("[streams]\nlinger_ms = 1\nmax_event_bytes = 33554432"));
    assert!(matches!(&bytes[..], [line] if line.starts_with("c.toml:3: streams.max_event_bytes: ")));
    let flags = Flags { listen: Some("127.0.0.1:9464".to_owned()), ..upstream() };
    let address = lines(Config::load(None, [], flags));
    assert_eq!(address, ["--listen: the data and the admin listener both have 127.0.0.1:9464"]);
    let both_free =
        Flags { listen: Some("127.0.0.1:0".to_owned()), admin: Some("127.0.0.1:0".to_owned()), ..upstream() };
    assert!(Config::load(None, [], both_free).is_ok());
}

#[test]
fn metadata_of_the_operator_needs_someone_who_checks_tokens() {
    let checked = "public_url = 'https://a.example/mcp'\ntrusted_proxies = ['10.0.0.0/8']";
    let load = |listen: &str, auth: &str, flags: Flags| {
        let text = format!("[listen]\nresource_metadata = 'r.json'\n{listen}\n[auth]\nprincipal = '{auth}'");
        Config::load(Some(("c.toml", &text)), [], flags)
    };
    let stdio = || Flags { command: vec!["server".to_owned()], ..Flags::default() };
    assert!(load(checked, "header:x-user", stdio()).is_ok());
    for (listen, auth, flags, word) in [
        ("trusted_proxies = ['10.0.0.0/8']", "header:x-user", stdio(), "listen.public_url"),
        ("public_url = 'https://a.example/mcp'", "header:x-user", stdio(), "listen.trusted_proxies"),
        (checked, "auto", stdio(), "auth.principal"),
        (checked, "header:x-user", upstream(), "a server on HTTP"),
    ] {
        let refused = lines(load(listen, auth, flags));
        let is_expected = |line: &str| line.starts_with("c.toml:2: listen.resource_metadata: ") && line.contains(word);
        assert!(matches!(&refused[..], [line] if is_expected(line)), "{refused:?}");
    }
}

#[test]
fn credentials_of_the_operator_are_refused_beside_a_public_url() {
    let of = |upstream: &str, flags: Flags| {
        let text = format!("[listen]\npublic_url = 'https://a.example/mcp'\n[upstream]\n{upstream}");
        lines(Config::load(Some(("c.toml", &text)), [], flags))
    };
    let stdio = || Flags { command: vec!["server".to_owned()], ..Flags::default() };
    for (text, flags, key) in [
        ("headers = { Authorization = 'Bearer x' }", upstream(), "headers"),
        ("headers = { X-Own = 'env:KEY' }", upstream(), "headers"),
        ("env_from_headers = { TOKEN = 'Authorization' }", stdio(), "env_from_headers"),
    ] {
        let refused = of(text, flags);
        let place = format!("c.toml:4: upstream.{key}: ");
        assert!(matches!(&refused[..], [line] if line.starts_with(&place)), "{refused:?}");
    }
    let load = |text: &str| from_file(&format!("[listen]\npublic_url = 'https://a.example/mcp'\n[upstream]\n{text}"));
    assert!(load("headers = { X-Region = 'eu' }").is_ok());
}

#[test]
fn signed_requests_need_the_host_of_the_client() {
    let signed = "[auth]\nprincipal = 'sigv4'\n[upstream]\nhost = ";
    assert!(from_file(&format!("{signed}'client'")).is_ok());
    let refused = lines(from_file(&format!("{signed}'upstream'")));
    assert!(matches!(&refused[..], [line] if line.starts_with("c.toml:2: auth.principal: ")), "{refused:?}");
    // No one verifies the signatures of requests to a program.
    let stdio = Flags { command: vec!["server".to_owned()], ..Flags::default() };
    let refused = lines(Config::load(Some(("c.toml", &format!("{signed}'client'"))), [], stdio));
    assert!(matches!(&refused[..], [line] if line.contains("a program gets no signatures")), "{refused:?}");
}

#[test]
fn the_host_of_the_public_url_may_be_named() {
    let of =
        |listen: &str| from_file(&format!("[listen]\npublic_url = 'https://a.example:8443/mcp'\n{listen}")).unwrap();
    let host = |text: &str| text.parse::<mcp_resume_protocol::access::HostPattern>().unwrap();
    assert_eq!(of("").listen.allowed_hosts, AllowedHosts::LoopbackAnd(vec![host("a.example")]));
    assert_eq!(of("").admin.allowed_hosts, AllowedHosts::LoopbackAnd(vec![]));
    let listed = of("allowed_hosts = ['b']").listen.allowed_hosts;
    assert_eq!(listed, AllowedHosts::Listed(vec![host("b"), host("a.example")]));
    assert_eq!(of("address = '0.0.0.0:1'").listen.allowed_hosts, AllowedHosts::Any);
    let refused = lines(from_file("[listen]\npublic_url = 'http://a.example/mcp'"));
    assert!(
        matches!(&refused[..], [line] if line.starts_with("c.toml:2: listen.public_url: must begin with https://"))
    );
}

#[test]
fn only_processes_are_shared() {
    let refused = lines(from_file("[upstream]\nshared = true"));
    assert!(matches!(&refused[..], [line] if line.starts_with("c.toml:2: upstream.shared: ")), "{refused:?}");
    let flags = || Flags { command: vec!["server".to_owned()], ..Flags::default() };
    let shared = Config::load(Some(("c.toml", "[upstream]\nshared = true")), [], flags()).unwrap();
    let own = Config::load(None, [], flags()).unwrap();
    let is_shared = |config: Config| config.upstream.command.is_some_and(|command| command.shared);
    assert_eq!((is_shared(shared), is_shared(own)), (true, false));
}

#[test]
fn tls_is_configured_in_sections_of_its_own() {
    let config = from_file("[listen.tls]\ncert = 'c.pem'\nkey = 'k.pem'").unwrap();
    let pair = KeyPair { cert: "c.pem".into(), key: "k.pem".into() };
    assert_eq!(config.listen.tls, Some(ListenTls { identity: pair.clone(), client_ca: None }));
    let with_clients = from_file("[listen.tls]\ncert = 'c.pem'\nkey = 'k.pem'\nclient_ca = 'a.pem'").unwrap();
    assert_eq!(with_clients.listen.tls, Some(ListenTls { identity: pair.clone(), client_ca: Some("a.pem".into()) }));
    let alone = lines(from_file("[listen.tls]\nclient_ca = 'a.pem'"));
    assert!(matches!(&alone[..], [line] if line.starts_with("c.toml:2: listen.tls.client_ca: ")), "{alone:?}");

    let flags = Flags { upstream: Some("https://h/mcp".to_owned()), ..Flags::default() };
    let env = [
        ("MCP_RESUME_UPSTREAM__TLS__CA", "ca.pem"),
        ("MCP_RESUME_UPSTREAM__TLS__CERT", "c.pem"),
        ("MCP_RESUME_UPSTREAM__TLS__KEY", "k.pem"),
    ];
    let upstream = Config::load(None, owned(&env), flags).unwrap().upstream;
    assert_eq!(upstream.tls, UpstreamTls { ca: Some("ca.pem".into()), identity: Some(pair), ..UpstreamTls::default() });
}

#[test]
fn tls_settings_without_effect_are_refused() {
    let half = lines(from_file("[listen.tls]\nkey = 'k.pem'"));
    assert!(matches!(&half[..], [line] if line.starts_with("c.toml:2: listen.tls.key: ")), "{half:?}");
    let plain = lines(from_file("[upstream.tls]\nca = 'ca.pem'"));
    assert!(matches!(&plain[..], [line] if line.starts_with("c.toml:2: upstream.tls.ca: ")), "{plain:?}");
    let unknown = lines(from_file("[streams.tls]\nca = 'ca.pem'\n[listen.tls]\nciphers = 'x'"));
    assert!(unknown[0].starts_with("c.toml:1: streams.tls: unknown section"), "{unknown:?}");
    assert!(unknown[1].starts_with("c.toml:4: listen.tls.ciphers: unknown key"), "{unknown:?}");
}

#[test]
fn principals_and_log_levels() {
    let principal =
        |text: &str| from_file(&format!("[auth]\nprincipal = '{text}'")).map(|config| config.auth.principal);
    let user = HeaderName::from_static("x-user");
    assert_eq!(principal("header:X-User"), Ok(PrincipalSource::Header(user)));
    assert_eq!(principal("cookie:Sid"), Ok(PrincipalSource::Cookie("Sid".to_owned())));
    assert_eq!(principal("none"), Ok(PrincipalSource::None));
    for bad in ["", "header", "header:", "cookie:a=b", "jwt:sub", "auto:x"] {
        assert!(principal(bad).is_err(), "{bad}");
    }
    let level = |text: &str| from_file(&format!("[log]\nlevel = '{text}'"));
    for good in ["off", "debug", "warn,mcp_resume=trace", "info,[span]=debug"] {
        assert!(level(good).is_ok(), "{good}");
    }
    for bad in ["", "loud", "info,", "mcp_resume=loud", "mcp_resume"] {
        assert!(level(bad).is_err(), "{bad}");
    }
}

#[test]
fn default_hosts_and_origins_depend_on_the_address() {
    let of = |listen: &str, more: &str| from_file(&format!("[listen]\naddress = '{listen}'\n{more}")).unwrap();
    let local = of("127.0.0.1:1", "");
    assert_eq!(local.listen.allowed_hosts, AllowedHosts::Loopback);
    assert_eq!(local.listen.allowed_origins, AllowedOrigins::Loopback);
    assert_eq!(of("[::1]:1", "").listen.allowed_hosts, AllowedHosts::Loopback);
    assert_eq!(local.admin.allowed_hosts, AllowedHosts::LoopbackAnd(vec![]));
    let public = of("0.0.0.0:1", "[admin]\naddress = '0.0.0.0:2'");
    assert_eq!(public.listen.allowed_hosts, AllowedHosts::Any);
    assert_eq!(public.listen.allowed_origins, AllowedOrigins::OwnHost);
    assert_eq!(public.admin.allowed_hosts, AllowedHosts::Any);

    let configured =
        of("127.0.0.1:1", "allowed_hosts = ['a.example', '*.b.example:1']\nallowed_origins = ['https://c']");
    let hosts = vec!["a.example".parse().unwrap(), "*.b.example:1".parse().unwrap()];
    assert_eq!(configured.listen.allowed_hosts, AllowedHosts::Listed(hosts.clone()));
    assert_eq!(configured.admin.allowed_hosts, AllowedHosts::LoopbackAnd(hosts));
    assert_eq!(configured.listen.allowed_origins, AllowedOrigins::Listed(vec!["https://c".parse().unwrap()]));
    let all = of("127.0.0.1:1", "allowed_hosts = ['a', '*']\nallowed_origins = ['null', '*']");
    assert_eq!((all.listen.allowed_hosts, all.listen.allowed_origins), (AllowedHosts::Any, AllowedOrigins::Any));
    let without = of("127.0.0.1:1", "allowed_origins = []");
    assert_eq!(without.listen.allowed_origins, AllowedOrigins::Listed(vec![]));

    let env =
        [("MCP_RESUME_LISTEN__ALLOWED_HOSTS", "a.example, b.example:1,"), ("MCP_RESUME_LISTEN__ALLOWED_ORIGINS", "")];
    let listen = from_env(&env).unwrap().listen;
    let hosts = vec!["a.example".parse().unwrap(), "b.example:1".parse().unwrap()];
    assert_eq!(listen.allowed_hosts, AllowedHosts::Listed(hosts));
    assert_eq!(listen.allowed_origins, AllowedOrigins::Listed(vec![]));
}

#[test]
fn lists_are_checked_entry_by_entry() {
    let lines = lines(from_file(
        "[listen]\nallowed_hosts = ['good', 'http://bad', 'b:x']\nallowed_origins = 'https://h'\n[log]\nlevel = ['info']",
    ));
    let expected = [
        r#"c.toml:2: listen.allowed_hosts: "http://bad" must be a host"#,
        "c.toml:3: listen.allowed_origins: must be a list of texts, not a text in quotes",
        "c.toml:5: log.level: must be a text in quotes, not a list",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\nis not {expected}…");
    }
    assert!(lines[0].contains(r#"; "b:x" must be"#), "{}", lines[0]);
    for bad in ["allowed_hosts = []", "allowed_hosts = [1]", "allowed_origins = [['x']]", "allowed_origins = ['h']"] {
        assert!(from_file(&format!("[listen]\n{bad}")).is_err(), "{bad}");
    }
    assert!(from_env(&[("MCP_RESUME_LISTEN__ALLOWED_HOSTS", "")]).is_err());
}

#[test]
fn debug_shows_no_query() {
    let config = Config::for_upstream("http://h:1/mcp?key=hunter2").unwrap();
    assert_eq!(config.upstream.url.query(), Some("key=hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!((config.listen.address.port(), config.admin.address), (0, None));
}

#[test]
fn a_key_above_the_sections_is_reported_with_its_section() {
    for (file, problem) in [
        ("heartbeat_secs = 5", "c.toml:1: heartbeat_secs: is a key of [delivery]: write it below a line [delivery]"),
        (
            "url = 'http://h'",
            "c.toml:1: url: is a key of several sections: write it below a line [store] or [upstream]",
        ),
        (
            "upstream = 'http://h'",
            "c.toml:1: upstream: must be a section: write a line [upstream] and its keys below it",
        ),
        ("stray = 1", "c.toml:1: stray: must be a section, as in [section]"),
    ] {
        assert_eq!(lines(from_file(file)), [problem]);
    }
}

#[test]
fn a_path_or_url_of_a_store_needs_its_kind() {
    let disk = lines(from_file("[store]\npath = '/var/lib/x'"));
    let expected =
        "c.toml:2: store.path: is given without store.kind, and would not be used: set kind = \"disk\" in [store]";
    assert_eq!(disk, [expected]);
    let redis = lines(from_env(&[("MCP_RESUME_STORE__URL", "redis://h")]));
    assert!(matches!(&redis[..], [line] if line.contains("set kind = \"redis\"")), "{redis:?}");
    // A given kind may differ from the file's; a bad kind is reported alone.
    let flags = Flags { store: Some("memory".to_owned()), ..upstream() };
    assert!(Config::load(Some(("c.toml", "[store]\nkind = 'disk'\npath = 'x'")), [], flags).is_ok());
    assert!(from_file("[store]\nkind = 'memory'\npath = 'x'").is_ok());
    assert_eq!(lines(from_file("[store]\nkind = 'tape'\npath = 'x'")).len(), 1);
}

#[test]
fn an_upstream_that_is_a_listener_of_the_proxy_is_refused() {
    let load = |url: &str, listen: &str| {
        let flags = Flags { upstream: Some(url.to_owned()), listen: Some(listen.to_owned()), ..Flags::default() };
        Config::load(None, [], flags)
    };
    let own = lines(load("http://localhost:8080/mcp", "127.0.0.1:8080"));
    let problem =
        "leads back to this proxy, which listens on 127.0.0.1:8080 (listen.address): give the MCP server's URL";
    assert_eq!(own, [format!("--upstream: {problem}")]);
    let admin = lines(load("http://127.0.0.1:9464/mcp", "127.0.0.1:8080"));
    assert!(matches!(&admin[..], [line] if line.contains("(admin.address)")), "{admin:?}");
    assert!(load("http://127.0.0.1:3000/mcp", "0.0.0.0:8080").is_ok());
    let flags = Flags { upstream: Some("http://127.0.0.1:9465/mcp".to_owned()), ..Flags::default() };
    let file = "[admin]\nmetrics_address = '127.0.0.1:9465'";
    let metrics = lines(Config::load(Some(("c.toml", file)), [], flags));
    assert!(matches!(&metrics[..], [line] if line.contains("(admin.metrics_address)")), "{metrics:?}");
}

#[test]
fn a_drain_that_would_end_before_its_delay_is_refused() {
    for file in [
        "drain_delay_secs = 30",
        "drain_delay_secs = 9\ndrain_timeout_secs = 8",
        "drain_delay_secs = 1\ndrain_timeout_secs = 0",
    ] {
        let problems = lines(from_file(&format!("[replica]\n{file}")));
        assert!(
            matches!(&problems[..], [line] if line.starts_with("c.toml:2: replica.drain_delay_secs: ")),
            "{problems:?}"
        );
        assert!(problems[0].contains("give a shorter delay or a longer timeout"), "{problems:?}");
    }
}

#[test]
fn a_wait_that_ends_before_the_lease_is_refused_with_a_shared_store() {
    let with = |kind: &str, more: &str| {
        from_file(&format!("[store]\n{kind}\n[replica]\nlease_secs = 30\n[upstream]\nurl = 'http://s/mcp'\n{more}"))
    };
    let redis = "kind = 'redis'\nurl = 'redis://r'";
    for more in ["wait_secs = 29", ""] {
        let problems = lines(with(redis, more));
        assert!(matches!(&problems[..], [line] if line.contains("its lease runs for")), "{problems:?}");
    }
    for (kind, more) in [
        (redis, "wait_secs = 30"),
        (redis, "wait_secs = 0"),
        (redis, "wait_secs = 1\n[sessions]\nrevive = 'never'"),
        ("kind = 'memory'", "wait_secs = 1"),
    ] {
        assert!(with(kind, more).is_ok(), "{kind} {more}");
    }
}

#[test]
fn the_limits_of_events_depend_on_the_kind_of_the_server() {
    const MIB: usize = 1 << 20;
    let http = Flags { upstream: Some("http://localhost/mcp".to_owned()), ..Flags::default() };
    let sse = Flags { upstream_sse: Some("http://localhost/sse".to_owned()), ..Flags::default() };
    let stdio = Flags { command: vec!["server".to_owned()], ..Flags::default() };
    for (set, over_http, on_channel) in [
        (&[][..], Some((16, 32)), (64, 128)),
        (&[("MAX_EVENT_BYTES", 8)], Some((8, 32)), (8, 128)),
        (&[("MAX_EVENT_BYTES", 100)], None, (100, 128)),
        (&[("MAX_BYTES", 48)], Some((16, 48)), (24, 48)),
        (&[("MAX_BYTES", 20)], Some((16, 20)), (16, 20)),
        (&[("MAX_BYTES", 300), ("MAX_BYTES_PER_PRINCIPAL", 300)], Some((16, 300)), (64, 300)),
        (&[("MAX_BYTES_PER_PRINCIPAL", 64)], Some((16, 32)), (32, 64)),
        (&[("MAX_BYTES_PER_PRINCIPAL", 32)], Some((16, 32)), (16, 32)),
    ] {
        let env: Vec<_> =
            set.iter().map(|(key, mib)| (format!("MCP_RESUME_STREAMS__{key}"), (mib * MIB).to_string())).collect();
        let limits = |flags: &Flags| {
            let config = Config::load(None, env.clone(), flags.clone()).ok()?;
            Some((config.streams.max_event_bytes / MIB, config.streams.max_bytes / MIB))
        };
        assert_eq!(limits(&http), over_http, "{set:?}");
        assert_eq!((limits(&sse), limits(&stdio)), (Some(on_channel), Some(on_channel)), "{set:?}");
    }
}

#[test]
fn headers_are_a_table_in_the_file_and_an_object_in_the_environment() {
    for text in [
        "[upstream.headers]\nX-Tenant = 'a'\nX-Key = 'env:KEY'",
        "[upstream]\nheaders = { X-Tenant = 'a', X-Key = 'env:KEY' }",
    ] {
        let headers = from_file(text).unwrap().upstream.headers;
        assert_eq!(headers.names().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-key", "x-tenant"]);
    }
    let object = r#"{"X-Tenant": "a"}"#;
    let headers = from_env(&[("MCP_RESUME_UPSTREAM__HEADERS", object)]).unwrap().upstream.headers;
    assert_eq!(headers.values().count(), 1);
    assert!(from_file("[upstream]\nheaders = {}").unwrap().upstream.headers.is_empty());
    for text in ["headers = 'a'", "headers = ['a']", "headers = { X = 1 }"] {
        let problems = lines(from_file(&format!("[upstream]\n{text}")));
        assert!(problems[0].contains("must be a table of texts"), "{problems:?}");
    }
    let problems = lines(from_env(&[("MCP_RESUME_UPSTREAM__HEADERS", "Authorization=hunter2")]));
    assert!(problems[0].contains("must be a JSON object") && !problems[0].contains("hunter2"), "{problems:?}");
    let problems = lines(from_file("[upstream.headers]\nHost = 'hunter2'\n'a b' = 'hunter2'"));
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with("c.toml:1: upstream.headers: host belongs to the proxy"), "{problem}");
    assert!(!problem.contains("hunter2"), "{problem}");
    let config = from_file("[upstream.headers]\nX-Tenant = 'hunter2'").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn headers_that_exclude_other_settings_are_refused() {
    let stdio = |text: &str| {
        let flags = Flags { command: vec!["a".to_owned()], ..Flags::default() };
        Config::load(Some(("c.toml", text)), [], flags)
    };
    let token = "env_from_headers = { TOKEN = 'X-Token' }";
    let good = stdio(&format!("[upstream]\n{token}")).unwrap().upstream.command.unwrap();
    assert_eq!(good.env_from_headers.len(), 1);
    for (result, word) in [
        (stdio("[upstream.headers]\nX-Key = 'a'"), "a program gets no headers"),
        (from_file(&format!("[upstream]\n{token}")), "headers become variables of a program"),
        (stdio(&format!("[upstream]\n{token}\nenv = ['TOKEN=a']")), "TOKEN has a value already"),
        (stdio(&format!("[upstream]\n{token}\ninherit_env = ['TOKEN']")), "TOKEN has a value already"),
        (stdio("[upstream]\nenv_from_headers = { LD_PRELOAD = 'X-A' }"), "no client may set it"),
        (from_file("[upstream]\nsession_cookies = ['S']\nheaders = { Cookie = 'a' }"), "replaces all cookies"),
    ] {
        let problems = lines(result);
        assert!(matches!(&problems[..], [problem] if problem.contains(word)), "{problems:?}");
    }
    assert!(from_file("[upstream]\nheaders = { Cookie = 'a' }").is_ok());
    assert!(stdio(&format!("[upstream]\n{token}\nenv = ['OTHER=a']")).is_ok());
}

#[test]
fn credentials_are_open_off_loopback_without_a_proxy_that_checks_callers() {
    let open = |text: &str| {
        let file = format!("{text}\n[upstream.headers]\nAuthorization = 'a'\nX-User = 'a'\nX-Tenant = 'a'");
        let names = from_file(&file).unwrap().open_credentials();
        names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
    };
    let (public, trusted) = ("[listen]\naddress = '0.0.0.0:1'", "trusted_proxies = ['10.0.0.1']");
    let named = "[auth]\nprincipal = 'header:X-User'";
    assert_eq!(open(""), [""; 0]);
    assert_eq!(open(public), ["authorization"]);
    assert_eq!(open(&format!("{public}\n{trusted}")), ["authorization"]);
    assert_eq!(open(&format!("{public}\n{named}")), ["authorization", "x-user"]);
    assert_eq!(open(&format!("{public}\n{trusted}\n{named}")), [""; 0]);
    assert!(from_file(&format!("{public}\n[upstream.headers]\nX-Tenant = 'a'")).unwrap().open_credentials().is_empty());
}
