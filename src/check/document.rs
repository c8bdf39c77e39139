//! OAuth documents at the server's origin.
//!
//! Absent: documents at other origins, which `check` does not contact, and the findings
//! ([`super::oauth`]).

use serde::Serialize;
use serde_json::Value;

/// An OAuth document of the origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Document {
    /// Path of the document, or `WWW-Authenticate` for a challenge.
    pub path: String,
    /// True if the document names the upstream's own origin.
    pub names_upstream: bool,
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
    /// Reads a document at `path`. `names_upstream` is true if it names the upstream's own origin.
    pub(super) fn of(path: String, document: &Value, names_upstream: bool) -> Self {
        let texts = |name: &str| -> Vec<String> {
            let listed = document[name].as_array().map(Vec::as_slice).unwrap_or_default();
            listed.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let issuer = document["issuer"].as_str().map(str::to_owned);
        Self {
            path,
            names_upstream,
            resource: document["resource"].as_str().map(str::to_owned),
            lacks_s256: issuer.is_some() && !texts("code_challenge_methods_supported").contains(&"S256".to_owned()),
            lists_offline_access: texts("scopes_supported").contains(&"offline_access".to_owned())
                && document["resource"].is_string(),
            issuers: issuer.into_iter().chain(texts("authorization_servers")).collect(),
        }
    }

    /// Returns true for metadata of an authorization server.
    pub(super) fn is_of_issuer(&self) -> bool {
        self.resource.is_none() && !self.issuers.is_empty()
    }
}
