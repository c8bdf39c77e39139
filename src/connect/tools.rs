//! Tools by the lists that this session has read: those that only read, and the headers that repeat
//! arguments.
//!
//! The annotation of a tool that only reads is the server's word about itself. It decides whether a
//! call whose connection broke is sent once more. Headers are those of 2026-07-28 on HTTP, which a
//! host on stdio does not know.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use http::HeaderMap;
use serde::Deserialize;

use super::input::HostRequest;
use crate::protocol::bridge::legacy_clients::{self, ParamHeader};
use crate::protocol::jsonrpc::{self, RequestId};
use crate::random;
use crate::sync;

/// Most names that are kept.
const MOST: usize = 4096;

/// Tools that this session has read.
#[derive(Default)]
pub(super) struct Tools {
    read_only: Mutex<HashSet<String>>,
    headers: Mutex<HashMap<String, Vec<ParamHeader>>>,
}

#[derive(Deserialize)]
struct List {
    result: Page,
}

#[derive(Deserialize)]
struct Page {
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(default, rename = "readOnlyHint")]
    read_only: Option<bool>,
}

impl Tools {
    /// Reads a page of the list of tools. What a tool does not say any more is forgotten.
    pub(super) fn read_list(&self, message: &[u8]) {
        self.read_hints(message);
        let mut headers = sync::lock(&self.headers);
        for (name, facts) in legacy_clients::tool_facts(message) {
            match facts.map(|facts| facts.headers).filter(|headers| !headers.is_empty()) {
                None => drop(headers.remove(&name)),
                Some(of_tool) if headers.len() < MOST => drop(headers.insert(name, of_tool)),
                Some(_) => {}
            }
        }
    }

    fn read_hints(&self, message: &[u8]) {
        let Ok(List { result: Page { tools } }) = serde_json::from_slice(message) else { return };
        let mut names = sync::lock(&self.read_only);
        for Tool { name, annotations } in tools {
            if annotations.and_then(|it| it.read_only) != Some(true) {
                names.remove(&name);
            } else if names.len() < MOST {
                names.insert(name);
            }
        }
    }

    /// Returns true if the tool only reads.
    pub(super) fn only_reads(&self, tool: &str) -> bool {
        sync::lock(&self.read_only).contains(tool)
    }

    /// Returns the headers that repeat arguments of a call without a session.
    pub(super) fn headers_of(&self, request: &HostRequest) -> HeaderMap {
        let is_call = request.revision.is_some() && &*request.method == "tools/call";
        let tool = jsonrpc::tool_name(&request.body).filter(|_| is_call);
        let headers = sync::lock(&self.headers);
        let of_tool = tool.and_then(|tool| headers.get(&tool)).map_or(&[][..], Vec::as_slice);
        legacy_clients::param_headers_of_call(of_tool, &request.body).into_iter().collect()
    }
}

/// Returns a request for a page of the list, in the name of the host's `call`.
pub(super) fn list_request(call: &HostRequest, cursor: Option<&str>) -> Option<HostRequest> {
    let meta = jsonrpc::member(&call.body, &["params", "_meta"])?;
    // The progress of the call is not the list's.
    let own = jsonrpc::without_members(meta.as_bytes(), &[], &["progressToken"]);
    let meta = own.and_then(|own| String::from_utf8(own).ok()).unwrap_or_else(|| meta.to_owned());
    let id = RequestId::from_json(&format!(r#""mcp-resume-{:032x}""#, u128::from_be_bytes(random::bytes())))?;
    let cursor = cursor.map_or_else(String::new, |cursor| format!(r#","cursor":{}"#, serde_json::Value::from(cursor)));
    let params = format!(r#"{{"_meta":{meta}{cursor}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"tools/list","params":{params}}}"#, id.to_json());
    let revision = call.revision.clone();
    Some(HostRequest { id, method: "tools/list".into(), body: body.into(), revision })
}
