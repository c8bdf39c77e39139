//! Offer of tasks: the capability of the server, and the support of each tool.

use crate::jsonrpc;

const CAPABILITY: &str = r#""tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}"#;
const SUPPORT: &str = r#""taskSupport":"optional""#;
const OPTIONAL: &str = r#""optional""#;
const FORBIDDEN: &str = r#""forbidden""#;

/// Returns a result of `initialize` with tasks among the capabilities of the server. Returns `None`
/// if the server has tasks of its own, speaks another revision, or the message is no such result.
/// Every other byte stays.
pub fn offered(message: &[u8]) -> Option<Vec<u8>> {
    if jsonrpc::initialize_result(message)?.protocol_version != super::REVISION {
        return None;
    }
    let capabilities = jsonrpc::member(message, &["result", "capabilities"])?;
    if jsonrpc::member(capabilities.as_bytes(), &["tasks"]).is_some() {
        return None;
    }
    Some(jsonrpc::splice(message, vec![jsonrpc::first_members(message, capabilities, CAPABILITY)?]))
}

/// Returns a result of `tools/list` with task support for each tool that `is_offered` selects, even
/// if its server forbids it. Returns `None` if nothing changes.
pub fn with_support(message: &[u8], is_offered: impl Fn(&str) -> bool) -> Option<Vec<u8>> {
    let tools = jsonrpc::member(message, &["result", "tools"])?;
    let mut splices = Vec::new();
    jsonrpc::for_each_element(tools, |tool| {
        if !jsonrpc::string_member(tool.as_bytes(), &["name"]).is_some_and(|name| is_offered(&name)) {
            return;
        }
        match jsonrpc::member(tool.as_bytes(), &["execution"]) {
            Some(execution) => match jsonrpc::member(execution.as_bytes(), &["taskSupport"]) {
                // The TypeScript SDK writes it for each tool of a server that has no tasks.
                Some(own) if own == FORBIDDEN => splices.push((jsonrpc::span(message, own), OPTIONAL.to_owned())),
                Some(_) => {}
                None => splices.extend(jsonrpc::first_members(message, execution, SUPPORT)),
            },
            None => splices.extend(jsonrpc::first_members(message, tool, &format!(r#""execution":{{{SUPPORT}}}"#))),
        }
    });
    if splices.is_empty() { None } else { Some(jsonrpc::splice(message, splices)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initialized(version: &str, capabilities: &str) -> Vec<u8> {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
        )
        .into_bytes()
    }

    fn listed(tools: &str) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{tools}],"nextCursor":"x"}}}}"#).into_bytes()
    }

    #[test]
    fn tasks_are_offered_at_their_revision_to_clients_of_servers_without() {
        let after = offered(&initialized(super::super::REVISION, r#"{"tools":{}}"#)).expect("an edit");
        assert_eq!(after, initialized(super::super::REVISION, &format!(r#"{{{CAPABILITY},"tools":{{}}}}"#)));
        let after = offered(&initialized(super::super::REVISION, "{ }")).expect("an edit");
        assert_eq!(after, initialized(super::super::REVISION, &format!("{{{CAPABILITY} }}")));
        for other in [
            initialized("2025-06-18", "{}"),
            initialized(super::super::REVISION, r#"{"tasks":{}}"#),
            br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}"#.to_vec(),
            b"[]".to_vec(),
        ] {
            assert_eq!(offered(&other), None, "{}", String::from_utf8_lossy(&other));
        }
    }

    #[test]
    fn the_tools_that_are_offered_say_so() {
        let before = listed(r#"{"name":"a","inputSchema":{}},{"name":"b"},{"name":"c","execution":{}}"#);
        let after = listed(
            r#"{"execution":{"taskSupport":"optional"},"name":"a","inputSchema":{}},{"name":"b"},{"name":"c","execution":{"taskSupport":"optional"}}"#,
        );
        assert_eq!(with_support(&before, |name| name != "b"), Some(after));
        assert_eq!(with_support(&before, |_| false), None);
        let forbidden = listed(r#"{"name":"a","execution":{"taskSupport":"forbidden"}}"#);
        let offered = listed(r#"{"name":"a","execution":{"taskSupport":"optional"}}"#);
        assert_eq!(with_support(&forbidden, |_| true), Some(offered.clone()));
        assert_eq!(with_support(&offered, |_| true), None);
        assert_eq!(with_support(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#, |_| true), None);
    }
}
