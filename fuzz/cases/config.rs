//! Configuration. Input: the text of a file, up to a line `--- environment`; behind it, lines
//! `NAME=VALUE`.
//!
//! An accepted configuration keeps the limits that the rest of the program relies on. A refusal
//! names its place without secrets. A flag overrides all other sources.

use std::time::Duration;

use mcp_resume::config::{Config, Flags, Origin, Problems};

const SEPARATOR: &str = "--- environment\n";
/// A secret in the seeds, as part of the upstream's URL.
const SECRET: &str = "hunter2";

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    // Up to the first byte that is no UTF-8.
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let (file, environment) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    let environment: Vec<(String, String)> = environment
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let load = |flags| Config::load(Some(("f.toml", file)), environment.iter().cloned(), flags);

    let loaded = load(Flags::default());
    check(&loaded, file);
    keeps_secret(&loaded, text, &environment);

    let upstream = "http://flag:1/x?y";
    let flagged = load(Flags { upstream: Some(upstream.to_owned()), ..Flags::default() });
    check(&flagged, file);
    match (loaded, flagged) {
        (Ok(loaded), Ok(flagged)) => {
            assert_eq!(flagged.upstream.url.to_string(), "http://flag:1/x");
            assert_eq!(Config { upstream: loaded.upstream.clone(), ..flagged }, loaded);
        }
        (Ok(_), Err(problems)) => panic!("a good flag makes it bad: {problems}"),
        // Errors below the flag remain; only a missing value is no longer missing.
        (Err(before), Ok(_)) => assert!(before.iter().all(|problem| *problem.origin() == Origin::Unset)),
        (Err(before), Err(after)) => {
            assert!(before.iter().filter(|problem| *problem.origin() != Origin::Unset).eq(after.iter()));
        }
    }
}

fn check(loaded: &Result<Config, Problems>, file: &str) {
    match loaded {
        Ok(config) => keeps_bounds(config),
        Err(problems) => {
            assert!(problems.iter().next().is_some() && problems.iter().is_sorted());
            let lines = 1 + file.matches('\n').count();
            for problem in problems.iter() {
                assert!(!problem.to_string().is_empty());
                if let Origin::File { name, line } = problem.origin() {
                    assert!(name == "f.toml" && (1..=lines).contains(line), "{problem}");
                }
            }
        }
    }
}

fn keeps_bounds(config: &Config) {
    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let Config { upstream, streams, delivery, limits, .. } = config;
    assert!(upstream.connect_timeout >= MS && upstream.pool_idle <= YEAR);
    assert!(streams.max_bytes > streams.max_event_bytes && streams.max_event_bytes > 0 && streams.max_events > 0);
    assert!(streams.max_bytes <= isize::MAX as usize);
    assert!(delivery.retry >= MS && delivery.poll_retry >= MS && delivery.heartbeat >= S);
    assert!(limits.body_bytes > 0 && limits.header_bytes >= 8192);
    let none = [upstream.header_timeout, streams.max_wait, streams.call_timeout, delivery.commit_after];
    assert!(none.iter().chain([&delivery.max_connection]).flatten().all(|wait| *wait >= MS && *wait <= YEAR));
    let tools = config.tools.keys().map(|name| Some(name.as_str()));
    for tool in tools.chain([None, Some("no such tool")]) {
        let call = config.call(tool);
        assert!(call.retention >= call.max_wait.unwrap_or(S) && call.retention <= YEAR);
    }
}

/// The secret is in the input once: in the URL.
fn keeps_secret(loaded: &Result<Config, Problems>, text: &str, environment: &[(String, String)]) {
    let url = environment.iter().rev().find(|(name, _)| name == "MCP_RESUME_UPSTREAM__URL").map(|(_, url)| url);
    let Some((before, _)) = url.and_then(|url| url.split_once(SECRET)) else {
        return;
    };
    if text.matches(SECRET).count() > 1 {
        return;
    }
    match loaded {
        Ok(config) if before.contains('?') => assert!(!format!("{config:?}").contains(SECRET)),
        Ok(_) => {}
        Err(problems) => assert!(!problems.to_string().contains(SECRET)),
    }
}
