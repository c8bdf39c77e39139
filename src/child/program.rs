//! Search for the file of a child's program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::environment;
use super::settings::{Settings, StartError};

/// A program that was found, with its environment.
pub(super) struct Program {
    /// Absolute path of the file.
    pub(super) path: PathBuf,
    pub(super) environment: Vec<(OsString, OsString)>,
}

impl Program {
    /// Finds the program in the `PATH` of the child. A name with a slash is relative to the child's
    /// working directory.
    pub(super) fn find(settings: &Settings) -> Result<Self, StartError> {
        let environment = environment::variables(settings);
        // The last value counts, as for the process.
        let path = environment.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let cwd = match &settings.cwd {
            Some(cwd) => std::path::absolute(cwd),
            None => std::env::current_dir(),
        };
        let cwd = cwd.and_then(|cwd| std::fs::metadata(&cwd).map(|_| cwd)).map_err(StartError::Directory)?;
        let command = &settings.command[0];
        let path = which::which_in(command, path, &cwd).map_err(|_| not_found(command, &cwd))?;
        Ok(Self { path, environment })
    }
}

/// Returns the reason for a program that was not found.
fn not_found(command: &str, cwd: &Path) -> StartError {
    let name = name(command).to_owned();
    // A name without a slash is searched for in the folders of `PATH` alone.
    if command.contains('/') && cwd.join(command).exists() {
        StartError::NotExecutable(name)
    } else {
        StartError::NotFound(name)
    }
}

/// Returns the last part of a path, for the log: an operator may want to hide the folders.
pub(super) fn name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::super::settings::EndTimes;
    use super::*;

    fn reason(command: &str) -> String {
        let settings = Settings {
            command: vec![command.to_owned()],
            env: vec![],
            inherit_env: vec![],
            cwd: Some(env!("CARGO_MANIFEST_DIR").into()),
            end: EndTimes::default(),
        };
        Program::find(&settings).map(|it| it.path).expect_err("no program").to_string()
    }

    #[test]
    fn a_file_that_is_no_program_is_named_as_such() {
        for (command, kind) in [
            ("./Cargo.toml", "is not an executable"),
            (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "is not an executable"),
            ("../child", "is not an executable"),
            ("Cargo.toml", "was not found"),
            ("./absent", "was not found"),
            ("/absent/program", "was not found"),
        ] {
            let text = reason(command);
            assert!(text.contains(kind) && !text.contains(env!("CARGO_MANIFEST_DIR")), "{command}: {text}");
        }
    }
}
