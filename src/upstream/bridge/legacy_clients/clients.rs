//! State that all requests of clients of the revisions with sessions share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::request::modern;
use super::session::{Session, Sessions};
use crate::protocol::bridge::legacy_clients::{self as bridge, Discovered};
use crate::protocol::jsonrpc;
use crate::upstream::bridge::era_discovery::EraDiscovery;
use crate::upstream::bridge::responses::response_in;
use crate::upstream::bridge::settings::Link;
use crate::upstream::observed::Observed;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::synthetic;

/// Maximum number of list pages that are read for one call, and time limit for all of them.
const MAX_PAGES: usize = 32;
const LIST_WAIT: Duration = Duration::from_secs(5);

/// Translates requests. All workers share it.
pub(in super::super) struct LegacyClients {
    pub(super) link: Arc<Link>,
    /// Tokens whose caller the server has confirmed or denied.
    pub(super) observed: Arc<Observed>,
    pub(super) sessions: Sessions,
    /// True once a session was opened, or a request has named one.
    is_active: AtomicBool,
    /// Capabilities of the server in the session opened last. Most sessions have equal ones and
    /// share them.
    pub(super) discovered: Mutex<Option<Arc<Discovered>>>,
    pub(super) era: Arc<EraDiscovery>,
}

impl LegacyClients {
    /// Creates a bridge without sessions.
    pub(in super::super) fn new(link: Arc<Link>, observed: Arc<Observed>, era: Arc<EraDiscovery>) -> Arc<Self> {
        Arc::new(Self {
            link,
            observed,
            sessions: Sessions::default(),
            is_active: AtomicBool::default(),
            discovered: Mutex::default(),
            era,
        })
    }

    /// Returns true once a session was opened, or a request has named one.
    pub(in super::super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Records that a session was opened, or that a request has named one.
    pub(in super::super) fn record_session(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Reads the list of tools with the headers of this request. Returns false if that fails.
    pub(super) async fn list_tools(&self, session: &Session, template: &Template) -> bool {
        const METHOD: &str = "tools/list";
        let reading = async {
            let mut params = json!({});
            for _ in 0..MAX_PAGES {
                let id = session.usage.next_id();
                let body = json!({"jsonrpc": "2.0", "id": id, "method": METHOD, "params": params}).to_string();
                let body = bridge::translated(body.as_bytes(), &id, &session.client, None, None)?;
                let post = modern(&synthetic::post(template, body), METHOD);
                let page = response_in(self.link.server.exchange(&post, None).await.ok()?).await?;
                jsonrpc::member(&page, &["result", "tools"])?;
                session.record_tools(&page);
                match jsonrpc::parsed_member::<Value>(&page, &["result", "nextCursor"]) {
                    None | Some(Value::Null) => break,
                    Some(cursor) => params = json!({ "cursor": cursor }),
                }
            }
            Some(())
        };
        matches!(tokio::time::timeout(LIST_WAIT, reading).await, Ok(Some(())))
    }
}
