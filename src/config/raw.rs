//! Unchecked values of all layers, with their origins.
//!
//! This module owns the three notations (TOML, environment names, flags) and the order of the
//! layers. Absent: the valid keys, and the valid values of each.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::flags::{ConnectFlags, Flags};
use super::problem::{Origin, Problem};

const PREFIX: &str = "MCP_RESUME_";
/// Variable of the folder with the files of `connect`, behind the prefix. It is no key.
const HOME: &str = "HOME";
/// Section of the file with a section for each tool.
pub(super) const TOOLS: &str = "tools";
/// Sections inside another section, as in `[listen.tls]`.
const SUBSECTIONS: [&str; 2] = ["tls", "resume_tokens"];

/// Unchecked values of all layers. Has no `Debug`: they may be secret.
#[derive(Default)]
pub(super) struct RawConfig {
    /// Values by section and key, from the weakest layer to the strongest.
    pub(super) values: BTreeMap<(String, String), Vec<RawValue>>,
    /// Sections of the file, including empty ones but not the tools' sections.
    pub(super) sections: Vec<(String, Origin)>,
    /// Values above the first section of the file.
    pub(super) outside_sections: Vec<(String, Origin)>,
    /// Tools of the file.
    pub(super) tools: Vec<String>,
    /// True if the file is not TOML: no key can then be called missing.
    pub(super) is_unreadable: bool,
    pub(super) problems: Vec<Problem>,
}

/// A value of one layer, with its origin.
pub(super) struct RawValue {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

pub(super) enum Value {
    Integer(i64),
    Boolean(bool),
    Text(String),
    /// Value from a layer without types; the reader of the key parses it.
    Untyped(String),
    /// A list of texts.
    List(Vec<String>),
    /// Texts by name, as in `{ NAME = "text" }`.
    Table(Vec<(String, String)>),
    /// A TOML value that no key accepts, described by its type.
    Other(&'static str),
}

impl RawConfig {
    /// Gathers the values of a file, by its name and text, of the environment and of the flags.
    pub(super) fn of_layers(
        file: Option<(&str, &str)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: Flags,
    ) -> Self {
        let mut raw = Self::of_files(file);
        raw.add_environment(env);
        raw.add_flags(flags);
        raw
    }

    /// Gathers the values of files, by their names and texts, from the weakest to the strongest.
    pub(super) fn of_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut raw = Self::default();
        for (name, text) in files {
            raw.add_file(name, text);
        }
        raw
    }

    pub(super) fn add_file(&mut self, name: &str, text: &str) {
        let file = File { name, text };
        let (root, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            self.is_unreadable = true;
            // The error's own display quotes the line, which may hold a secret.
            self.problems.extend(errors.iter().map(|error| Problem {
                origin: file.origin(error.span()),
                key: String::new(),
                text: format!("not TOML: {}", error.message()),
            }));
            return;
        }
        for (section, value) in root.get_ref() {
            let section = section.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(tools) if section == TOOLS => self.add_tools(&file, tools),
                DeValue::Table(table) => {
                    let origin = file.origin(Some(value.span()));
                    self.sections.push((section.to_owned(), origin));
                    self.add_section(&file, section, table);
                }
                _ => self.outside_sections.push((section.to_owned(), file.origin(Some(value.span())))),
            }
        }
    }

    pub(super) fn add_environment(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in env {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let is_upper = !rest.contains(|c: char| c.is_ascii_lowercase());
            let text = match rest.split_once("__") {
                None if rest == HOME || is_service_link(rest) => continue,
                Some(("TOOLS", _)) => "tools are configured in the file only",
                Some((section, key)) if is_upper => {
                    let (mut section, mut key) = (section.to_ascii_lowercase(), key.to_ascii_lowercase());
                    if let Some((inner, rest)) = key.split_once("__") {
                        section = format!("{section}.{inner}");
                        key = rest.to_owned();
                    }
                    let origin = Origin::Environment(name);
                    self.insert(&section, &key, origin, Value::Untyped(value));
                    continue;
                }
                _ => "unknown variable; keys are written MCP_RESUME_SECTION__KEY, in capitals",
            };
            let (origin, text) = (Origin::Environment(name), text.to_owned());
            self.problems.push(Problem { origin, key: String::new(), text });
        }
    }

