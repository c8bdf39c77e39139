//! The question which tools have results with a schema, where no client has listed them.
//!
//! Asked in the name of a call to a tool that may be answered in slices, and once for it: what a list shows is remembered. A list
//! that cannot be had says nothing, and the tool is taken for one with a schema.

use std::time::Duration;

use http::request::Parts;

use super::body::collect;
use super::{Forwarded, Upstream, synthetic};
use crate::config::ResumeTokens;
use crate::protocol::dialect::resume_tokens::Listed;
use crate::protocol::{headers, jsonrpc, sse};
use crate::random;

/// A call waits meanwhile.
const WAIT: Duration = Duration::from_secs(5);
/// The largest page of a list.
const PAGE_MAX: usize = 4 * 1024 * 1024;
/// The most pages: more is no list that ends.
const PAGES_MAX: usize = 32;

impl Upstream {
    /// Asks for the list of tools in the name of the request `parts`, until it has shown `tool` or ends.
    pub async fn find_tool(&self, parts: &Parts, client: &Forwarded, tokens: &ResumeTokens, tool: &str) {
        let asking = async {
            let mut cursor = None;
            for _ in 0..PAGES_MAX {
                cursor = self.list_tools(parts, client, tokens, cursor.as_deref()).await;
                if cursor.is_none() || self.observed().knows(tool) {
                    return;
                }
            }
        };
        // What was learned until then stays.
        let _ = tokio::time::timeout(WAIT, asking).await;
    }

    /// One page: what names the next one, as JSON.
    async fn list_tools(
        &self,
        parts: &Parts,
        client: &Forwarded,
        tokens: &ResumeTokens,
        cursor: Option<&str>,
    ) -> Option<String> {
        // Ids are used once in a session, and the client chooses its own.
        let id = format!("mcp-resume-{:016x}", u64::from_be_bytes(random::bytes()));
        let params = cursor.map(|cursor| format!(r#""cursor":{cursor}"#)).unwrap_or_default();
        let question = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"tools/list","params":{{{params}}}}}"#);
        let call = self.call(parts, client, bytes::Bytes::new());
        let answer = self.send(&synthetic::post(&call, question.into_bytes()), None).await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let is_sse = headers::is_sse(answer.headers());
        let body = collect(answer.into_body(), PAGE_MAX).await.ok()?;
        let messages = if is_sse { events(&body) } else { vec![body] };
        messages.iter().find_map(|message| {
            let Listed { tools, .. } = Listed::of(message, |name| tokens.tools.contains(name));
            self.observed().note_tools(tools);
            jsonrpc::member(message, &["result", "nextCursor"]).filter(|cursor| *cursor != "null").map(str::to_owned)
        })
    }
}

fn events(body: &[u8]) -> Vec<bytes::Bytes> {
    let mut decoder = sse::Decoder::new(PAGE_MAX);
    decoder.feed(bytes::Bytes::copy_from_slice(body));
    std::iter::from_fn(|| decoder.poll_event().ok().flatten()).map(|event| event.data).collect()
}
