//! Statements of the documents about the program, compared with the program.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use mcp_resume::check::{
    Contact, Facts, Form, Guard, Identity, Legacy, Report, ResumeOutcome, Resumption, SessionState, Standalone,
    ToolOutcome, ToolRun, Tools, UnknownSession, Watch,
};
use mcp_resume::config::Config;
use mcp_resume::protocol::error::ErrorCode;
use mcp_resume::sidecar::Metrics;

const ERRORS: &str = include_str!("../docs/errors.md");
const OPERATIONS: &str = include_str!("../docs/operations.md");
const SECURITY: &str = include_str!("../docs/security.md");
const EXAMPLE: &str = include_str!("../config.example.toml");
const README: &str = include_str!("../README.md");
const ARCHITECTURE: &str = include_str!("../ARCHITECTURE.md");

/// The cells of the table under `heading`, row by row, without its head.
fn table(text: &'static str, heading: &str) -> Vec<Vec<&'static str>> {
    let section = text.split(heading).nth(1).expect("the section is there");
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
    rows.skip(2).map(cells).collect()
}

#[test]
fn every_error_has_one_row_that_says_what_the_client_sees() {
    let documented = table(ERRORS, "## Every error the proxy makes");
    let coded = ErrorCode::ALL.map(|code| {
        let label = format!("`{}`", code.label());
        let (status, number) = (code.http_status().to_string(), code.json_rpc().to_string());
        vec![label, status, number, code.side().as_str().to_owned(), code.message().to_owned()]
    });
    let first_five: Vec<Vec<&str>> = documented.iter().map(|row| row.iter().copied().take(5).collect()).collect();
    for row in &coded {
        let rows = first_five.iter().filter(|documented| *documented == row).count();
        assert_eq!(rows, 1, "docs/errors.md has no row, or several, that begin: {}", row.join(" | "));
    }
    assert_eq!(documented.len(), coded.len(), "docs/errors.md has rows for errors that do not exist");
    for row in &documented {
        assert_eq!(row.len(), 6, "{row:?}");
        assert!(!row[5].is_empty(), "{} says nothing to its client", row[0]);
    }
}

#[test]
fn every_bad_request_names_an_answer_that_exists() {
    let labels: BTreeSet<String> = ErrorCode::ALL.iter().map(|code| format!("`{}`", code.label())).collect();
    let rows = table(ERRORS, "## Bad requests, each with its answer");
    assert!(rows.len() > 10, "the table is gone: {rows:?}");
    for row in rows {
        let [request, status, answer] = row[..] else { panic!("{row:?}") };
        if answer.starts_with('`') {
            assert!(labels.contains(answer), "{request}: {answer} is no error of ours");
            let code = ErrorCode::ALL.into_iter().find(|code| format!("`{}`", code.label()) == answer);
            assert_eq!(code.map(|code| code.http_status().to_string()).as_deref(), Some(status), "{request}");
        }
    }
}

#[test]
fn the_report_in_the_readme_is_what_check_says_of_that_server() {
    let (url, revisions) = ("http://127.0.0.1:3000/mcp", ["2025-11-25", "2025-06-18", "2025-03-26"]);
    let facts = Facts {
        contact: Contact::Speaks,
        server: Some(Identity { name: "mcp-servers/everything".to_owned(), version: "2.0.0".to_owned() }),
        legacy: Some(Legacy {
            revisions: revisions.map(str::to_owned).to_vec(),
            session: true,
            answers: Form::EventStream,
            numbered: true,
            primed: true,
            standalone: Standalone::Stream,
            unknown_session: UnknownSession::Recognised { status: 400 },
        }),
        tools: Some(Tools { count: 13, complete: true, names: Vec::new(), with_output_schema: vec!["one".to_owned()] }),
        resumption: Resumption {
            finished: Some(ResumeOutcome::Complete),
            running: Some(ResumeOutcome::Lost { got: 1, of: 5 }),
            later: Some(ResumeOutcome::Complete),
        },
        watch: Some(Watch {
            watched_ms: 18_400,
            stream: true,
            stream_ended: false,
            pings: 0,
            ping_interval_ms: None,
            unanswered_ms: None,
            silent_ms: Some(5_000),
            session: SessionState::Lives,
        }),
        tool: Some(ToolRun {
            name: "trigger-long-running-operation".to_owned(),
            outcome: ToolOutcome::Result,
            answers: Form::EventStream,
            messages: 5,
            numbered: true,
            took_ms: 2040,
        }),
        foreign_host: Guard::Accepted,
        foreign_origin: Guard::Accepted,
        anonymous: Guard::Accepted,
        ..Facts::unknown(url.to_owned())
    };
    let report = Report::new(facts, &Config::for_upstream(url).expect("a configuration")).to_string();
    let (shown, left_out) = report.split_once("\nwhat its clients must know\n").expect("a part that is left out");
    assert!(README.contains(shown), "the README does not have\n{shown}");
    assert!(left_out.contains("\nto watch\n"), "{left_out}");
}

#[test]
fn every_bound_names_keys_metrics_and_errors_that_exist() {
    let labels: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.label()).collect();
    let metrics = Metrics::new().expect("metrics that agree");
    let page = String::from_utf8(metrics.render()).expect("text");
    let rows = table(OPERATIONS, "## Bounds");
    assert!(rows.len() > 10, "the table is gone: {rows:?}");
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    for row in rows {
        let [bound, default, metric, answer] = row[..] else { panic!("{row:?}") };
        assert!(!default.is_empty() && !answer.is_empty(), "{bound}");
        for key in quoted(bound) {
            let key = key.rsplit('.').next().expect("a key");
            let is_key = ["", "# "].iter().any(|sign| EXAMPLE.contains(&format!("\n{sign}{key} = ")));
            assert!(is_key, "{bound}: {key} is no key");
        }
        for metric in quoted(metric) {
            let (name, reason) = metric.split_once('{').unwrap_or((metric, ""));
            assert!(page.contains(&format!("mcp_resume_{name}")), "{bound}: {name} is no metric");
            let reason = reason.split('"').nth(1);
            assert!(reason.is_none_or(|reason| labels.contains(reason)), "{bound}: {reason:?}");
        }
        for code in quoted(answer).filter(|code| !(code.contains("_secs") || code.contains("_ms"))) {
            assert!(labels.contains(code), "{bound}: {code} is no error of ours");
        }
    }
}

