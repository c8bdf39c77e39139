//! `subscriptions/listen`: the changes that a client subscribes to, and the notifications of a
//! server of 2025-11-25 as the client gets them.

use serde_json::{Map, Value, json};

use crate::bridge::{LISTS, RESOURCE_SUBSCRIPTIONS, SERVER_INFO, SUBSCRIPTION_ID, json_of};
use crate::jsonrpc::{self, RequestId, response};

const RESOURCE_UPDATED: &str = "notifications/resources/updated";
/// Most resources of one subscription. Further ones are not acknowledged.
const MAX_RESOURCES: usize = 256;

/// Changes that a client subscribes to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    lists: [bool; LISTS.len()],
    resources: Vec<String>,
}

impl Filter {
    /// Parses the filter of a request, without the changes that a server with these capabilities
    /// never announces. Returns `None` without a valid filter.
    pub fn of(body: &[u8], capabilities: &Value) -> Option<Self> {
        let requested = jsonrpc::member(body, &["params", "notifications"])?;
        let requested: Map<String, Value> = serde_json::from_str(requested).ok()?;
        let is_declared = |kind: &str, name: &str| capabilities[kind][name] == Value::Bool(true);
        let lists = LISTS.map(|(kind, member, _)| {
            requested.get(member) == Some(&Value::Bool(true)) && is_declared(kind, "listChanged")
        });
        let mut resources = match requested.get(RESOURCE_SUBSCRIPTIONS) {
            Some(uris) => serde_json::from_value::<Vec<String>>(uris.clone()).ok()?,
            None => Vec::new(),
        };
        let mut seen = std::collections::HashSet::new();
        resources.retain(|uri| is_declared("resources", "subscribe") && seen.insert(uri.clone()));
        resources.truncate(MAX_RESOURCES);
        Some(Self { lists, resources })
    }

    /// Returns true if the client would hear of nothing.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && !self.lists.contains(&true)
    }

    /// Returns the URIs of the resources.
    pub fn resources(&self) -> &[String] {
        &self.resources
    }

    /// Leaves out a resource.
    pub fn remove_resource(&mut self, uri: &str) {
        self.resources.retain(|known| known != uri);
    }

    /// Returns true if the client subscribes to this notification.
    pub fn matches(&self, method: &str, message: &[u8]) -> bool {
        if method == RESOURCE_UPDATED {
            let uri = jsonrpc::string_member(message, &["params", "uri"]);
            return uri.is_some_and(|uri| self.resources.iter().any(|known| is_part(&uri, known)));
        }
        LISTS.iter().zip(self.lists).any(|((_, _, known), is_requested)| is_requested && *known == method)
    }

    /// Returns the notifications of all subscribed lists: after a restart of the server each may
    /// have changed.
    pub fn list_changes(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let requested = LISTS.iter().zip(self.lists).filter(|(_, is_requested)| *is_requested);
        requested.map(|((_, _, method), _)| json!({"jsonrpc": "2.0", "method": method}).to_string().into_bytes())
    }

    fn to_json(&self) -> Value {
        let lists = LISTS.iter().zip(self.lists).filter(|(_, is_requested)| *is_requested);
        let mut members: Map<String, Value> =
            lists.map(|((_, member, _), _)| ((*member).to_owned(), true.into())).collect();
        if !self.resources.is_empty() {
            members.insert(RESOURCE_SUBSCRIPTIONS.to_owned(), self.resources.clone().into());
        }
        members.into()
    }
}

/// Returns true if `uri` is this resource or one below it, which a server may name instead.
fn is_part(uri: &str, resource: &str) -> bool {
    uri.strip_prefix(resource).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || resource.ends_with('/'))
}

/// Returns true for a notification that clients get by `subscriptions/listen` alone.
pub fn is_change(method: &str) -> bool {
    method == RESOURCE_UPDATED || LISTS.iter().any(|(_, _, known)| *known == method)
}

/// Writes the first message of a subscription.
pub fn acknowledged(id: &RequestId, filter: &Filter) -> Vec<u8> {
    let params = json!({"notifications": filter.to_json(), "_meta": {SUBSCRIPTION_ID: json_of(id)}});
    json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
        .to_string()
        .into_bytes()
}

