//! Lookup of the tools whose results have a schema, before any client has listed them.
//!
//! The lookup uses the credentials of a call to a tool with possible partial results. It is made
//! once per tool: the facts of a list are remembered. If the list cannot be read, the tool counts
//! as having a schema.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use super::forwarded::Forwarded;
use super::server::request::Template;
use super::server::sse_reader::messages;
use super::server::synthetic;
use super::stack::Upstream;
use crate::channel::Caller;
use crate::config::ResumeTokens;
use crate::protocol::dialect::resume_tokens::ToolList;
use crate::protocol::jsonrpc;

/// Time limit of the lookup. A call waits meanwhile.
const WAIT: Duration = Duration::from_secs(5);
/// Size limit of a page of the list.
const PAGE_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of pages: a longer list may be endless.
const PAGES_MAX: usize = 32;

impl Upstream {
    /// Lists the tools with the credentials of the request `parts` of this caller, until `tool` is
    /// found or the list ends.
    pub async fn find_tool(
        &self,
        (parts, client): (&Parts, &Forwarded),
        caller: Option<&Arc<Caller>>,
        tokens: &ResumeTokens,
        tool: &str,
    ) {
        let lookup = async {
            let call = self.call(parts, client, bytes::Bytes::new()).for_caller(caller.cloned());
            let mut cursor = None;
            for _ in 0..PAGES_MAX {
                cursor = list_tools(self, &call, tokens, cursor.as_deref()).await;
                if cursor.is_none() || self.observed().has_listed(tool) {
                    return;
                }
            }
        };
        // Facts observed until the timeout stay.
        let _ = tokio::time::timeout(WAIT, lookup).await;
    }
}

/// Reads one page. Returns the cursor of the next one, as JSON.
async fn list_tools(
    upstream: &Upstream,
    call: &Template,
    tokens: &ResumeTokens,
    cursor: Option<&str>,
) -> Option<String> {
    let id = synthetic::own_id();
    let params = cursor.map(|cursor| format!(r#""cursor":{cursor}"#)).unwrap_or_default();
    let request = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"tools/list","params":{{{params}}}}}"#);
    let response = upstream.send(&synthetic::post(call, request.into_bytes())).await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    messages(response, PAGE_MAX).await?.iter().find_map(|message| {
        let ToolList { tools, .. } = ToolList::of(message, |name| tokens.tools.contains(name));
        upstream.observed().record_tools(tools);
        jsonrpc::member(message, &["result", "nextCursor"]).filter(|cursor| *cursor != "null").map(str::to_owned)
    })
}
