//! Identities of callers, and of the owners of streams: keyed hashes of credentials, and never the
//! credentials.
//!
//! Part of mcp-resume, without a stable interface of its own.

mod binding;
mod principal;

pub use binding::{Binding, SessionHash};
pub use principal::{PresentedCredentials, Principal, Principals, Subject};
