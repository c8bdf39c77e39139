//! Headers that the user gives for every request.
//!
//! Owned here: the forms of `--header`, `--header-file` and `--bearer`, and the sources of their
//! values. Invariant: no problem and no warning quotes a value. Hosts split arguments at blanks, so
//! that a part of a value can stand in any place.

use std::env;
use std::fs;
use std::path::Path;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

use super::options::{Options, Problem};
use crate::protocol::headers::names::X_API_KEY;

/// Option of a header.
const HEADER: &str = "--header";
/// Option of a file of headers.
const HEADER_FILE: &str = "--header-file";

/// Returns the headers of the options, by their names. A later header replaces an earlier one
/// of its name: files are first, then single headers, then the bearer token.
///
/// # Errors
/// The first problem.
pub(super) fn headers(options: &Options) -> Result<Vec<(String, String)>, Problem> {
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut insert = |(name, value): (String, String)| {
        headers.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        headers.push((name, value));
    };
    for path in &options.header_files {
        for header in headers_in(path)? {
            insert(header);
        }
    }
    for text in &options.headers {
        insert(header(HEADER, text)?);
    }
    if let Some(source) = &options.bearer {
        insert(("Authorization".to_owned(), format!("Bearer {}", token(source)?.trim())));
    }
    Ok(headers)
}

/// Returns true if a header of the command line holds a credential as it stands.
pub(super) fn has_visible_credential(options: &Options) -> bool {
    let is_visible = |text: &String| {
        let Some((name, value)) = text.split_once(':') else { return false };
        let value = value.trim();
        let is_elsewhere = value.contains("${") || value.starts_with("env:") || value.starts_with("file:");
        is_credential(name.trim()) && !is_elsewhere
    };
    options.headers.iter().any(is_visible)
}

/// Returns true for the name of a header that holds a credential.
pub(super) fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [AUTHORIZATION, COOKIE, X_API_KEY].iter().any(|known| known.as_str() == name)
        || ["token", "key", "secret"].iter().any(|word| name.contains(word))
}

/// Returns the headers of a file: one a line, with comments behind `#` at the start of a line.
fn headers_in(path: &Path) -> Result<Vec<(String, String)>, Problem> {
    let text = fs::read_to_string(path).map_err(|error| format!("{HEADER_FILE}: the file cannot be read: {error}"))?;
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(index, line)| header(&format!("{HEADER_FILE}, line {}:", index + 1), line)).collect()
}

/// Returns the token of `--bearer`.
fn token(source: &str) -> Result<String, Problem> {
    match source.split_once(':') {
        Some(("env", name)) => {
            env::var(name).map_err(|_| format!("--bearer: the variable {} is not set", printable(name)))
        }
        Some(("file", path)) => {
            fs::read_to_string(path).map_err(|error| format!("--bearer: the file cannot be read: {error}"))
        }
        Some(_) | None => Err("--bearer takes env:NAME or file:PATH, not the token itself".to_owned()),
    }
}

/// Reads a header of this place.
fn header(place: &str, text: &str) -> Result<(String, String), Problem> {
    let malformed = || format!("{place} takes 'Name: value' as one argument");
    let (name, value) = text.split_once(':').ok_or_else(malformed)?;
    let (name, value) = (name.trim(), value.trim());
    if HeaderName::try_from(name).is_err() {
        return Err(malformed());
    }
    if value.is_empty() {
        let text = "ends at its colon: give name and value as one argument, without the blank between them";
        return Err(format!("{place} {name} {text}"));
    }
    let value = match value.split_once(':') {
        Some(("env", variable)) => variable_of(place, name, variable)?,
        Some(("file", path)) => {
            let read = fs::read_to_string(path).map(|text| text.trim().to_owned());
            read.map_err(|error| format!("{place} {name}: its file cannot be read: {error}"))?
        }
        Some(_) | None => expanded(place, name, value)?,
    };
    Ok((name.to_owned(), value))
}

/// Returns a value with `${NAME}` replaced by the variables.
fn expanded(place: &str, header: &str, value: &str) -> Result<String, Problem> {
    if value.contains("${env:") || value.contains("{env:") {
        return Err(format!("{place} {header}: write ${{NAME}}, or env:NAME as the whole value"));
    }
    let mut text = String::new();
    let mut rest = value;
    while let Some(begin) = rest.find("${") {
        let Some(length) = rest[begin..].find('}') else { break };
        text.push_str(&rest[..begin]);
        text.push_str(&variable_of(place, header, &rest[begin + 2..begin + length])?);
        rest = &rest[begin + length + 1..];
    }
    text.push_str(rest);
    Ok(text)
}

fn variable_of(place: &str, header: &str, name: &str) -> Result<String, Problem> {
    env::var(name)
        .map(|value| value.trim().to_owned())
        .map_err(|_| format!("{place} {header}: the variable {} is not set", printable(name)))
}

/// Returns the name of a variable for a message, or a word in its place if it cannot be a name.
fn printable(name: &str) -> &str {
    let is_name = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name { name } else { "that is named" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(header: &str) -> Options {
        Options { headers: vec![header.to_owned()], ..Options::default() }
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn headers_have_values_of_variables() {
        for header in ["X-Key: ${MCP_RESUME_TEST_NOPE}", "X-Key:env:MCP_RESUME_TEST_NOPE"] {
            let problem = headers(&with(header)).expect_err("an unset variable");
            assert!(problem.contains("MCP_RESUME_TEST_NOPE"), "{problem}");
        }
        for header in ["X-Key:", "X-Key: ${env:A}", "X-Key: {env:A}", "secret", "a secret: b"] {
            let problem = headers(&with(header)).expect_err("a wrong header");
            assert!(problem.contains(HEADER) && !problem.contains("secret"), "{problem}");
        }
        assert_eq!(headers(&with("X-Key:a b ")), Ok(vec![pair("X-Key", "a b")]));
        let path = env::var("PATH").expect("a path");
        assert_eq!(headers(&with("X-Key: a${PATH}b")), Ok(vec![pair("X-Key", &format!("a{}b", path.trim()))]));
    }

    #[test]
    fn a_file_has_a_header_in_each_line() {
        let path = env::temp_dir().join(format!("mcp-resume-headers-{}", std::process::id()));
        let of_file = |text: &str, header: &str| {
            fs::write(&path, text).expect("a file");
            headers(&Options { header_files: vec![path.clone()], ..with(header) })
        };
        let read = of_file("# of the team\r\nX-Team: blue\r\n\r\nX-Key: a:b\r\n", "x-team: red");
        assert_eq!(read, Ok(vec![pair("X-Key", "a:b"), pair("x-team", "red")]), "the command line counts");
        let problem = of_file("X-Team: blue\nsecret\n", "x-team: red").expect_err("a wrong line");
        assert!(problem.contains("line 2") && !problem.contains("secret"), "{problem}");
        fs::remove_file(&path).expect("the file");
        let gone = headers(&Options { header_files: vec![path], ..Options::default() });
        assert!(gone.expect_err("no file").starts_with(HEADER_FILE));
    }

    #[test]
    fn a_credential_of_the_command_line_is_visible_unless_its_value_is_elsewhere() {
        for (header, is_visible) in [
            ("Authorization: Bearer x", true),
            ("X-Api-Key:x", true),
            ("Authorization: Bearer ${TOKEN}", false),
            ("Authorization: env:TOKEN", false),
            ("X-Key: file:/run/key", false),
            ("X-Team: blue", false),
        ] {
            assert_eq!(has_visible_credential(&with(header)), is_visible, "{header}");
        }
    }
}
