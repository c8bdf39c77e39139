//! The probe of the server as a resource that asks for tokens: its OAuth documents, and what a
//! client of the proxy sees of it under `listen.public_url`.
//!
//! Absent: the findings that follow ([`super::oauth`]), and the check of a token, whose claims are
//! read and not verified.

use http::HeaderValue;
use http::Uri;
use http::header::AUTHORIZATION;
use serde_json::Value;

use super::document::Document;
use super::exchange::Observation;
use super::facts::{PublicResource, Token, printable_words};
use super::requests;
use super::state::Probe;
use crate::clock;
use crate::config::{Config, PublicUrl};
use crate::protocol::jwt;
use crate::protocol::origin;
use crate::protocol::protected_resource::rewrite_challenge;

const METADATA: [&str; 3] = ["oauth-protected-resource", "oauth-authorization-server", "openid-configuration"];

impl Probe<'_> {
    /// Returns the OAuth documents of the origin, and a challenge that refers to one.
    pub(super) async fn oauth(&self, config: &Config, first: Option<&Observation>) -> Vec<Document> {
        let url = &config.upstream.url;
        let mut found = Vec::new();
        let challenge = first.and_then(|response| response.challenge.as_deref());
        if let Some(challenge) = challenge.filter(|text| text.contains("resource_metadata")) {
            found.push(Document::of_challenge(challenge, &url.origin()));
        }
        let deadline = clock::now() + self.timeouts.response;
        for name in METADATA {
            for suffix in [url.endpoint_path(), ""] {
                let path = format!("/.well-known/{name}{suffix}");
                let left = deadline.saturating_duration_since(clock::now());
                let document = self.client.document(requests::page(&path, false), left).await;
                if let Some(document) = document.filter(Value::is_object) {
                    found.push(Document::of(path, &document, &url.origin()));
                }
            }
        }
        found
    }

    /// Returns what clients of `listen.public_url` see of the server, or `None` without that key.
    pub(super) async fn public_resource(&self, first: Option<&Observation>) -> Option<PublicResource> {
        let public = self.public.as_deref()?;
        let metadata = self.client.public_metadata(self.timeouts.response).await;
        let resource = metadata.as_ref().and_then(|metadata| metadata["resource"].as_str());
        Some(PublicResource {
            is_public: resource.is_some_and(|resource| public.is_named_by(resource)),
            resource: resource.map(printable_words),
            challenge_origin: first.and_then(|response| self.foreign_challenge(response)),
            token: self.options.headers.get(AUTHORIZATION).map_or(Token::None, |token| token_of(token, public)),
        })
    }

    /// Returns the origin of the metadata that a challenge names, if it is not that of
    /// `listen.public_url`. The client has put the public URL in place of the server's own.
    pub(super) fn foreign_challenge(&self, response: &Observation) -> Option<String> {
        let (public, challenge) = (self.public.as_deref()?, response.challenge.as_deref()?);
        let mut foreign = None;
        let _ = rewrite_challenge(&HeaderValue::from_str(challenge).ok()?, |url| {
            let named = url.parse::<Uri>().ok().as_ref().and_then(origin::of);
            if named.as_deref() != Some(&*public.origin()) {
                foreign = Some(printable_words(named.as_deref().unwrap_or("an unreadable URL")));
            }
            None
        });
        foreign
    }
}

/// Returns the kind of a token by its claimed audience. No signature is verified.
fn token_of(authorization: &HeaderValue, public: &PublicUrl) -> Token {
    let audiences = jwt::audiences(authorization);
    match audiences.first() {
        None => Token::Opaque,
        Some(_) if audiences.iter().any(|audience| public.is_named_by(audience)) => Token::ForPublicUrl,
        Some(audience) => Token::ForAnother { audience: printable_words(audience) },
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    #[test]
    fn a_token_is_for_the_audience_that_it_names() {
        let public: PublicUrl = "https://mcp.example.com/mcp".parse().unwrap();
        let of = |payload: &str| {
            let parts = [r#"{"alg":"RS256"}"#, payload, "signature"].map(|part| URL_SAFE_NO_PAD.encode(part));
            token_of(&HeaderValue::from_str(&format!("Bearer {}", parts.join("."))).unwrap(), &public)
        };
        assert_eq!(of(r#"{"aud":"https://mcp.example.com/mcp"}"#), Token::ForPublicUrl);
        assert_eq!(of(r#"{"aud":["api","https://mcp.example.com/mcp/"]}"#), Token::ForPublicUrl);
        assert_eq!(of(r#"{"aud":["api"]}"#), Token::ForAnother { audience: "api".to_owned() });
        assert_eq!(of(r#"{"sub":"me"}"#), Token::Opaque);
        assert_eq!(token_of(&HeaderValue::from_static("Bearer opaque"), &public), Token::Opaque);
    }
}
