//! Findings about the OAuth documents at the server's origin.
//!
//! Absent: the documents ([`super::document`]).

use super::facts::{Contact, Facts, Guard, PublicResource, Token};
use super::findings::Findings;
use super::verdict::Verdict;
use crate::config::{Config, PublicUrl};
use crate::protocol::protected_resource::metadata_path;

/// Finds what the documents mean for clients of the proxy.
pub(super) fn find(facts: &Facts, config: &Config, found: &mut Findings) {
    let public = config.listen.public_url.as_deref();
    for document in &facts.oauth {
        if document.names_upstream_as_resource && public.is_none() {
            found.add("oauth", &[&document.path]);
        }
        if document.names_upstream_elsewhere {
            let origin = public.map(|public| format!(", such as {}", public.origin()));
            let code = if document.is_of_issuer() { "oauth-issuer" } else { "oauth-elsewhere" };
            found.add(code, &[&document.path, &origin.unwrap_or_default()]);
        }
        found.add_if(document.lists_offline_access, "oauth-offline");
        if document.lacks_s256 {
            found.add("oauth-s256", &[&document.path]);
        }
    }
    if let Some((named, issuer)) = slashed(facts) {
        found.add("oauth-slash", &[&named, &issuer]);
    }
    if let (Some(public), Some(resource)) = (public, &facts.public) {
        find_name(facts, (public, resource), found);
        find_token(facts, (public, resource), found);
    }
}

/// Finds names of the server that clients of the public URL cannot reach, or refuse.
fn find_name(facts: &Facts, (public, resource): (&PublicUrl, &PublicResource), found: &mut Findings) {
    match &resource.resource {
        Some(name) if !resource.is_public => found.add("oauth-foreign", &[name, public, public]),
        Some(_) => {}
        None if wants_token(facts) => found.add("oauth-none", &[&metadata_path(public.path())]),
        None => {}
    }
    if let Some(origin) = &resource.challenge_origin {
        found.add("oauth-challenge", &[origin, public]);
    }
}

/// Returns true if the server asks for a token, or for credentials of an unknown kind.
fn wants_token(facts: &Facts) -> bool {
    let scheme = match (&facts.contact, &facts.anonymous) {
        (Contact::Refused { status: 401, scheme }, _) => scheme,
        (Contact::Speaks, Guard::Refused { status: 401, scheme }) => scheme,
        _ => return false,
    };
    scheme.as_deref().is_none_or(|scheme| ["bearer", "dpop"].iter().any(|token| scheme.eq_ignore_ascii_case(token)))
}

/// Finds whether the server takes a token for the public URL.
fn find_token(facts: &Facts, (public, resource): (&PublicUrl, &PublicResource), found: &mut Findings) {
    let is_refused = Verdict::of(facts) == Verdict::WantsCredentials;
    let is_taken = facts.contact == Contact::Speaks && matches!(facts.anonymous, Guard::Refused { .. });
    match &resource.token {
        Token::None if wants_token(facts) || !facts.oauth.is_empty() => found.add("oauth-untried", &[public]),
        Token::None => {}
        Token::ForAnother { audience } if is_refused => found.add("oauth-refused-other", &[audience, public]),
        _ if is_refused => found.add("oauth-refused", &[public]),
        Token::ForPublicUrl if is_taken => found.add("oauth-taken", &[public]),
        Token::ForAnother { audience } if is_taken => found.add("oauth-taken-other", &[audience, public]),
        Token::Opaque if is_taken => found.add("oauth-taken-opaque", &[public]),
        // The server takes requests without a token as well.
        Token::ForPublicUrl | Token::ForAnother { .. } | Token::Opaque => {}
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
        let of = |document: Value| Document::of("/x".to_owned(), &document, "http://none.test");
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
