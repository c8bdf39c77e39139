//! Launcher: the first process of a child, before it becomes the program.
//!
//! A program that ran before the guard knows its group could be left behind by a proxy that is
//! killed in between. So the launcher waits for [`GO`] on stdin. Without it, at the end of stdin,
//! it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::descriptors;

/// Hidden subcommand that runs the launcher.
pub(super) const SUBCOMMAND: &str = "__launch";
/// Byte that lets the launcher become the program. All later bytes are the program's.
pub(super) const GO: &[u8] = b"\n";

/// In place of a limit of open files that was not raised.
pub(super) const UNLIMITED: &str = "-";

/// Exit codes of a shell: the program cannot be executed, or is not there.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Waits for [`GO`] and becomes the program. `words` are the soft limit of open files, or
/// [`UNLIMITED`], then the program and its arguments. Returns only if it cannot.
pub(super) fn run(words: &[OsString]) -> ExitCode {
    let [limit, program, arguments @ ..] = words else { return ExitCode::FAILURE };
    if wait_for_go().is_err() {
        return ExitCode::FAILURE;
    }
    if let Some(limit) = limit.to_str().and_then(|limit| limit.parse().ok())
        && let Err(error) = descriptors::set_soft(limit)
    {
        eprintln!("mcp-resume: the limit of open files cannot be set to {limit}: {error}");
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("mcp-resume: the program cannot be executed: {error}");
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Reads one byte of stdin, and no more: standard input of the library would read ahead.
fn wait_for_go() -> io::Result<()> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    stdin.read_exact(&mut [0; GO.len()])
}
