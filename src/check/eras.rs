//! Findings about the revisions of a server, and about the clients that share none with it.
//!
//! Clients of 2026-07-28 and those of the older revisions share none, unless one of them, or the
//! server, speaks both. The proxy translates as its `[bridge]` says; here is the sentence that says
//! so, or the setting that would do it.

use super::facts::{Facts, Guard, Legacy};
use crate::config::{Config, ModernClients};

/// Revisions that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eras {
    /// 2026-07-28, and older ones.
    Both,
    /// Older ones alone.
    Older {
        /// True if the server assigns sessions.
        has_sessions: bool,
    },
    /// 2026-07-28 alone.
    Later,
}

impl Eras {
    /// Returns the revisions, or `None` if they are not known, as of a server that stopped
    /// responding.
    pub(super) fn of(facts: &Facts) -> Option<Self> {
        match (&facts.legacy, &facts.modern) {
            (Some(_), Some(_)) => Some(Eras::Both),
            (Some(Legacy { session, .. }), None) if !facts.fell_silent => Some(Eras::Older { has_sessions: *session }),
            (None, Some(_)) if !facts.fell_silent => Some(Eras::Later),
            (Some(_), None) | (None, Some(_) | None) => None,
        }
    }

    /// Describes the clients that share a revision with the server.
    pub(super) fn clients(self) -> &'static str {
        match self {
            Eras::Both => "of 2026-07-28 and of the older revisions",
            Eras::Older { .. } => "of the older revisions alone: it refuses 2026-07-28",
            Eras::Later => "of 2026-07-28 alone: it refuses initialize",
        }
    }
}

/// Settings of the bridge that matter here.
struct Bridge {
    modern_clients: ModernClients,
    legacy_clients: bool,
    has_tasks: bool,
}

impl Bridge {
    fn of(config: &Config) -> Self {
        let bridge = config.bridge.as_ref();
        Self {
            modern_clients: bridge.map_or(ModernClients::Never, |bridge| bridge.modern_clients),
            legacy_clients: bridge.is_some_and(|bridge| bridge.legacy_clients),
            has_tasks: config.tasks.is_some(),
        }
    }

    /// Returns true if clients of 2026-07-28 that declare tasks are translated for a server of the
    /// older revisions, and others are not.
    fn is_for_tasks(&self, has_sessions: bool) -> bool {
        self.modern_clients == ModernClients::Auto && self.has_tasks && !has_sessions
    }
}

/// Returns the sentence for clients that the proxy translates.
pub(super) fn adds(facts: &Facts, config: &Config) -> Option<String> {
    let bridge = Bridge::of(config);
    match Eras::of(facts)? {
        Eras::Both => None,
        Eras::Older { .. } if bridge.modern_clients == ModernClients::Always => Some(
            "clients of 2026-07-28 can use the server, and get tasks: their requests are translated \
             (bridge.modern_clients is \"always\")"
                .to_owned(),
        ),
        Eras::Older { has_sessions } if bridge.is_for_tasks(has_sessions) => Some(
            "a client of 2026-07-28 that declares tasks gets them, after the first client without a session: its requests are \
             translated (bridge.modern_clients is \"auto\")"
                .to_owned(),
        ),
        Eras::Older { .. } => None,
        Eras::Later if bridge.legacy_clients => Some(
            "clients of the older revisions can use the server: their requests are translated (bridge.legacy_clients is \"auto\")"
                .to_owned(),
        ),
        Eras::Later => None,
    }
}

/// Returns the sentence for clients that share no revision with the server, and are not translated.
pub(super) fn clients(facts: &Facts, config: &Config) -> Option<String> {
    let bridge = Bridge::of(config);
    match Eras::of(facts)? {
        Eras::Both => None,
        Eras::Older { .. } if bridge.modern_clients == ModernClients::Always => None,
        Eras::Older { has_sessions: true } if bridge.has_tasks => Some(
            "a client of 2026-07-28 that has given up the older revisions cannot use the server, and one that declares tasks \
             gets none, unless bridge.modern_clients is \"always\""
                .to_owned(),
        ),
        Eras::Older { has_sessions } if has_sessions || bridge.is_for_tasks(has_sessions) || !bridge.has_tasks => Some(
            "a client of 2026-07-28 that has given up the older revisions cannot use the server, unless bridge.modern_clients \
             is \"always\""
                .to_owned(),
        ),
        Eras::Older { .. } => Some(
            "a client of 2026-07-28 that has given up the older revisions cannot use the server, unless bridge.modern_clients \
             is \"always\"; \"auto\" is enough to give tasks to one that declares them"
                .to_owned(),
        ),
        Eras::Later if bridge.legacy_clients => None,
        Eras::Later => Some(
            "a client of the older revisions cannot use the server, unless bridge.legacy_clients is \"auto\"".to_owned(),
        ),
    }
}

