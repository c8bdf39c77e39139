//! Calls to the MCP server. A call outlives the downstream connection that began it.
//!
//! [`Upstream`] is the stack of layers that a request goes through, and [`Pump`] runs one stream's
//! call. Owned here: the transports of the server, the rewriting of requests, and facts observed in
//! responses (accepted credentials, the tokens of one subject, CORS headers). Absent: everything
//! downstream.

mod bridge;
mod caller_probe;
mod direct_call;
mod discovery;
mod forwarded;
mod gateway_errors;
mod gateway_status;
mod inline_task;
mod input;
mod late_responses;
mod metrics;
mod observed;
mod ping_headers;
mod pings;
mod pump;
mod response_observer;
mod revival;
mod server;
mod server_request_refusals;
mod session_names;
mod session_refusals;
mod stack;
mod token_probe;
mod token_subjects;
mod tool_schemas;
mod wait;

pub use bridge::{Bridge, Settings as BridgeSettings};
pub use direct_call::DirectCall;
pub use forwarded::{Forwarded, PublicName};
pub use inline_task::InlineTask;
pub use metrics::Metrics;
pub use observed::{CredentialKind, Credentials, Observed};
pub use ping_headers::PingHeaders;
pub use pump::{Call, ProgressRule, Pump};
pub use response_observer::ResponseObserver;
pub use revival::reopened_session;
pub use server::reach::Reachability;
pub use server::request::{Body, Template};
pub use server::response_body::ResponseBody;
pub use server::synthetic::gap_warning;
pub use server::{Dial, DialFuture, Recognition, Server, SseServer, Wire, probe_open_connections};
pub use session_refusals::Revivals;
pub use stack::{SessionRules, Upstream};
pub use token_probe::ProbeOutcome;
pub use token_subjects::{ProbeGuard, ProbeWaiter, TokenSubjects, TokenUse};
