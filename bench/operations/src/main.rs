//! The proxy's operations on one event or request, each done as often as is asked: `bench/instructions` counts what they cost.
//!
//! A run prepares the same whatever the number, and ends without taking anything down, so that two runs differ by the
//! operations alone. One that does not do what it should ends the run. Deliberately absent: sockets, tasks and the clock's
//! passing, which make no two runs alike; what they cost is measured by `bench/run`.

mod codec;
mod log;

use clap::{Parser, ValueEnum};
use std::process::ExitCode;

/// Whatever ended a run.
type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of anything here.
type Result<T> = std::result::Result<T, Error>;

/// How often an operation may be done; what some need one of for each is made for so many.
const MOST: usize = 4000;

/// Does one operation many times.
#[derive(Parser)]
#[command(name = "mcp-resume-operations")]
struct Cli {
    /// Which
    operation: Operation,
    /// How often, up to 4,000
    times: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Operation {
    /// Take the framing of its chunk off an event
    Dechunk,
    /// Decode an event that came alone
    DecodeLone,
    /// Decode an event that came with others, in pieces of 16 KiB
    DecodeGathered,
    /// Write an event ID
    WriteId,
    /// Read and verify an event ID
    VerifyId,
    /// Make the handle of a new stream
    MintHandle,
    /// Peek at a progress notification
    Peek,
    /// Route a POST of a tool call by its head and JSON
    ClassifyPost,
    /// Route a GET with an event ID
    ClassifyResume,
    /// Append a progress notification to a stream, with a look for its id
    Append,
    /// Deliver one event that is ready to a connection that waits
    Follow,
    /// Find a stream by an event ID and deliver the 100 events after it
    Resume,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mcp-resume-operations: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if cli.times > MOST {
        return Err(format!("no more than {MOST} times").into());
    }
    match cli.operation {
        Operation::Dechunk => codec::dechunk(cli.times),
        Operation::DecodeLone => codec::decode_lone(cli.times),
        Operation::DecodeGathered => codec::decode_gathered(cli.times),
        Operation::WriteId => codec::write_id(cli.times),
        Operation::VerifyId => codec::verify_id(cli.times),
        Operation::MintHandle => codec::mint_handle(cli.times),
        Operation::Peek => codec::peek(cli.times),
        Operation::ClassifyPost => codec::classify_post(cli.times),
        Operation::ClassifyResume => codec::classify_resume(cli.times),
        Operation::Append => log::append(cli.times),
        Operation::Follow => log::follow(cli.times),
        Operation::Resume => log::resume(cli.times),
    }
}

/// A progress notification of 200 bytes.
fn progress(n: usize) -> String {
    let start = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"b","progress":{n},"message":""#
    );
    format!("{start:x<197}\"}}}}")
}

/// `Err` unless `done` of the `due` operations were done.
fn expect(done: usize, due: usize) -> Result<()> {
    if done == due { Ok(()) } else { Err(format!("{done} where {due} were due").into()) }
}
