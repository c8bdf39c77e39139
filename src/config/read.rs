//! Takes values out of a [`RawConfig`], one key at a time.
//!
//! The known keys are the keys that are read here. A key that remains is unknown. So no list of
//! keys can differ from the code.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::problem::{Origin, Problem};
use super::raw::{RawConfig, RawValue, TOOLS, Value};

/// Least likeness, by Jaro and Winkler, of a name that may be meant.
const LIKE: f64 = 0.85;

/// A value, or the problem with it.
type CheckResult<T> = Result<T, String>;

pub(super) struct Reader {
    raw: RawConfig,
    /// All keys that were read, by section.
    known: BTreeMap<String, Vec<&'static str>>,
    /// Origin of the effective value of each key.
    effective: BTreeMap<(String, &'static str), Origin>,
    problems: Vec<Problem>,
}

/// The keys of one section.
pub(super) struct Section<'a> {
    reader: &'a mut Reader,
    name: String,
}

impl Reader {
    pub(super) fn new(mut raw: RawConfig) -> Self {
        let problems = std::mem::take(&mut raw.problems);
        Self { raw, known: BTreeMap::new(), effective: BTreeMap::new(), problems }
    }

    pub(super) fn section(&mut self, name: impl Into<String>) -> Section<'_> {
        let name = name.into();
        self.known.entry(name.clone()).or_default();
        Section { reader: self, name }
    }

    pub(super) fn tools(&mut self) -> Vec<String> {
        std::mem::take(&mut self.raw.tools)
    }

    /// Reports that a required key is missing. Reports nothing if the file could not be read, or if
    /// the key has a problem already.
    pub(super) fn missing(&mut self, section: &str, key: &'static str, text: &str) {
        let name = format!("{section}.{key}");
        if !self.raw.is_unreadable && !self.problems.iter().any(|problem| problem.key == name) {
            self.problems.push(Problem { origin: Origin::Unset, key: name, text: text.to_owned() });
        }
    }

    /// Reports two valid values that exclude each other, at the first of `keys` that was given.
    pub(super) fn conflict(&mut self, keys: [(&str, &'static str); 2], text: String) {
        let owned = |(section, key): (&str, _)| (section.to_owned(), key);
        let (key, origin) = keys
            .into_iter()
            .find_map(|key| Some((key, self.effective.get(&owned(key))?.clone())))
            .unwrap_or((keys[0], Origin::Unset));
        self.problems.push(Problem { origin, key: format!("{}.{}", key.0, key.1), text });
    }

    /// Reports a store's path or URL that was given without a kind, unless the kind has a problem
    /// already.
    pub(super) fn kind_missing(&mut self, key: &'static str, kind: &str) {
        if !self.problems.iter().any(|problem| problem.key == "store.kind") {
            let text = format!("is given without store.kind, and would not be used: set kind = {kind:?} in [store]");
            self.conflict([("store", key), ("store", "kind")], text);
        }
    }

    /// Returns all keys that were read, by section.
    #[cfg(test)]
    pub(super) fn known(&self) -> &BTreeMap<String, Vec<&'static str>> {
        &self.known
    }

    /// Returns all problems, including unknown keys and sections.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        let sections = self
            .known
            .keys()
            .filter(|name| !name.starts_with(TOOLS))
            .map(String::as_str)
            .chain(["tools.\"NAME\""])
            .collect::<Vec<_>>()
            .join(", ");
        for (key, origin) in std::mem::take(&mut self.raw.outside_sections) {
            let text = self.section_advice(&key);
            self.problems.push(Problem { origin, key, text });
        }
        for (section, origin) in std::mem::take(&mut self.raw.sections) {
            if !self.known.contains_key(&section) {
                let text = format!("unknown section;{} there are {sections}", meant(&section, self.sections()));
                self.problems.push(Problem { origin, key: section, text });
            }
        }
        for ((section, key), values) in std::mem::take(&mut self.raw.values) {
            let text = match self.known.get(&section) {
                Some(keys) => {
                    let meant = meant(&key, keys.iter().copied());
                    format!("unknown key;{meant} [{section}] has {}", keys.join(", "))
                }
                None => format!("unknown section;{} there are {sections}", meant(&section, self.sections())),
            };
            let is_known_section = self.known.contains_key(&section);
            let key = format!("{section}.{key}");
            let problems = values
                .into_iter()
                // An unknown section of the file was reported as a whole.
                .filter(|value| is_known_section || !matches!(value.origin, Origin::File { .. }))
                .map(|RawValue { origin, .. }| Problem { origin, key: key.clone(), text: text.clone() });
            self.problems.extend(problems);
        }
        self.problems
    }

    fn sections(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// Returns the right section of a value that stands above the first section of a file.
    fn section_advice(&self, key: &str) -> String {
        if self.known.contains_key(key) {
            return format!("must be a section: write a line [{key}] and its keys below it");
        }
        let has_it = |(_, keys): &(&String, &Vec<&str>)| keys.contains(&key);
        let sections = self.known.iter().filter(has_it).map(|(section, _)| format!("[{section}]"));
        match sections.collect::<Vec<_>>().as_slice() {
            [] => "must be a section, as in [section]".to_owned(),
            [section] => format!("is a key of {section}: write it below a line {section}"),
            sections => format!("is a key of several sections: write it below a line {}", sections.join(" or ")),
        }
    }
}

