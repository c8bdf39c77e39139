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
        let found = which::which_in(&settings.command[0], path, cwd);
        let path = found.map_err(|_| StartError::NotFound(name(&settings.command[0]).to_owned()))?;
        Ok(Self { path, environment })
    }
}

/// Returns the last part of a path, for the log: an operator may want to hide the folders.
pub(super) fn name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or("?")
}
