//! The place of the credentials: each request gets its `Authorization` here, and each 401 is
//! reported here.
//!
//! Absent: a sign-in. The headers that the user gives go to the server as static headers
//! (`upstream.headers`), and need no `Authorization` of their own.

use http::HeaderValue;

/// Source of the `Authorization` of requests.
pub trait Credentials: Send + Sync {
    /// Returns true if requests have a credential.
    fn has_any(&self) -> bool;

    /// Returns the value for the next request, or `None` without one.
    fn authorization(&self) -> Option<HeaderValue>;

    /// The server has refused a request that was `sent` with this value, with this challenge.
    fn refused(&self, sent: Option<&HeaderValue>, challenge: Option<&HeaderValue>);

    /// Returns the end of the error that the host gets for a 401 or 403: the cure.
    fn cure(&self) -> String;
}

/// The user's own headers.
pub(super) struct OwnHeaders {
    /// Names of the headers that hold a credential, as the user wrote them.
    pub(super) names: Vec<String>,
}

impl Credentials for OwnHeaders {
    fn has_any(&self) -> bool {
        !self.names.is_empty()
    }

    fn authorization(&self) -> Option<HeaderValue> {
        None
    }

    fn refused(&self, _: Option<&HeaderValue>, _: Option<&HeaderValue>) {}

    fn cure(&self) -> String {
        if self.names.is_empty() {
            return "give a credential: --bearer env:NAME, or --header 'Name: value'".to_owned();
        }
        format!("check the value of the header {}", self.names.join(", "))
    }
}