/// Returns the warnings about clients that are translated.
pub(super) fn warnings(facts: &Facts, config: &Config) -> Vec<String> {
    let is_always = Bridge::of(config).modern_clients == ModernClients::Always;
    if !is_always {
        return Vec::new();
    }
    match Eras::of(facts) {
        Some(Eras::Older { has_sessions: true }) => {
            let mut lines = vec![
                "the server keeps sessions, and bridge.modern_clients is \"always\": all windows of one client and user share one \
                 session at 2026-07-28, and the state in it; clients that ask for that revision first (Python 2, FastMCP 4, Go, C#) \
                 no longer open one each"
                    .to_owned(),
            ];
            if facts.anonymous == Guard::Accepted && !config.listen.address.ip().is_loopback() {
                lines.push(
                    "callers without credentials are not translated, since they would share a session: on a loopback address \
                     they are"
                        .to_owned(),
                );
            }
            lines
        }
        Some(Eras::Older { has_sessions: false }) if config.tasks.is_some() => vec![
            "bridge.modern_clients is \"always\": \"auto\" is enough to give tasks to clients that declare them, if all clients know \
             the older revisions, too"
                .to_owned(),
        ],
        Some(Eras::Older { has_sessions: false } | Eras::Both | Eras::Later) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::facts::samples::*;
    use super::*;
    use crate::config::Bridge as Settings;

    fn config(modern_clients: ModernClients, legacy_clients: bool) -> Config {
        let mut config = Config::for_upstream("http://127.0.0.1:3000").unwrap();
        let idle = Duration::from_secs(600);
        config.bridge = Some(Settings { modern_clients, legacy_clients, idle, sessions_per_principal: 8 });
        config
    }

    fn older(has_sessions: bool) -> Facts {
        let mut facts = speaks();
        legacy(&mut facts).session = has_sessions;
        facts
    }

    fn later() -> Facts {
        Facts { legacy: None, modern: Some(modern()), ..speaks() }
    }

    /// Words of the sentences, for each server and setting: of what the proxy adds, of what clients
    /// must know, and of the warnings.
    #[test]
    fn each_server_has_the_settings_that_its_clients_need() {
        use ModernClients::{Always, Auto, Never};
        let both = Facts { modern: Some(modern()), ..speaks() };
        let rows: [(&Facts, ModernClients, bool, [&str; 3]); 11] = [
            (&both, Auto, true, ["", "", ""]),
            (&both, Always, true, ["", "", ""]),
            (&older(true), Never, true, ["", "gets none, unless bridge.modern_clients is \"always\"", ""]),
            (&older(true), Auto, true, ["", "unless bridge.modern_clients is \"always\"", ""]),
            (&older(true), Always, true, ["clients of 2026-07-28 can use", "", "share one session"]),
            (&older(false), Never, true, ["", "\"auto\" is enough to give tasks", ""]),
            (&older(false), Auto, true, ["declares tasks gets them", "unless bridge.modern_clients is \"always\"", ""]),
            (&older(false), Always, true, ["clients of 2026-07-28 can use", "", "\"auto\" is enough"]),
            (&later(), Always, true, ["clients of the older revisions can use", "", ""]),
            (&later(), Never, false, ["", "unless bridge.legacy_clients is \"auto\"", ""]),
            (&Facts { fell_silent: true, ..older(true) }, Never, true, ["", "", ""]),
        ];
        for (facts, modern_clients, legacy_clients, expected) in rows {
            let config = config(modern_clients, legacy_clients);
            let found = [
                adds(facts, &config).unwrap_or_default(),
                clients(facts, &config).unwrap_or_default(),
                warnings(facts, &config).join("\n"),
            ];
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(
                    (found.contains(expected), found.is_empty()),
                    (true, expected.is_empty()),
                    "{found}: {expected}"
                );
            }
        }
    }

    #[test]
    fn callers_without_credentials_are_warned_about_where_they_are_not_translated() {
        let mut config = config(ModernClients::Always, true);
        assert_eq!(warnings(&older(true), &config).len(), 1);
        config.listen.address = ([0, 0, 0, 0], 8080).into();
        assert_eq!(warnings(&older(true), &config).len(), 2);
        assert_eq!(warnings(&Facts { anonymous: refused(), ..older(true) }, &config).len(), 1);
    }

    #[test]
    fn without_tasks_there_is_nothing_for_auto_to_give() {
        let mut config = config(ModernClients::Auto, true);
        config.tasks = None;
        assert_eq!(adds(&older(false), &config), None);
        assert!(clients(&older(false), &config).is_some_and(|line| !line.contains("task")));
    }
}
