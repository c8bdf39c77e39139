//! Findings of the report as data: a code, and the values of its sentence.
//!
//! The table `findings.txt` has the sentences in the order of the report, below the headings of
//! its lists. A sentence is true of this version of the proxy, or was measured with the clients
//! that it names. Absent: the conditions ([`super::advice`]).

use std::fmt::Display;

/// Headings, each after a `#`, and below them the codes with their sentences.
const TABLE: &str = include_str!("findings.txt");

/// Findings of one report, in any order.
#[derive(Default)]
pub(super) struct Findings(Vec<(&'static str, Vec<String>)>);

impl Findings {
    /// Adds the finding `code`, without values, if `applies` is true.
    pub(super) fn add_if(&mut self, applies: bool, code: &'static str) {
        if applies {
            self.add(code, &[]);
        }
    }

    /// Adds the finding `code` with the values of its sentence.
    pub(super) fn add(&mut self, code: &'static str, values: &[&dyn Display]) {
        debug_assert!(lists().any(|(_, rows)| sentences(rows).any(|(known, _)| known == code)), "{code}");
        self.0.push((code, values.iter().map(ToString::to_string).collect()));
    }

    /// Returns the sentences of the list below the heading `number`.
    pub(super) fn list(&self, number: usize) -> Vec<String> {
        let rows = lists().nth(number).map_or("", |(_, rows)| rows);
        let found = |code| self.0.iter().filter(move |(found, _)| *found == code);
        sentences(rows).flat_map(|(code, text)| found(code).map(move |(_, values)| fill(text, values))).collect()
    }
}

/// Returns the headings of the lists, in order.
pub(super) fn headings() -> impl Iterator<Item = &'static str> {
    lists().map(|(heading, _)| heading)
}

fn lists() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.split("\n# ").skip(1).filter_map(|list| list.split_once('\n'))
}

fn sentences(rows: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    rows.lines().filter_map(|row| row.split_once(": "))
}

/// Puts the values in the places of a sentence. Further values are left out.
fn fill(sentence: &str, values: &[String]) -> String {
    let mut parts = sentence.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (part, value) in parts.zip(values) {
        text.push_str(value);
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_code_has_one_sentence_and_is_in_use() {
        let codes: Vec<&str> = lists().flat_map(|(_, rows)| sentences(rows)).map(|(code, _)| code).collect();
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
        let code = [include_str!("advice.rs"), include_str!("eras.rs"), include_str!("oauth.rs")].concat();
        let unused: Vec<_> = codes.into_iter().filter(|known| !code.contains(&format!("\"{known}\""))).collect();
        assert!(unused.is_empty(), "these are in no condition: {unused:?}");
    }

    #[test]
    fn values_are_put_in_their_places_as_they_are() {
        let mut findings = Findings::default();
        findings.add("http-sse", &[&"/{}", &"http://h", &"/{}"]);
        let expected = "HTTP+SSE of 2024-11-05 at /{}: its old clients pass through and cannot resume; \
                        give --upstream-sse http://h/{}, and clients of Streamable HTTP can";
        assert_eq!(findings.list(2), [expected]);
    }

    #[test]
    fn findings_are_listed_in_the_order_of_the_table() {
        let mut findings = Findings::default();
        findings.add_if(true, "silence");
        findings.add_if(true, "repeated-posts");
        findings.add_if(false, "json");
        findings.add_if(true, "own-ids");
        let begins = |number: usize, beginnings: &[&str]| {
            let list = findings.list(number);
            assert_eq!(list.len(), beginnings.len(), "{list:?}");
            assert!(list.iter().zip(beginnings).all(|(line, beginning)| line.starts_with(beginning)), "{list:?}");
        };
        begins(0, &["ids of its own", "the same POST"]);
        begins(1, &[]);
        begins(3, &["the server stopped"]);
    }
}
