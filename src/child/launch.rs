//! Launcher: the first process of a child, before it becomes the program.
//!
//! The guard must know the group of a program before the program runs. Otherwise a proxy killed in
//! between would leave the program behind. So the launcher waits for [`GO`] on stdin. It ends if
//! stdin ends first.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use mcp_resume_base::descriptors;

/// Hidden subcommand that runs the launcher.
pub(super) const SUBCOMMAND: &str = "__launch";
/// Byte that lets the launcher become the program. All later bytes are the program's.
pub(super) const GO: &[u8] = b"\n";

/// Replaces the limit of open files if that was not raised.
pub(super) const UNLIMITED: &str = "-";

/// Exit codes of a shell: the program cannot be executed; the program does not exist.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Waits for [`GO`] and becomes the program. `words` are the soft limit of open files or
/// [`UNLIMITED`], the program, and its arguments. Returns only on failure.
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

/// Reads one byte of stdin. The standard library's stdin would read ahead.
fn wait_for_go() -> io::Result<()> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    stdin.read_exact(&mut [0; GO.len()])
}
