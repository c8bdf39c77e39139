//! The proxy's operations on one event or request, each repeated the given number of times:
//! `bench/instructions` counts their cost.
//!
//! The preparation of a run is the same for any number, and nothing is taken down at its end, so
//! that two runs differ by the operations alone. A failed operation ends the run. Sockets and tasks
//! are part of the whole calls alone, which take one step after another. Deliberately absent:
//! concurrency and the kernel, whose cost `bench/run` measures.

mod call;
mod codec;
mod log;

use clap::{Parser, ValueEnum};
use std::process::ExitCode;

/// The reason for the end of a run.
type Error = Box<dyn std::error::Error + Send + Sync>;
/// Result of all functions here.
type Result<T> = std::result::Result<T, Error>;

/// Largest number of repetitions; operations that consume prepared objects have this many.
const MOST: usize = 4000;

/// Repeats one operation.
#[derive(Parser)]
#[command(name = "mcp-resume-operations")]
struct Cli {
    /// The operation
    operation: Operation,
    /// Number of repetitions, up to 4,000
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
    /// A whole call through the sidecar, with a response in JSON
    CallJson,
    /// A whole call with an event stream of its response alone
    CallEvent,
    /// A whole call with three progress notifications, each read before the next is sent
    CallEvents,
    /// A whole call in a session with an event stream of its response alone
    CallSession,
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
        Operation::CallJson => call::call(cli.times, call::JSON),
        Operation::CallEvent => call::call(cli.times, call::EVENT),
        Operation::CallEvents => call::call(cli.times, call::EVENTS),
        Operation::CallSession => call::call(cli.times, call::SESSION_EVENT),
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
