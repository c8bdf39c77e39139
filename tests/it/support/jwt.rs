//! Tokens that claim a subject, and the questions the proxy asks about them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::upstream::{Call, Upstream};

/// An `Authorization` with a JWT of the issuer `i` for `sub`. Its signature is good in the eyes of
/// a test that says so.
pub(crate) fn bearer(sub: &str, serial: u32) -> String {
    signed(sub, serial, &format!("signature{serial}"))
}

/// Does as [`bearer`], with a token that was issued to a client.
pub(crate) fn bearer_of_client(sub: &str, serial: u32, client: &str) -> String {
    let payload = format!(r#"{{"iss":"i","sub":"{sub}","client_id":"{client}","jti":{serial}}}"#);
    token(&payload, &format!("signature{serial}"))
}

/// Does as [`bearer`], with a token that expires in so many seconds by the machine's clock.
pub(crate) fn bearer_for(sub: &str, secs: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time after 1970");
    token(&format!(r#"{{"iss":"i","sub":"{sub}","exp":{}}}"#, now.as_secs() + secs), "signature")
}

/// Returns a token with this signature.
pub(crate) fn signed(sub: &str, serial: u32, signature: &str) -> String {
    token(&format!(r#"{{"iss":"i","sub":"{sub}","jti":{serial}}}"#), signature)
}

fn token(payload: &str, signature: &str) -> String {
    let parts =
        [r#"{"alg":"none of the proxy's business"}"#, payload, signature].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("Bearer {}", parts.join("."))
}

/// Validation of tokens by an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Verifies signatures.
    Verifies,
    /// Accepts any token.
    Accepts,
}

impl Upstream {
    /// Answers the next question about `token`, which is good, as far as it goes; asserts that it
    /// is one.
    pub(crate) async fn judge(&mut self, token: &str, judge: Judge) {
        let questions = if judge == Judge::Verifies { 3 } else { 2 };
        for question in 0..questions {
            let call = self.question().await;
            let is_given = call.header("authorization") == Some(token);
            assert_eq!(is_given, question != 1, "question {question}");
            assert!(is_given || differs_in_signature(call.header("authorization").unwrap(), token));
            if is_given || judge == Judge::Accepts {
                call.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
            } else {
                call.status(401).await;
            }
        }
    }

    /// The next request, which must be a question of the proxy's own.
    pub(crate) async fn question(&mut self) -> Call {
        let call = self.next().await;
        assert!(["ping", "server/discover"].contains(&call.rpc_method().as_str()), "{}", call.rpc_method());
        call
    }
}

fn differs_in_signature(one: &str, other: &str) -> bool {
    let (one, other) = (one.rsplit_once('.').unwrap(), other.rsplit_once('.').unwrap());
    one.0 == other.0 && one.1 != other.1
}
