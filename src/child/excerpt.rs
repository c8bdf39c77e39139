//! Lines of a program's stderr that explain a failed start, without the values of its variables.
//!
//! The reason is often in the first lines, before a text of usage, or in the last ones. Invariant:
//! no configured value of a variable, and no inherited one that was configured by its name, is in
//! the lines, as it is or as a part of a URL. Absent: secrets that the program has from other
//! sources.

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::environment;
use super::settings::Settings;
use super::stderr::Stderr;

/// Lines from the end.
const LAST: usize = 3;
/// Length of a line, in characters.
const LENGTH: usize = 200;
/// Length of a value that is masked, in bytes. Shorter values are words or numbers.
const SECRET_MIN: usize = 4;
const MASK: &str = "***";
/// Characters that a part of a URL has escaped (RFC 3986, section 2.3). Python leaves the slash.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const ESCAPED_BY_PYTHON: &AsciiSet = &ESCAPED.remove(b'/');

/// The stderr of one child. Clones share it.
#[derive(Clone)]
pub struct Excerpt {
    stderr: Stderr,
    /// Values of variables, the longest first.
    values: Arc<[String]>,
}

impl Excerpt {
    pub(super) fn new(stderr: Stderr, settings: &Settings) -> Self {
        let mut values: Vec<String> = environment::named_values(settings)
            .iter()
            // A line has a part of a value of several lines.
            .flat_map(|value| value.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>())
            .filter(|value| value.len() >= SECRET_MIN)
            .flat_map(spellings)
            .collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { stderr, values: values.into() }
    }

    /// Returns the first three and the last three lines so far, lines with "error" first.
    pub fn lines(&self) -> Vec<String> {
        let (first, last) = self.stderr.ends(LAST);
        let mut lines: Vec<String> = first.iter().chain(&last).map(|line| self.shown(line)).collect();
        lines.retain(|line| !line.is_empty());
        lines.sort_by_key(|line| !line.to_lowercase().contains("error"));
        lines
    }

    /// Returns the last three lines so far, in their order.
    pub fn last_lines(&self) -> Vec<String> {
        let (first, last) = self.stderr.ends(LAST);
        let mut lines: Vec<String> = first.iter().chain(&last).map(|line| self.shown(line)).collect();
        lines.retain(|line| !line.is_empty());
        lines.split_off(lines.len().saturating_sub(LAST))
    }

    /// Returns a line without values of variables, cut to its length.
    fn shown(&self, line: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(line).trim().to_owned();
        for value in &*self.values {
            text = text.replace(value.as_str(), MASK);
        }
        match text.char_indices().nth(LENGTH) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// Returns a value as it is, and as parts of a URL have it.
fn spellings(value: String) -> [String; 3] {
    let escaped = |set| utf8_percent_encode(&value, set).to_string();
    [escaped(ESCAPED), escaped(ESCAPED_BY_PYTHON), value]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(env: &[(&str, &str)], lines: &[&str]) -> Vec<String> {
        let settings = Settings {
            command: vec!["a".to_owned()],
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            inherit_env: vec![],
            cwd: None,
            end: super::super::settings::EndTimes::default(),
        };
        Excerpt::new(Stderr::of_lines(lines), &settings).lines()
    }

    #[test]
    fn the_first_and_the_last_lines_are_shown_and_errors_first() {
        let many: Vec<String> = (0..20).map(|n| format!("line {n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(excerpt(&[], &many), ["line 0", "line 1", "line 2", "line 17", "line 18", "line 19"]);
        assert_eq!(excerpt(&[], &many[..5]), ["line 0", "line 1", "line 2", "line 3", "line 4"]);
        assert_eq!(excerpt(&[], &["one"]), ["one"]);
        assert_eq!(excerpt(&[], &[]), [""; 0]);
        assert_eq!(
            excerpt(&[], &["Usage:", "  -x", "TypeError: no key", "bye"]),
            ["TypeError: no key", "Usage:", "-x", "bye"]
        );
        let long = "é".repeat(300);
        assert_eq!(excerpt(&[], &[&long]), [format!("{}…", "é".repeat(200))]);
    }

    #[test]
    fn the_last_lines_are_in_their_order() {
        let last = |lines: &[&str]| {
            let settings = Settings {
                command: vec!["a".to_owned()],
                env: vec![],
                inherit_env: vec![],
                cwd: None,
                end: super::super::settings::EndTimes::default(),
            };
            Excerpt::new(Stderr::of_lines(lines), &settings).last_lines()
        };
        assert_eq!(last(&["an error", "b"]), ["an error", "b"]);
        assert_eq!(last(&["a", "b", "c", "an error", "e", "f"]), ["an error", "e", "f"]);
        assert_eq!(last(&[]), [""; 0]);
    }

    #[test]
    fn values_of_variables_are_masked() {
        let env =
            [("TOKEN", "hunter22"), ("LONG", "hunter22-and-more"), ("N", "1"), ("KEY", "first part\nsecond part")];
        assert_eq!(
            excerpt(&env, &["token=hunter22-and-more hunter22", "in line 1", "  second part", "FIRST PART"]),
            ["token=*** ***", "in line 1", "***", "FIRST PART"]
        );
        let url = [("DATABASE", "pass/word+é=")];
        assert_eq!(
            excerpt(&url, &["?p=pass%2Fword%2B%C3%A9%3D", "/pass/word%2B%C3%A9%3D/", "pass/word+é="]),
            ["?p=***", "/***/", "***"]
        );
    }
}
