//! Subscriptions of revisions without sessions (`subscriptions/listen`), beyond the replacement of
//! their program.
//!
//! A subscription keeps its ID and is sent again to the new program. The host gets changes of
//! all lists in place of a second acknowledgement, because the core compares lists in sessions
//! alone. Absent: subscriptions over broken connections (`calls.rs`), and those
//! whose program ends by itself.

use bytes::Bytes;
use serde_json::json;

use super::input::HostRequest;
use super::pipe::Pipe;
use super::words::own_code;
use crate::protocol::bridge::modern_clients::listen::{Filter, tagged};
use crate::protocol::error::ErrorCode;

impl Pipe {
    /// Waits for the next program if this error is the end of a subscription at a watched one.
    /// Returns false for any other error. `replacements` is their number before the request was
    /// sent.
    pub(super) async fn may_listen_again(&self, request: &HostRequest, error: &[u8], replacements: u64) -> bool {
        let is_end = own_code(error) == Some(ErrorCode::ServerEnded);
        if !request.is_listen() || !is_end || !self.program.is_watched() {
            return false;
        }
        self.program.replaced_after(replacements).await;
        true
    }

    /// Writes changes of all lists in the second acknowledgement of a subscription at a watched
    /// program.
    pub(super) async fn announce_replacement(&self, request: &HostRequest, acknowledgement: &[u8]) {
        if !self.program.is_watched() {
            return;
        }
        let changes = json!({"listChanged": true});
        let all = json!({"tools": changes, "prompts": changes, "resources": changes});
        let filter = Filter::of(acknowledgement, &all).unwrap_or_default();
        for change in filter.list_changes().filter_map(|change| tagged(&change, &request.id)) {
            self.pass(Bytes::from(change)).await;
        }
    }
}
