//! Summary of a configuration: the behaviour of `serve` with it.

use std::fmt;

use serde::Serialize;

use super::advice::in_words;
use super::facts::{printable, printable_lines};
use super::report::write_wrapped;
use crate::config::{Config, Mode, Store};

/// Summary of the configuration. Displays as text; serialises for `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Address of the data listener.
    pub listen: String,
    /// The server behind it: its URL without the query, or the name of its program.
    pub upstream: String,
    /// Address of probes and metrics.
    pub admin: Option<String>,
    /// Store of the events.
    pub store: String,
    /// Treatment of calls whose client is away.
    pub streams: String,
    /// Delivery of responses.
    pub delivery: String,
    /// Calls that become tasks.
    pub tasks: String,
    /// Collector of traces.
    pub traces: Option<String>,
    /// Tools with settings of their own, in order.
    pub tools: Vec<String>,
}

impl Summary {
    /// Creates the summary of this configuration.
    pub fn new(config: &Config) -> Self {
        let mut tools: Vec<String> = config.tools.keys().map(|name| printable(name)).collect();
        tools.sort();
        let wait = config.streams.max_wait.map_or("for ever".to_owned(), |wait| format!("for {}", in_words(wait)));
        let delivery = &config.delivery;
        let (mode, retry) = match delivery.mode {
            Mode::Stream => ("responses are held", delivery.retry),
            Mode::Poll => ("responses are closed at once and polled for", delivery.poll_retry),
        };
        let url = &config.upstream.url;
        let scheme = if config.listen.tls.is_some() { "https" } else { "http" };
        Self {
            listen: format!("{scheme}://{}{}", config.listen.address, url.endpoint_path()),
            upstream: match (&config.upstream.command, &config.upstream.sse) {
                (Some(command), _) => format!("{}, a process for each session", printable(command.name())),
                (None, Some(server)) => format!("{}, an event stream for each session", server.url),
                (None, None) => url.to_string(),
            },
            admin: config.admin.address.map(|address| format!("http://{address}")),
            store: store(&config.store),
            streams: format!(
                "a call without its client is kept {wait}, an ended one for {}",
                in_words(config.streams.retention)
            ),
            delivery: format!("{mode}, clients come back after {}", in_words(retry)),
            tasks: match &config.tasks {
                Some(tasks) => format!(
                    "a call that runs for {} becomes a task, if its client declares them and its server has none",
                    in_words(tasks.after)
                ),
                None => "none".to_owned(),
            },
            traces: config.otel.as_ref().map(|otel| otel.endpoint.to_string()),
            tools,
        }
    }
}

/// Describes the store without its URL, which may hold a password.
fn store(store: &Store) -> String {
    match store {
        Store::Memory => "memory: what is kept ends with the process".to_owned(),
        Store::Disk(disk) => format!("on disk in {}", printable_lines(&disk.path.display().to_string())),
        Store::Redis(_) => "Redis, which replicas may share".to_owned(),
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
            ("store", &*self.store),
            ("streams", &*self.streams),
            ("delivery", &*self.delivery),
            ("tasks", &*self.tasks),
        ];
        for (label, text) in rows {
            write_wrapped(f, &format!("  {label:12}"), text)?;
        }
        if let Some(collector) = &self.traces {
            write_wrapped(f, "  traces      ", &format!("of calls, to {collector}"))?;
        }
        if !self.tools.is_empty() {
            write_wrapped(f, "  tools       ", &format!("settings of their own: {}", self.tools.join(", ")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_holds_no_secret() {
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
  store       memory: what is kept ends with the process
  streams     a call without its client is kept for ever, an ended one for 10 min
  delivery    responses are closed at once and polled for, clients come back after 5 s
  tasks       a call that runs for 20 s becomes a task, if its client declares them and its server has none
  tools       settings of their own: slow
";
        assert_eq!(Summary::new(&config).to_string(), expected);
    }

    #[test]
    fn tls_and_the_kind_of_store_are_shown() {
        let file = "\
            [upstream]\nurl = \"http://h:1/x\"\n\
            [listen.tls]\ncert = \"c.pem\"\nkey = \"k.pem\"\n\
            [store]\nkind = \"redis\"\nurl = \"redis://me:hunter2@h\"\n";
        let config = Config::load(Some(("f", file)), [], crate::config::Flags::default()).unwrap();
        let text = Summary::new(&config).to_string();
        assert!(text.contains("  listens on  https://127.0.0.1:8080/x\n"), "{text}");
        assert!(text.contains("  store       Redis") && !text.contains("hunter2"), "{text}");
    }
}