/// Returns the text of all source files below `folder` but those of the balancer, whose metrics are
/// on a page of their own.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("balancer") {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("text"));
        }
    }
    text
}

#[test]
fn every_metric_is_explained() {
    // Their names are read where the components register them. All of them are on the page of a
    // process that has just begun, families as well: to Prometheus, a first sample is no increase.
    let page = String::from_utf8(Metrics::new().expect("metrics that agree").render()).expect("text");
    let source = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let registered = source.split("registrar").skip(1).filter_map(|rest| {
        let call = rest.trim_start().strip_prefix('.')?;
        let (kind, arguments) = call.split_once('(')?;
        let is_kind =
            matches!(kind, "counter" | "counters" | "family" | "families" | "gauge" | "tally" | "histogram" | "info");
        is_kind.then(|| arguments.split('"').nth(1)).flatten()
    });
    // One is counted where nothing is registered yet.
    let of_the_log =
        include_str!("../src/log/mod.rs").split("IntCounter::new(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let registered: BTreeSet<&str> = registered.chain(of_the_log).collect();
    assert!(registered.len() > 20, "{registered:?}");
    for name in &registered {
        let sample = |line: &str| line.starts_with(&format!("mcp_resume_{name}"));
        assert!(page.lines().any(sample), "{name} is not on the page before it was counted");
    }
    assert!(page.contains("\nprocess_resident_memory_bytes "), "{page}");
    let rows = table(OPERATIONS, "## Every metric");
    let quoted = rows.iter().flat_map(|row| row[0].split('`').skip(1).step_by(2));
    let explained: BTreeSet<&str> = quoted.map(|name| name.split('{').next().expect("a name")).collect();
    assert_eq!(explained, registered);
}

#[test]
fn paths_that_the_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for text in [README, ARCHITECTURE, ERRORS, OPERATIONS, SECURITY] {
        let quoted = text.split('`').skip(1).step_by(2);
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let ours = |path: &&str| {
            ["src/", "tests/", "docs/", "deploy/", "bench/", ".ci/"].iter().any(|folder| path.starts_with(folder))
        };
        let file = |path: &'static str| path.split('#').next().expect("a path").trim_end_matches('/');
        named.extend(quoted.chain(linked).filter(ours).map(file));
    }
    assert!(named.len() > 10, "{named:?}");
    let missing: Vec<_> = named.into_iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "named in the documents, but not there: {missing:?}");
}

