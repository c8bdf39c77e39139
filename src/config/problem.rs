//! What is wrong with a configuration, and where it was said.

use std::fmt;

/// Where a value was said. Ordered as a reader works through them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A line of the configuration file, counted from 1.
    File {
        /// The name the file was given by.
        name: String,
        /// The line.
        line: usize,
    },
    /// The environment variable of this name.
    Environment(String),
    /// The command line's flag of this name, dashes included.
    Flag(&'static str),
    /// Nowhere: it is missing.
    Unset,
}

/// One thing that is wrong. Displays as one line and quotes no value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub(super) origin: Origin,
    /// `section.key`, a section, or empty where the text says it all.
    pub(super) key: String,
    pub(super) text: String,
}

/// Everything that is wrong with a configuration: never empty, in [`Origin`]'s order. Displays
/// as a heading and a line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problem {
    /// Where the value stands that has to change.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl Problems {
    /// `None` if nothing is wrong.
    pub(super) fn new(mut problems: Vec<Problem>) -> Option<Self> {
        problems.sort();
        (!problems.is_empty()).then_some(Self(problems))
    }

    /// Each problem, in order.
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
            // These names say the key already.
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
        self.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