    pub(super) fn add_flags(&mut self, flags: Flags) {
        let Flags { upstream, listen, admin, store, upstream_sse, command } = flags;
        if !command.is_empty() {
            self.insert("upstream", "command", Origin::Flag("--"), Value::List(command));
        }
        let (kind, place) = store.map(|store| store_flag(&store)).unzip();
        let (path, url) = match place.flatten() {
            Some(StoreLocation::Path(path)) => (Some(path), None),
            Some(StoreLocation::Url(url)) => (None, Some(url)),
            None => (None, None),
        };
        for (flag, section, key, value) in [
            ("--upstream", "upstream", "url", upstream),
            ("--upstream-sse", "upstream", "sse_url", upstream_sse),
            ("--listen", "listen", "address", listen),
            ("--admin", "admin", "address", admin),
            ("--store", "store", "kind", kind),
            ("--store", "store", "path", path),
            ("--store", "store", "url", url),
        ] {
            if let Some(value) = value {
                self.insert(section, key, Origin::Flag(flag), Value::Untyped(value));
            }
        }
    }

    /// Adds the values of the command line of `connect`.
    pub(super) fn add_connect_flags(&mut self, flags: ConnectFlags) {
        let ConnectFlags { headers, wait_secs, max_wait_secs, repeat, remember, impatient, ca_file, ipv4 } = flags;
        if !headers.is_empty() {
            self.insert("upstream", "headers", Origin::Flag("--header"), Value::Table(headers));
        }
        if !impatient.is_empty() {
            self.insert("connect", "impatient", Origin::Flag("--impatient"), Value::List(impatient));
        }
        for (flag, key, value) in [
            ("--wait-secs", "wait_secs", wait_secs),
            ("--max-wait-secs", "max_wait_secs", max_wait_secs),
            ("--repeat", "repeat", repeat),
            ("--remember", "remember", remember),
            ("--ca-file", "ca_file", ca_file),
            ("--ipv4", "ipv4", ipv4),
        ] {
            if let Some(value) = value {
                self.insert("connect", key, Origin::Flag(flag), Value::Untyped(value));
            }
        }
    }

    /// Adds the replicas of the command line.
    pub(super) fn add_replicas(&mut self, replicas: &[String]) {
        if !replicas.is_empty() {
            self.insert("balance", "replicas", Origin::Flag("--replica"), Value::List(replicas.to_vec()));
        }
    }

    /// Removes and returns the values of a key.
    pub(super) fn take(&mut self, section: &str, key: &str) -> Vec<RawValue> {
        self.values.remove(&(section.to_owned(), key.to_owned())).unwrap_or_default()
    }

    fn add_tools(&mut self, file: &File<'_>, tools: &DeTable<'_>) {
        for (name, value) in tools {
            let name = name.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(table) => {
                    if !self.tools.iter().any(|known| known == name) {
                        self.tools.push(name.to_owned());
                    }
                    self.add_table(file, &tool_section(name), table);
                }
                _ => {
                    let key = format!("{TOOLS}.{name}");
                    self.refuse(file, &key, value, "must be a section, as in [tools.\"NAME\"]");
                }
            }
        }
    }

    /// Adds a section with those inside it.
    fn add_section(&mut self, file: &File<'_>, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let origin = file.origin(Some(key.span()));
            match value.get_ref() {
                DeValue::Table(inner) if SUBSECTIONS.contains(&key.get_ref().as_ref()) => {
                    let section = format!("{section}.{}", key.get_ref());
                    self.sections.push((section.clone(), origin));
                    self.add_table(file, &section, inner);
                }
                value => self.insert(section, key.get_ref().as_ref(), origin, Value::from(value)),
            }
        }
    }

    fn add_table(&mut self, file: &File<'_>, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let origin = file.origin(Some(key.span()));
            self.insert(section, key.get_ref().as_ref(), origin, Value::from(value.get_ref()));
        }
    }

    fn insert(&mut self, section: &str, key: &str, origin: Origin, value: Value) {
        let place = (section.to_owned(), key.to_owned());
        self.values.entry(place).or_default().push(RawValue { origin, value });
    }

    fn refuse(&mut self, file: &File<'_>, key: &str, value: &Spanned<DeValue<'_>>, text: &str) {
        let origin = file.origin(Some(value.span()));
        self.problems.push(Problem { origin, key: key.to_owned(), text: text.to_owned() });
    }
}

