//! Comparison of a session's lists after it was opened again.
//!
//! The pages that the client has read are read again, once, with the headers of the refused
//! request. A page that differs, or cannot be read, announces its list. Absent: the digests of
//! pages (`protocol/lists.rs`), and the record of the pages that were read (`event_log`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tracing::Instrument;

use super::handshake::{Handshaking, read_response};
use crate::event_log::Stream;
use crate::protocol::headers::SessionId;
use crate::protocol::lists::{List, PAGE_MAX, Page, PageDigest};
use crate::protocol::stream::SessionChange;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::synthetic;

/// Time limit for reading all pages, the wait for a permit included. Pages beyond it count as
/// changed.
const LIMIT: Duration = Duration::from_secs(10);

impl Handshaking {
    /// Announces on `standalone` that the session was opened again as `name`, once its lists were
    /// compared. Returns at once.
    pub(super) fn announce(&self, name: Option<SessionId>, standalone: Vec<Arc<Stream>>) {
        let lists = self.handshake.read_lists();
        let announced: BTreeSet<_> = if self.upstream.revivals().front.announces_undeclared {
            List::ALL.map(List::notification).into()
        } else {
            self.handshake.server.list_changes().collect()
        };
        let has_reader = !standalone.is_empty() || self.upstream.revivals().front.takes_any_server;
        if !has_reader || announced.is_empty() || lists.are_none() {
            self.handshake.set_changed_lists(Vec::new());
            return self.announce_to(&standalone);
        }
        let handshaking = self.clone();
        let comparing = async move {
            let mut changed: BTreeSet<_> = lists.incomparable().map(|list| list.notification()).collect();
            let mut unread: Vec<(&Page, PageDigest)> = lists.pages().collect();
            unread.retain(|(page, _)| announced.contains(page.list().notification()));
            unread.reverse();
            let _ = tokio::time::timeout(LIMIT, handshaking.compare(name.as_ref(), &mut unread, &mut changed)).await;
            changed.extend(unread.iter().map(|(page, _)| page.list().notification()));
            handshaking.handshake.set_changed_lists(changed.intersection(&announced).copied().collect());
            handshaking.announce_to(&standalone);
        };
        tokio::spawn(comparing.in_current_span());
    }

    /// Announces the changes on the standalone streams, or to a front that follows the session
    /// itself.
    fn announce_to(&self, standalone: &[Arc<Stream>]) {
        if self.upstream.revivals().front.takes_any_server {
            return self.handshake.announce();
        }
        for stream in standalone {
            stream.change(|machine, now| machine.handle_session(SessionChange::Revived, now));
        }
    }

    /// Reads the pages of `unread` in the session `name`, the last first, and removes them. Adds
    /// the notifications of pages that differ to `changed`.
    async fn compare(
        &self,
        name: Option<&SessionId>,
        unread: &mut Vec<(&Page, PageDigest)>,
        changed: &mut BTreeSet<&'static str>,
    ) {
        // After a restart many sessions are opened again at once.
        let Ok(_permit) = self.upstream.revivals().permits.clone().acquire_owned().await else { return };
        while let Some((page, digest)) = unread.last().copied() {
            let notification = page.list().notification();
            if !changed.contains(notification) && self.digest_of(name, page).await != Some(digest) {
                changed.insert(notification);
            }
            unread.pop();
        }
    }

    /// Returns the digest of a page as the server has it now, or `None` if it cannot be read.
    async fn digest_of(&self, name: Option<&SessionId>, page: &Page) -> Option<PageDigest> {
        let id = synthetic::own_id();
        let template = self.request.beside(Method::POST, &self.headers_in(name), page.to_request(&id).into());
        let response = self.upstream.unnamed().exchange(&template, None).await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        PageDigest::of(&read_response(response, &id, PAGE_MAX).await?)
    }
}
