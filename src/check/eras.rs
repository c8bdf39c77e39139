//! Findings about the revisions of a server, and about the clients that share no revision with it.
//!
//! Clients of 2026-07-28 and clients of the older revisions share no revision, unless a client or
//! the server speaks both. The proxy translates as its `[bridge]` says; the findings say so, or
//! name the setting for it.

use super::facts::{Contact, Facts, Guard};
use super::findings::Findings;
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
            _ if facts.fell_silent => None,
            (Some(legacy), None) => Some(Eras::Older { has_sessions: legacy.session }),
            // A server that is slow, limited or away has refused nothing.
            (None, Some(_)) if facts.unopened.as_ref().is_some_and(|contact| !is_refusal(contact)) => None,
            (None, Some(_)) => Some(Eras::Later),
            (None, None) => None,
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

/// Returns true if the server has refused `initialize` as such.
fn is_refusal(contact: &Contact) -> bool {
    match contact {
        Contact::Declined { .. } => !contact.is_busy(),
        Contact::NotMcp { status, .. } => (400..500).contains(status) && !contact.is_busy(),
        _ => false,
    }
}

/// Describes the outcome of an `initialize` that the server has not refused.
fn outcome(contact: &Contact) -> String {
    match contact {
        Contact::Silent => "no answer in time".to_owned(),
        contact => contact.status().map_or("no answer".to_owned(), |status| format!("the status {status}")),
    }
}

/// Returns the status by which the server refused `initialize`, if the proxy does not translate
/// after that status. A channel has no status.
fn untranslated_status(facts: &Facts) -> Option<u16> {
    let status = facts.unopened.as_ref().filter(|_| !facts.has_channels())?.status()?;
    if (400..500).contains(&status) { None } else { Some(status) }
}

/// Finds the clients that the proxy translates, and the clients that it leaves out.
pub(super) fn find(facts: &Facts, config: &Config, found: &mut Findings) {
    let bridge = config.bridge.as_ref();
    let modern_clients = bridge.map_or(ModernClients::Never, |bridge| bridge.modern_clients);
    let has_tasks = config.tasks.is_some();
    match Eras::of(facts) {
        Some(Eras::Both) => {}
        None => {
            if let Some(contact) = facts.unopened.as_ref().filter(|_| facts.modern.is_some()) {
                found.add("unopened", &[&outcome(contact)]);
            }
        }
        Some(Eras::Later) => match (bridge.is_some_and(|bridge| bridge.legacy_clients), untranslated_status(facts)) {
            (_, Some(status)) => found.add("excluded-older-by-status", &[&status]),
            (true, None) => found.add("translated-older", &[]),
            (false, None) => found.add("excluded-older", &[]),
        },
        Some(Eras::Older { has_sessions }) if modern_clients == ModernClients::Always => {
            let is_exposed = facts.anonymous == Guard::Accepted && !config.listen.address.ip().is_loopback();
            found.add("translated-later", &[]);
            found.add_if(has_sessions, "shared-session");
            found.add_if(has_sessions && is_exposed, "not-translated");
            found.add_if(!has_sessions && has_tasks, "auto-is-enough");
        }
        Some(Eras::Older { has_sessions }) => {
            let gives_tasks = modern_clients == ModernClients::Auto && has_tasks && !has_sessions;
            found.add_if(gives_tasks, "translated-tasks");
            let code = match (has_tasks, has_sessions) {
                (true, true) => "excluded-later-and-tasks",
                (true, false) if !gives_tasks => "excluded-later-but-tasks",
                (true | false, true | false) => "excluded-later",
            };
            found.add(code, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::facts::Program;
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

    /// Returns a list of the findings.
    fn list(facts: &Facts, config: &Config, number: usize) -> Vec<String> {
        let mut found = Findings::default();
        find(facts, config, &mut found);
        found.list(number)
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
            let found = [0, 1, 2].map(|number| list(facts, &config, number).join("\n"));
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
    fn only_a_refusal_of_initialize_shows_a_server_of_one_revision() {
        let declined = |status| Contact::Declined { status, code: -32601, message: String::new() };
        let not_mcp = |status| Contact::NotMcp { status, content_type: None, redirects_to: None };
        let refused = Contact::Refused { status: 401, scheme: None };
        for (unopened, promise, question) in [
            (declined(400), "clients of the older revisions can use", ""),
            (not_mcp(404), "clients of the older revisions can use", ""),
            (declined(200), "", ""),
            (declined(503), "", "initialize got the status 503"),
            (not_mcp(429), "", "initialize got the status 429"),
            (not_mcp(200), "", "initialize got the status 200"),
            (refused, "", "initialize got the status 401"),
            (Contact::Silent, "", "initialize got no answer in time"),
            (Contact::Broke, "", "initialize got no answer"),
        ] {
            let facts = Facts { unopened: Some(unopened.clone()), ..later() };
            let config = config(ModernClients::Auto, true);
            let lists = [0, 3].map(|number| list(&facts, &config, number).join("\n"));
            for (list, words) in lists.iter().zip([promise, question]) {
                assert_eq!((list.contains(words), list.is_empty()), (true, words.is_empty()), "{unopened:?}: {list}");
            }
            assert_eq!(Eras::of(&facts).is_none(), !question.is_empty(), "{unopened:?}");
        }
        let facts = Facts { unopened: Some(declined(200)), ..later() };
        let clients = list(&facts, &config(ModernClients::Auto, true), 1);
        assert!(clients.join("\n").contains("refuses initialize with the status 200"), "{clients:?}");
        let on_stdio = Facts { program: Some(Program::default()), ..facts };
        assert_eq!(list(&on_stdio, &config(ModernClients::Auto, true), 0).len(), 1);
    }

    #[test]
    fn callers_without_credentials_are_warned_about_where_they_are_not_translated() {
        let mut config = config(ModernClients::Always, true);
        assert_eq!(list(&older(true), &config, 2).len(), 1);
        config.listen.address = ([0, 0, 0, 0], 8080).into();
        assert_eq!(list(&older(true), &config, 2).len(), 2);
        assert_eq!(list(&Facts { anonymous: refused(), ..older(true) }, &config, 2).len(), 1);
    }

    #[test]
    fn without_tasks_there_is_nothing_for_auto_to_give() {
        let mut config = config(ModernClients::Auto, true);
        config.tasks = None;
        assert_eq!(list(&older(false), &config, 0), Vec::<String>::new());
        assert!(!list(&older(false), &config, 1).join("\n").contains("task"));
    }
}
