//! Variables of a server's process that come from headers of its client.
//!
//! Such headers are credentials. Owned here: the checks of their values, which are the client's.
//! Absent: the names of variables and headers, which the configuration has checked, and the part of
//! the headers in the caller's principal (`identity/`).

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use crate::config::ClientVariable;

/// Limit of a value, in bytes.
const VALUE_MAX: usize = 8192;
/// Start of a value with the definition of a shell function: a shell in the program would run it.
const SHELL_FUNCTION: &str = "()";

/// Variables with their values. Clones share them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(Option<Arc<[(String, String)]>>);

/// Masked: the values are credentials.
impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|(name, _)| name)).finish()
    }
}

/// A header that cannot become a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableHeader {
    header: HeaderName,
    reason: &'static str,
}

/// The header and the reason, without the value.
impl fmt::Display for UnusableHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.header, self.reason)
    }
}

impl Variables {
    /// Returns the variables of a request with these headers. An absent or empty header makes none.
    ///
    /// # Errors
    /// The first header whose value cannot be used.
    pub fn of(wanted: &[ClientVariable], headers: &HeaderMap) -> Result<Self, UnusableHeader> {
        let mut variables = Vec::new();
        for ClientVariable { variable, header } in wanted {
            let unusable = |reason| UnusableHeader { header: header.clone(), reason };
            let mut values = headers.get_all(header).iter();
            let (Some(value), second) = (values.next(), values.next()) else { continue };
            if second.is_some() {
                return Err(unusable("is there twice"));
            }
            let value = value.as_bytes().trim_ascii();
            if value.len() > VALUE_MAX {
                return Err(unusable("is longer than 8 KiB"));
            }
            let text = std::str::from_utf8(value).ok().filter(|text| !text.contains('\0'));
            let text = text.ok_or_else(|| unusable("is no text"))?;
            if text.starts_with(SHELL_FUNCTION) {
                return Err(unusable("is a function of a shell"));
            }
            if !text.is_empty() {
                variables.push((variable.clone(), text.to_owned()));
            }
        }
        Ok(Self(if variables.is_empty() { None } else { Some(variables.into()) }))
    }

    /// Returns names and values.
    pub fn as_slice(&self) -> &[(String, String)] {
        self.0.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TOKEN: HeaderName = HeaderName::from_static("x-token");

    fn of(values: &[&[u8]]) -> Result<Vec<(String, String)>, String> {
        let wanted = [
            ClientVariable { variable: "TOKEN".to_owned(), header: TOKEN },
            ClientVariable { variable: "OTHER".to_owned(), header: HeaderName::from_static("x-other") },
        ];
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TOKEN, HeaderValue::from_bytes(value).unwrap());
        }
        let variables = Variables::of(&wanted, &headers).map_err(|unusable| unusable.to_string())?;
        assert!(!format!("{variables:?}").contains("hunter2"));
        Ok(variables.as_slice().to_vec())
    }

    #[test]
    fn a_header_becomes_a_variable_and_an_absent_one_becomes_none() {
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&[b"  "]), Ok(vec![]));
        let set = |value: &str| Ok(vec![("TOKEN".to_owned(), value.to_owned())]);
        assert_eq!(of(&[b" hunter2 "]), set("hunter2"));
        assert_eq!(of(&["é".as_bytes()]), set("é"));
        let longest = "x".repeat(VALUE_MAX);
        assert_eq!(of(&[longest.as_bytes()]), set(&longest));
    }

    #[test]
    fn an_unusable_value_is_named_by_its_header_alone() {
        let long = "x".repeat(VALUE_MAX + 1);
        for (values, reason) in [
            (&[b"hunter2".as_slice(), b"hunter2".as_slice()][..], "x-token is there twice"),
            (&[long.as_bytes()], "x-token is longer than 8 KiB"),
            (&[b"hunter2\xff"], "x-token is no text"),
            (&[b"() { hunter2; }"], "x-token is a function of a shell"),
        ] {
            assert_eq!(of(values), Err(reason.to_owned()));
        }
        assert!(HeaderValue::from_bytes(b"a\0").is_err(), "no header has a zero byte");
    }
}
