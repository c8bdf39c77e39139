//! OAuth documents at the server's origin.
//!
//! Absent: documents at other origins, which `check` does not contact, and the findings
//! ([`super::oauth`]).

use serde::Serialize;
use serde_json::Value;

use crate::protocol::protected_resource::WELL_KNOWN;

/// In place of the path of a challenge.
const CHALLENGE: &str = "WWW-Authenticate";

/// An OAuth document of the origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Document {
    /// Path of the document, or `WWW-Authenticate` for a challenge.
    pub path: String,
    /// True if the document names the upstream's own origin.
    pub names_upstream: bool,
    /// True if the upstream's own origin is in the place that `listen.public_url` changes: the
    /// resource of its metadata, or the URL of a challenge.
    pub names_upstream_as_resource: bool,
    /// True if the upstream's own origin is in any other place.
    pub names_upstream_elsewhere: bool,
    /// Resource of the metadata of a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Authorization servers of the resource, or the issuer that the document is of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<String>,
    /// True for metadata of an authorization server that does not list the method `S256`.
    pub lacks_s256: bool,
    /// True if the scopes of the resource have `offline_access`.
    pub lists_offline_access: bool,
}

impl Document {
    /// Reads a document at `path` of the server with this origin.
    pub(super) fn of(path: String, document: &Value, origin: &str) -> Self {
        let texts = |name: &str| -> Vec<String> {
            let listed = document[name].as_array().map(Vec::as_slice).unwrap_or_default();
            listed.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let issuer = document["issuer"].as_str().map(str::to_owned);
        let resource = document["resource"].as_str().filter(|_| path.starts_with(WELL_KNOWN));
        let in_resource = resource.is_some_and(|resource| has_origin(resource, origin));
        let elsewhere = document.as_object().is_some_and(|members| {
            let others = members.iter().filter(|(name, _)| resource.is_none() || *name != "resource");
            others.into_iter().any(|(_, value)| has_origin(&value.to_string(), origin))
        });
        Self {
            names_upstream: in_resource || elsewhere,
            names_upstream_as_resource: in_resource,
            names_upstream_elsewhere: elsewhere,
            path,
            resource: document["resource"].as_str().map(str::to_owned),
            lacks_s256: issuer.is_some() && !texts("code_challenge_methods_supported").contains(&"S256".to_owned()),
            lists_offline_access: texts("scopes_supported").contains(&"offline_access".to_owned())
                && document["resource"].is_string(),
            issuers: issuer.into_iter().chain(texts("authorization_servers")).collect(),
        }
    }

    /// Reads a challenge of the server with this origin, which refers to metadata.
    pub(super) fn of_challenge(challenge: &str, origin: &str) -> Self {
        let names_upstream = has_origin(challenge, origin);
        let path = CHALLENGE.to_owned();
        Self { path, names_upstream, names_upstream_as_resource: names_upstream, ..Self::default() }
    }

    /// Returns true for metadata of an authorization server.
    pub(super) fn is_of_issuer(&self) -> bool {
        self.resource.is_none() && !self.issuers.is_empty()
    }
}

/// Returns true if a text contains a URL of this origin.
fn has_origin(text: &str, origin: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let ends =
        |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_'));
    text.match_indices(origin).any(|(at, _)| ends(&text[at + origin.len()..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_origin_is_matched_whole() {
        let origin = "http://a.test:3000";
        for (text, named) in [
            (r#"{"issuer":"http://a.test:3000"}"#, true),
            ("http://A.test:3000/x", true),
            ("http://a.test:30001/x", false),
            ("http://a.test", false),
            ("https://a.test:3000", false),
        ] {
            assert_eq!(has_origin(text, origin), named, "{text}");
        }
        assert!(!has_origin("http://a.test:3000", "http://a.test"));
    }

    #[test]
    fn the_resource_is_distinguished_from_all_else() {
        let origin = "http://a.test";
        let resource = format!("{WELL_KNOWN}/mcp");
        for (path, document, as_resource, elsewhere) in [
            (&*resource, json!({"resource": "http://a.test/mcp"}), true, false),
            (&*resource, json!({"resource": "https://p/mcp", "authorization_servers": ["http://a.test"]}), false, true),
            (&*resource, json!({"resource": "http://a.test/mcp", "jwks_uri": "http://a.test/keys"}), true, true),
            ("/.well-known/oauth-authorization-server", json!({"issuer": "http://a.test"}), false, true),
            ("/.well-known/openid-configuration", json!({"resource": "http://a.test/mcp"}), false, true),
            (&*resource, json!({"resource": "https://p/mcp"}), false, false),
        ] {
            let found = Document::of(path.to_owned(), &document, origin);
            let named = (found.names_upstream_as_resource, found.names_upstream_elsewhere);
            assert_eq!(named, (as_resource, elsewhere), "{path} {document}");
            assert_eq!(found.names_upstream, as_resource || elsewhere, "{path} {document}");
        }
    }
}
