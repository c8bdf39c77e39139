//! Problems of a configuration, and their origins.

use std::fmt;

/// Origin of a value, in the order of the list of problems.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A line of the configuration file, counted from 1.
    File {
        /// Name of the file.
        name: String,
        /// Number of the line.
        line: usize,
    },
    /// The environment variable of this name.
    Environment(String),
    /// The flag of this name, dashes included.
    Flag(&'static str),
    /// None: the value is missing.
    Unset,
}

/// A problem. Displays as one line and quotes no value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub(super) origin: Origin,
    /// `section.key`, a section, or empty if the text stands alone.
    pub(super) key: String,
    pub(super) text: String,
}

/// All problems of a configuration: never empty, in the order of [`Origin`]. Displays as a heading
/// and a line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problem {
    /// Returns the origin of the value that must change.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl Problems {
    /// Returns the problems as an error, if there are any.
    pub(super) fn check(mut problems: Vec<Problem>) -> Result<(), Self> {
        problems.sort();
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// Returns the problems in order.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { name, line } => {
                write!(f, "{name}:{line}: ")?;
                if !self.key.is_empty() {
                    write!(f, "{}: ", self.key)?;
                }
            }
            // These names contain the key already.
            Origin::Environment(name) => write!(f, "{name} in the environment: ")?,
            Origin::Flag(name) => write!(f, "{name}: ")?,
            Origin::Unset => write!(f, "{}: ", self.key)?,
        }
        f.write_str(&self.text)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a problem:")?,
            count => write!(f, "the configuration has {count} problems:")?,
        }
        for problem in self.iter() {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
