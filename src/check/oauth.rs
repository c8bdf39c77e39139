//! Findings about the OAuth documents at the server's origin.
//!
//! Absent: the documents ([`super::document`]).

use super::facts::Facts;
use super::findings::Findings;
use super::verdict::Verdict;
use crate::config::{Config, PublicUrl};

/// Finds what the documents mean for clients of the proxy.
pub(super) fn find(facts: &Facts, config: &Config, found: &mut Findings) {
    let public = config.listen.public_url.as_deref();
    for document in facts.oauth.iter().filter(|document| document.names_upstream) {
        match public {
            None => found.add("oauth", &[&document.path]),
            Some(public) if document.is_of_issuer() => found.add("oauth-issuer", &[&document.path, &public.origin()]),
            // The proxy gives it the public name.
            Some(_) => {}
        }
    }
    for document in &facts.oauth {
        found.add_if(document.lists_offline_access, "oauth-offline");
        if document.lacks_s256 {
            found.add("oauth-s256", &[&document.path]);
        }
    }
    if let Some((named, issuer)) = slashed(facts) {
        found.add("oauth-slash", &[&named, &issuer]);
    }
    if let Some(public) = public.filter(|_| !facts.oauth.is_empty()) {
        find_token(facts, public, found);
    }
}

/// Finds whether the server takes a token for the public URL.
fn find_token(facts: &Facts, public: &PublicUrl, found: &mut Findings) {
    if !facts.with_headers {
        found.add("oauth-untried", &[public]);
    } else if Verdict::of(facts) == Verdict::WantsCredentials {
        found.add("oauth-refused", &[public]);
    }
}

/// Returns an authorization server in the metadata of the resource and the issuer of the same name,
/// if they differ by a slash at the end. Clients compare them.
fn slashed(facts: &Facts) -> Option<(String, String)> {
    let (issuers, resources): (Vec<_>, Vec<_>) = facts.oauth.iter().partition(|document| document.is_of_issuer());
    let named = resources.iter().flat_map(|document| &document.issuers);
    let differs = |named: &String, issuer: &String| {
        named != issuer && named.trim_end_matches('/') == issuer.trim_end_matches('/')
    };
    let mut pairs =
        named.flat_map(|named| issuers.iter().flat_map(|issuer| &issuer.issuers).map(move |one| (named, one)));
    pairs.find(|(named, issuer)| differs(named, issuer)).map(|(named, issuer)| (named.clone(), issuer.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Document;

    #[test]
    fn a_document_is_of_a_resource_or_of_an_issuer() {
        let of = |document: Value| Document::of("/x".to_owned(), &document, false);
        let resource = of(json!({
            "resource": "http://a/mcp", "authorization_servers": ["http://as"], "scopes_supported": ["a", "offline_access"],
        }));
        assert!(!resource.is_of_issuer() && resource.lists_offline_access && !resource.lacks_s256);
        let issuer = of(json!({"issuer": "http://as/", "scopes_supported": ["offline_access"]}));
        assert!(issuer.is_of_issuer() && issuer.lacks_s256 && !issuer.lists_offline_access);
        let good = of(json!({"issuer": "http://as", "code_challenge_methods_supported": ["plain", "S256"]}));
        assert!(!good.lacks_s256);
        let mut facts = Facts::unknown("http://a/mcp".to_owned());
        facts.oauth = vec![resource.clone(), issuer];
        assert_eq!(slashed(&facts), Some(("http://as".to_owned(), "http://as/".to_owned())));
        facts.oauth = vec![resource, good];
        assert_eq!(slashed(&facts), None);
        assert_eq!(of(json!({"resource": 7, "issuer": []})), Document { path: "/x".to_owned(), ..Document::default() });
    }
}
