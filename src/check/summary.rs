//! A configuration in words: what `serve` would do with it.

use std::fmt;

use serde::Serialize;

use super::advice::words;
use super::report::write_wrapped;
use crate::config::{Config, Mode};

/// What would be served. Displays as text; serialises for `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Where clients connect.
    pub listen: String,
    /// The server behind it, without its query.
    pub upstream: String,
    /// Where probes and metrics are.
    pub admin: Option<String>,
    /// What becomes of calls whose client is away.
    pub streams: String,
    /// How responses are held.
    pub delivery: String,
    /// Tools with settings of their own, in order.
    pub tools: Vec<String>,
}

impl Summary {
    /// Of this configuration.
    pub fn new(config: &Config) -> Self {
        let mut tools: Vec<String> = config.tools.keys().map(|name| super::facts::printable(name)).collect();
        tools.sort();
        let wait = config.streams.max_wait.map_or("for ever".to_owned(), |wait| format!("for {}", words(wait)));
        let delivery = &config.delivery;
        let (mode, retry) = match delivery.mode {
            Mode::Stream => ("responses are held", delivery.retry),
            Mode::Poll => ("responses are closed at once and polled for", delivery.poll_retry),
        };
        let url = &config.upstream.url;
        Self {
            listen: format!("http://{}{}", config.listen.address, url.endpoint_path()),
            upstream: url.to_string(),
            admin: config.admin.address.map(|address| format!("http://{address}")),
            streams: format!(
                "a call without its client is kept {wait}, an ended one for {}",
                words(config.streams.retention)
            ),
            delivery: format!("{mode}, clients come back after {}", words(retry)),
            tools,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the configuration is good\n")?;
        let admin = self.admin.as_deref().unwrap_or("nowhere");
        let rows = [
            ("listens on", &*self.listen),
            ("in front of", &*self.upstream),
            ("admin on", admin),
            ("streams", &*self.streams),
            ("delivery", &*self.delivery),
        ];
        rows.into_iter().try_for_each(|(label, text)| write_wrapped(f, &format!("  {label:12}"), text))?;
        match self.tools.is_empty() {
            true => Ok(()),
            false => write_wrapped(f, "  tools       ", &format!("settings of their own: {}", self.tools.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_said_in_words_without_its_secrets() {
        let file = "\
            [upstream]\nurl = \"http://h:1/x?key=hunter2\"\n\
            [streams]\nmax_wait_secs = 0\n\
            [delivery]\nmode = \"poll\"\n\
            [admin]\naddress = \"\"\n\
            [tools.slow]\ncall_timeout_secs = 5\n";
        let config = Config::load(Some(("f", file)), [], crate::config::Flags::default()).unwrap();
        let expected = "\
the configuration is good

  listens on  http://127.0.0.1:8080/x
  in front of http://h:1/x
  admin on    nowhere
  streams     a call without its client is kept for ever, an ended one for 10 min
  delivery    responses are closed at once and polled for, clients come back after 5 s
  tools       settings of their own: slow
";
        assert_eq!(Summary::new(&config).to_string(), expected);
    }
}
