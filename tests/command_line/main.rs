//! The binary from outside: its answers to a wrong or idle command line, its exit codes, its check,
//! its demo.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

mod check;
mod health;
mod serve;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(arguments)
        .env("MCP_RESUME_DELIVERY__RETRY_MS", "soon")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it speaks UTF-8")
}

/// Returns the command `serve`, in front of a server that does not exist.
fn serve(listen: &str, admin: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.args(["serve", "--upstream", "http://127.0.0.1:9/deep/mcp", "--listen", listen, "--admin", admin]);
    command
}

const FREE: &str = "127.0.0.1:0";

fn health(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_mcp-resume");
    Command::new(binary).arg("health").args(arguments).env_clear().output().expect("the binary runs")
}

#[test]
fn a_wrong_configuration_lists_all_its_problems_and_exits_2() {
    let output = run(&["serve", "--listen", "here", "--store", "tape"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let report = text(&output.stderr);
    let problems = ["4 problems", "RETRY_MS in the", "--listen: ", "--store: ", "upstream.url: "];
    for problem in problems {
        assert!(report.contains(problem), "{problem} is not in\n{report}");
    }
}

#[test]
fn a_file_that_cannot_be_read_exits_2() {
    let output = run(&["serve", "--config", "no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read the configuration no/such/file.toml"));
}

#[test]
fn a_certificate_that_cannot_be_read_exits_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_mcp-resume"))
        .args(["serve", "--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0", "--admin", ""])
        .env("MCP_RESUME_LISTEN__TLS__CERT", "no/such/cert.pem")
        .env("MCP_RESUME_LISTEN__TLS__KEY", "no/such/key.pem")
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read no/such/cert.pem: "), "{}", text(&output.stderr));
}

#[test]
fn a_wrong_command_line_exits_2() {
    for arguments in [&[][..], &["serve", "--upsteam", "x"], &["demo", "--listen", "here"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_says_how_values_are_found_and_exits_0() {
    let output = run(&["serve", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["--upstream <URL>", "MCP_RESUME_DELIVERY__RETRY_MS", "config.example.toml"] {
        assert!(text(&output.stdout).contains(word), "{word}");
    }
}

#[test]
fn the_demo_loses_a_call_without_the_proxy_keeps_it_with_it_and_exits_0() {
    let output = run(&["demo", "--once"]);
    let show = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{show}\n{}", text(&output.stderr));
    assert!(show.contains("✗ 3 of 10 numbers arrived, and no result"), "{show}");
    assert!(show.contains("✓ every event arrived exactly once and in order"), "{show}");
    assert_eq!(show.matches("connection reset").count(), 4, "three cuts, and the summary that names them:\n{show}");
}

/// Returns the names of the subcommands in the help.
fn subcommands() -> Vec<String> {
    let help = run(&["--help"]);
    let help = text(&help.stdout).to_owned();
    let listed = help.split_once("Commands:").expect("commands").1.split_once("\n\n").expect("options").0.to_owned();
    listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn completions_know_every_subcommand() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        for name in subcommands() {
            assert!(text(&output.stdout).contains(&name), "{name} is not in the completions for {shell}");
        }
    }
    assert_eq!(run(&["completions", "tape"]).status.code(), Some(2));
}

#[test]
fn bash_reads_its_completions() {
    let script = format!(
        "source <({} completions bash); line=$(complete -p mcp-resume); complete=${{line#*-F }}; complete=${{complete%% *}}
        COMP_WORDS=(mcp-resume serve --up); COMP_CWORD=2; $complete mcp-resume --up serve; echo \"${{COMPREPLY[@]}}\"",
        env!("CARGO_BIN_EXE_mcp-resume")
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    assert_eq!(text(&output.stdout).trim(), "--upstream --upstream-sse", "{}", text(&output.stderr));
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    let _ = std::fs::remove_dir_all(&directory);
    assert!(run(&["man", "--output", directory.to_str().expect("a path")]).status.success());
    for name in subcommands().iter().filter(|name| *name != "help") {
        let page = std::fs::read_to_string(directory.join(format!("mcp-resume-{name}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    let page = std::fs::read(directory.join("mcp-resume.1")).expect("a page");
    let printed = run(&["man"]).stdout;
    assert!(text(&printed).contains(".SH NAME") && !page.is_empty());
}