/// Adds the files below `folder` to `found`, as paths from the root.
fn add_files(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            add_files(root, &path, found);
        } else {
            found.insert(path.strip_prefix(root).expect("a path below the root").display().to_string());
        }
    }
}

#[test]
fn the_page_of_files_is_the_documentation_of_the_modules() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/site/files.py");
    let output = Command::new(script).arg("--check").output().expect("Python 3.11 or later");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn source_files_that_the_architecture_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeSet::new();
    add_files(root, &root.join("src"), &mut files);
    add_files(root, &root.join("tests"), &mut files);
    let named = ARCHITECTURE.split('`').skip(1).step_by(2).filter(|quoted| quoted.ends_with(".rs"));
    let is_there = |name: &&str| files.iter().any(|path| path == name || path.ends_with(&format!("/{name}")));
    let missing: Vec<_> = named.filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "named in ARCHITECTURE.md, but not there: {missing:?}");
}

#[test]
fn functions_that_the_architecture_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut checked = 0;
    let mut missing = Vec::new();
    for (before, after) in ARCHITECTURE.match_indices("` in `src/").map(|(at, _)| ARCHITECTURE.split_at(at)) {
        let name = before.rsplit('`').next().expect("a name");
        let file = after.split('`').nth(2).expect("a file");
        if !file.ends_with(".rs") || !name.starts_with(char::is_lowercase) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(file)).expect("a file of src");
        checked += 1;
        if !["(", "<"].iter().any(|sign| text.contains(&format!("fn {name}{sign}"))) {
            missing.push(format!("{name} in {file}"));
        }
    }
    assert!(checked > 30, "{checked}");
    assert!(missing.is_empty(), "named in ARCHITECTURE.md, but not there: {missing:?}");
}

#[test]
fn stores_are_named_on_the_command_line_in_one_way() {
    let documents = [
        README,
        SECURITY,
        OPERATIONS,
        EXAMPLE,
        include_str!("../docs/stores.md"),
        include_str!("../docs/deployment.md"),
        include_str!("../docs/balancer.md"),
        include_str!("../docs/start/laptop.md"),
        include_str!("../docs/how-to/keep-results.md"),
        include_str!("../docs/troubleshooting.md"),
        include_str!("../docs/faq.md"),
        include_str!("../deploy/README.md"),
        include_str!("../CHANGELOG.md"),
    ];
    let given: Vec<&str> = documents
        .iter()
        .flat_map(|text| text.split("--store ").skip(1))
        .filter_map(|rest| rest.split([' ', '`', ',', '\n', '.']).next())
        .collect();
    assert!(given.len() > 5, "{given:?}");
    for store in given {
        let is_one = store == "memory"
            || store.starts_with("disk:")
            || ["redis:URL", "redis:redis:"].iter().any(|form| store.starts_with(form));
        assert!(is_one, "--store {store}: write memory, disk:DIR or redis:URL");
    }
}