/// Returns the name of a tool's section as its header has it, for messages.
pub(super) fn tool_section(name: &str) -> String {
    format!("{TOOLS}.{name:?}")
}

/// Returns true for the variables that Kubernetes sets in every pod for each service. The variables
/// of a service named `mcp-resume` or `mcp-resume-…` have the prefix of this program.
fn is_service_link(rest: &str) -> bool {
    let rest = format!("_{rest}");
    if rest.ends_with("_SERVICE_HOST") || rest.contains("_SERVICE_PORT_") || rest.ends_with("_PORT") {
        return true;
    }
    // `…_PORT_80_TCP`, `…_PORT_80_TCP_ADDR`
    let Some((_, tail)) = rest.split_once("_PORT_") else {
        return false;
    };
    let mut words = tail.split('_');
    let port = words.next().unwrap_or_default();
    port.parse::<u16>().is_ok() && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
}

/// The file being read, the base of positions.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn origin(&self, span: Option<Range<usize>>) -> Origin {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        let before = &self.text.as_bytes()[..start];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        Origin::File { name: self.name.to_owned(), line }
    }
}

impl From<&DeValue<'_>> for Value {
    fn from(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Value::Text(text.as_ref().to_owned()),
            DeValue::Boolean(flag) => Value::Boolean(*flag),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Value::Other("one this large"), Value::Integer),
            DeValue::Float(_) => Value::Other("a fraction"),
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Array(items) => {
                let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
                let texts = items.iter().map(text).collect::<Option<Vec<_>>>();
                texts.map_or(Value::Other("a list of other things"), Value::List)
            }
            DeValue::Table(entries) => {
                let text = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                    let name: &std::borrow::Cow<'_, str> = name.get_ref();
                    Some((name.clone().into_owned(), value.get_ref().as_str()?.to_owned()))
                };
                let texts = entries.iter().map(text).collect::<Option<Vec<_>>>();
                texts.map_or(Value::Other("a section"), Value::Table)
            }
        }
    }
}

impl Value {
    /// Returns the type with its article, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Integer(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Text(_) | Value::Untyped(_) => "a text in quotes",
            Value::List(_) => "a list",
            Value::Table(_) => "a section",
            Value::Other(name) => name,
        }
    }
}

/// Text after the kind of a store in `--store`.
enum StoreLocation {
    Path(String),
    Url(String),
}

/// Splits `memory`, `disk:DIR`, or `redis:URL`; a Redis URL alone will do. Other texts become the
/// kind, whose key refuses them.
fn store_flag(text: &str) -> (String, Option<StoreLocation>) {
    match text.split_once(':') {
        Some(("disk", path)) => ("disk".to_owned(), Some(StoreLocation::Path(path.to_owned()))),
        Some(("redis", url)) if !url.starts_with("//") => {
            ("redis".to_owned(), Some(StoreLocation::Url(url.to_owned())))
        }
        Some((scheme, rest)) if scheme.starts_with("redis") && rest.starts_with("//") => {
            ("redis".to_owned(), Some(StoreLocation::Url(text.to_owned())))
        }
        Some(_) | None => (text.to_owned(), None),
    }
}