/// Returns a notification as the subscription with this ID gets it, or `None` for any other
/// message.
pub fn tagged(message: &[u8], id: &RequestId) -> Option<Vec<u8>> {
    let mut message: Value = serde_json::from_slice(message).ok()?;
    let params = message.as_object_mut()?.entry("params").or_insert_with(|| json!({}));
    let meta = params.as_object_mut()?.entry("_meta").or_insert_with(|| json!({}));
    meta.as_object_mut()?.insert(SUBSCRIPTION_ID.to_owned(), json_of(id));
    Some(message.to_string().into_bytes())
}

/// Writes the result that ends a subscription.
pub fn ended(id: &RequestId, server_info: Option<&Value>) -> Vec<u8> {
    let mut meta = json!({ SUBSCRIPTION_ID: json_of(id) });
    if let Some(info) = server_info {
        meta[SERVER_INFO] = info.clone();
    }
    response::result(id, json!({"resultType": "complete", "_meta": meta}))
}

/// Writes a request of 2025-11-25 that begins or ends the subscription to a resource.
pub fn subscription(id: &str, uri: &str, begins: bool) -> Vec<u8> {
    let method = if begins { "resources/subscribe" } else { "resources/unsubscribe" };
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"uri": uri}}).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(requested: Value, capabilities: Value) -> Option<Filter> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {"notifications": requested}});
        Filter::of(body.to_string().as_bytes(), &capabilities)
    }

    fn parsed(message: Vec<u8>) -> Value {
        serde_json::from_slice(&message).expect("JSON")
    }

    #[test]
    fn changes_that_the_server_declares_are_acknowledged() {
        let requested = json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": false,
            "resourceSubscriptions": ["a:1", "a:1", "a:2"]});
        let declared = json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true, "listChanged": true}});
        let mut filter_ = filter(requested.clone(), declared).expect("a filter");
        assert_eq!(filter_.resources(), ["a:1", "a:2"]);
        filter_.remove_resource("a:2");
        let id = RequestId::String("s".into());
        let expected = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["a:1"]}, "_meta": {SUBSCRIPTION_ID: "s"}});
        assert_eq!(parsed(acknowledged(&id, &filter_))["params"], expected);
        assert_eq!(
            filter_.list_changes().map(parsed).collect::<Vec<_>>(),
            [json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})]
        );
        assert!(filter(requested, json!({})).expect("a filter").is_empty());
        assert_eq!(filter(json!({"resourceSubscriptions": 7}), json!({})), None);
        assert_eq!(filter(json!([]), json!({})), None);
    }

    #[test]
    fn a_notification_is_for_who_asked_and_names_the_subscription() {
        let declared = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
        let filter =
            filter(json!({"toolsListChanged": true, "resourceSubscriptions": ["a:1"]}), declared).expect("a filter");
        let updated = |uri| {
            json!({"jsonrpc": "2.0", "method": RESOURCE_UPDATED, "params": {"uri": uri}}).to_string().into_bytes()
        };
        assert!(
            filter.matches("notifications/tools/list_changed", b"{}")
                && filter.matches(RESOURCE_UPDATED, &updated("a:1/b"))
        );
        assert!(
            !filter.matches(RESOURCE_UPDATED, &updated("a:10"))
                && !filter.matches("notifications/prompts/list_changed", b"{}")
                && !filter.matches(RESOURCE_UPDATED, &updated("b:1"))
        );
        assert!(!is_change("notifications/message") && is_change(RESOURCE_UPDATED));
        let id = RequestId::Number("7".into());
        let tagged = parsed(tagged(&updated("a:1"), &id).expect("a notification"));
        assert_eq!(tagged["params"], json!({"uri": "a:1", "_meta": {SUBSCRIPTION_ID: 7}}));
        assert_eq!(super::tagged(br#"{"jsonrpc":"2.0","method":"x","params":[]}"#, &id), None);
        let info = json!({"name": "s"});
        let expected = json!({"resultType": "complete", "_meta": {SUBSCRIPTION_ID: 7, SERVER_INFO: info}});
        assert_eq!(parsed(ended(&id, Some(&info)))["result"], expected);
    }
}
