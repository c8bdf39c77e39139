//! Lists of clients by the name that they give in `clientInfo`.
//!
//! An entry is a whole name, or the beginning of one with a `*` behind it. A name never gives a
//! permission: any client can give any. It chooses how a client gets what is its own.

use std::str::FromStr;
use std::sync::Arc;

/// A list of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNames(Arc<[ClientName]>);

/// An entry of a list: one client, or all clients whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// The client with this whole name.
    Whole(String),
    /// Clients whose names begin with this text.
    Beginning(String),
}

/// Text that is no entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty, or of spaces alone.
    #[error("names no client")]
    Empty,
    /// A `*` is not the last character.
    #[error("has a * before its end")]
    Wildcard,
}

impl FromStr for ClientName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (name, is_beginning) = text.strip_suffix('*').map_or((text, false), |name| (name, true));
        if name.contains('*') {
            Err(InvalidName::Wildcard)
        } else if is_beginning {
            Ok(Self::Beginning(name.to_owned()))
        } else if name.trim().is_empty() {
            Err(InvalidName::Empty)
        } else {
            Ok(Self::Whole(name.to_owned()))
        }
    }
}

impl ClientName {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Whole(whole) => whole == name,
            Self::Beginning(beginning) => name.starts_with(beginning.as_str()),
        }
    }
}

impl FromIterator<ClientName> for ClientNames {
    fn from_iter<T: IntoIterator<Item = ClientName>>(names: T) -> Self {
        Self(names.into_iter().collect())
    }
}

impl ClientNames {
    /// Returns the list of these entries.
    ///
    /// # Panics
    /// If a text is no entry. For entries of the program itself.
    pub fn of(entries: &[&str]) -> Self {
        entries.iter().map(|entry| entry.parse::<ClientName>().expect("an entry of a list")).collect()
    }

    /// Returns true if the list has a client with this name. Case matters.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|entry| entry.matches(name))
    }

    /// Returns true if the list has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_whole_name_or_a_beginning() {
        let names = ClientNames::of(&["ai-sdk-mcp-client", "Visual Studio Code*"]);
        for name in ["ai-sdk-mcp-client", "Visual Studio Code", "Visual Studio Code - Insiders"] {
            assert!(names.has(name), "{name}");
        }
        for name in ["ai-sdk-mcp-client 2", "AI-SDK-mcp-client", "Visual Studio", "", "x Visual Studio Code"] {
            assert!(!names.has(name), "{name}");
        }
        assert!(ClientNames::of(&["*"]).has("") && !ClientNames::of(&[]).has(""));
    }

    #[test]
    fn a_star_is_the_last_character() {
        for text in ["*a", "a*b", "a**", "**"] {
            assert_eq!(text.parse::<ClientName>(), Err(InvalidName::Wildcard), "{text}");
        }
        for text in ["", "  "] {
            assert_eq!(text.parse::<ClientName>(), Err(InvalidName::Empty), "{text:?}");
        }
        for text in ["a", "a *", "*"] {
            assert!(text.parse::<ClientName>().is_ok(), "{text}");
        }
    }
}
