//! The load tool of mcp-resume: a scripted upstream, over HTTP or stdio, and the loads for a proxy
//! in front of it.
//!
//! Each load checks every event it reads: the payloads count 1, 2, 3 … and the response has their
//! number; event ids, if any, count too. A gap, a repeat or any error ends the run with the exit
//! code 1. A load prints one line of JSON. `bench/run` starts the processes, alternates the loads
//! and makes the table.

mod acks;
mod load;
mod payload;
mod reader;
mod script;
mod stdio;
mod upstream;
mod wire;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

/// The reason for the end of a run.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
/// Result of all functions here, which recover from no error.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Measures a proxy in front of an MCP server.
#[derive(Parser)]
#[command(name = "mcp-resume-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the scripted upstream until killed; prints its addresses as JSON
    Upstream,
    /// Be the scripted upstream on stdin and stdout, for bridges from stdio to HTTP
    Stdio(stdio::Args),
    /// Put one load on a URL; prints its figures as JSON
    Load(load::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mcp-resume-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
    let outcome = match command {
        Command::Upstream => runtime.block_on(upstream::run()),
        Command::Stdio(args) => runtime.block_on(stdio::run(args)),
        Command::Load(args) => runtime.block_on(load::run(args)),
    };
    // Tasks of a failed run may still wait for a peer.
    runtime.shutdown_timeout(Duration::from_millis(100));
    outcome
}