/// Returns a suggestion of the known name that is most like a wrong one, or an empty text without
/// one.
fn meant<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let rated = known.map(|name| (strsim::jaro_winkler(wrong, name), name));
    let nearest = rated.filter(|(likeness, _)| *likeness > LIKE).max_by(|one, other| one.0.total_cmp(&other.0));
    nearest.map_or_else(String::new, |(_, name)| format!(" did you mean {name}?"))
}

impl Section<'_> {
    /// Reads a duration in milliseconds.
    pub(super) fn millis(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<Duration> {
        self.number(key, range).map(Duration::from_millis)
    }

    /// Reads a duration in seconds.
    pub(super) fn secs(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<Duration> {
        self.number(key, range).map(Duration::from_secs)
    }

    /// Reads a count of bytes or other units.
    pub(super) fn count(&mut self, key: &'static str, min: usize) -> Option<usize> {
        // The sum of two counts fits into a `usize`.
        const MOST: usize = isize::MAX as usize;
        let number = self.number(key, min as u64..=MOST as u64)?;
        usize::try_from(number).ok()
    }

    /// Reads a rate per second, at least 1.
    pub(super) fn rate(&mut self, key: &'static str) -> Option<u32> {
        const MOST: u32 = 1_000_000_000;
        let number = self.number(key, 1..=u64::from(MOST))?;
        u32::try_from(number).ok()
    }

    /// Reads a rate per second; 0 means no limit.
    pub(super) fn rate_or_none(&mut self, key: &'static str) -> Option<u32> {
        let number = self.number(key, 0..=1_000_000_000)?;
        u32::try_from(number).ok().filter(|rate| *rate > 0)
    }

    /// Reads a share in percent.
    pub(super) fn percent(&mut self, key: &'static str) -> Option<u8> {
        let number = self.number(key, 0..=100)?;
        u8::try_from(number).ok()
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.take(key, |value| match value {
            Value::Boolean(flag) => Ok(*flag),
            Value::Untyped(text) => text.parse().map_err(|_| "must be true or false".to_owned()),
            Value::Integer(_) | Value::Text(_) | Value::List(_) | Value::Table(_) | Value::Other(_) => {
                Err(format!("must be true or false, not {}", value.type_name()))
            }
        })
    }

    /// Reads a text and converts it with `check`.
    pub(super) fn text<T>(&mut self, key: &'static str, check: impl Fn(&str) -> CheckResult<T>) -> Option<T> {
        self.take(key, |value| match value {
            Value::Text(text) | Value::Untyped(text) => check(text),
            Value::Integer(_) | Value::Boolean(_) | Value::List(_) | Value::Table(_) | Value::Other(_) => {
                Err(format!("must be a text in quotes, not {}", value.type_name()))
            }
        })
    }

    /// Reads a list of at least `min` texts and parses each. TOML has an array, the other layers
    /// separate by commas.
    pub(super) fn list<T: FromStr<Err: Display>>(&mut self, key: &'static str, min: usize) -> Option<Vec<T>> {
        self.take(key, |value| {
            let items: Vec<&str> = match value {
                Value::List(items) => items.iter().map(String::as_str).collect(),
                Value::Untyped(text) => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
                Value::Integer(_) | Value::Boolean(_) | Value::Text(_) | Value::Table(_) | Value::Other(_) => {
                    return Err(format!("must be a list of texts, not {}", value.type_name()));
                }
            };
            if items.len() < min {
                return Err(format!("must have at least {min} in it"));
            }
            let (good, bad): (Vec<_>, Vec<_>) = items
                .into_iter()
                .map(|item| item.parse().map_err(|error: T::Err| format!("{item:?} {error}")))
                .partition(Result::is_ok);
            let problems: Vec<String> = bad.into_iter().filter_map(Result::err).collect();
            if problems.is_empty() { Ok(good.into_iter().flatten().collect()) } else { Err(problems.join("; ")) }
        })
    }

    /// Reads a list of at least `min` texts that may hold commas. The layers other than TOML have a
    /// JSON array.
    pub(super) fn json_list<T: FromStr<Err: Display>>(&mut self, key: &'static str, min: usize) -> Option<Vec<T>> {
        self.take(key, |value| {
            let items = match value {
                Value::List(items) => items.clone(),
                // The text may hold a key, which no message shows.
                Value::Untyped(text) => serde_json::from_str(text)
                    .map_err(|_| r#"must be a JSON array of texts, as ["FIRST", "SECOND"]"#.to_owned())?,
                Value::Integer(_) | Value::Boolean(_) | Value::Text(_) | Value::Table(_) | Value::Other(_) => {
                    return Err(format!("must be a list of texts, not {}", value.type_name()));
                }
            };
            if items.len() < min {
                return Err(format!("must have at least {min} in it"));
            }
            let parse = |(index, item): (usize, &String)| {
                item.parse().map_err(|error: T::Err| format!("number {}: {error}", index + 1))
            };
            items.iter().enumerate().map(parse).collect()
        })
    }

    /// Reads texts by name, and converts them with `check`. TOML has a table, the other layers a
    /// JSON object.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        check: impl Fn(&[(String, String)]) -> CheckResult<T>,
    ) -> Option<T> {
        self.take(key, |value| match value {
            Value::Table(entries) => check(entries),
            // The text may hold a key, which no message shows.
            Value::Untyped(text) => match serde_json::from_str::<BTreeMap<String, String>>(text) {
                Ok(entries) => check(&entries.into_iter().collect::<Vec<_>>()),
                Err(_) => Err(r#"must be a JSON object of texts, as {"NAME": "text"}"#.to_owned()),
            },
            Value::Integer(_) | Value::Boolean(_) | Value::Text(_) | Value::List(_) | Value::Other(_) => {
                Err(r#"must be a table of texts, as { NAME = "text" }"#.to_owned())
            }
        })
    }

    /// Reads a text and parses it.
    pub(super) fn parsed<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Option<T> {
        self.text(key, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// Reads a word of a list.
    pub(super) fn one_of<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.text(key, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                format!("must be {}, not {text:?}", words.join(" or "))
            })
        })
    }

    fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.take(key, |value| {
            let number = match value {
                Value::Integer(number) => u64::try_from(*number).ok(),
                Value::Untyped(text) => text.parse().ok(),
                Value::Boolean(_) | Value::Text(_) | Value::List(_) | Value::Table(_) | Value::Other(_) => {
                    return Err(format!("must be a whole number, not {}", value.type_name()));
                }
            };
            number
                .filter(|number| range.contains(number))
                .ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Checks the values of `key` in all layers, and returns the value of the strongest layer.
    fn take<T>(&mut self, key: &'static str, check: impl Fn(&Value) -> CheckResult<T>) -> Option<T> {
        let Section { reader, name } = self;
        reader.known.entry(name.clone()).or_default().push(key);
        let mut last = None;
        for RawValue { origin, value } in reader.raw.take(name, key) {
            match check(&value) {
                Ok(value) => {
                    reader.effective.insert((name.clone(), key), origin);
                    last = Some(value);
                }
                Err(text) => {
                    reader.problems.push(Problem { origin, key: format!("{name}.{key}"), text });
                }
            }
        }
        last
    }
}
