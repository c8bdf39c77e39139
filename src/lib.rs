//! mcp-resume: a reverse proxy that makes MCP (Model Context Protocol) servers resumable without
//! changing them.
//!
//! The proxy assigns event IDs, logs every upstream message, keeps the upstream call running when
//! the client disconnects, and replays the missed events when the client resumes. A request passes
//! these modules:
//!
//! ```text
//! client ─► ingress ─► classify ─► upstream call ─► event log ─► delivery ─► client
//!                                                      ▲│
//!                                                      │▼
//!                                                    store
//! ```
//!
//! [`protocol`] is the sans-io core: codecs, identifiers, classification, the stream state machine.
//! [`server`] is the HTTP server, and [`ingress`] handles the requests of clients. [`upstream`]
//! calls the MCP server. [`event_log`] is the one log of streams, and [`store`] its storage.
//! [`delivery`] writes the response bodies, and [`dialect`] adapts the resumption proposals to the
//! log. [`cluster`] connects the replicas that share a store. [`sidecar`] composes all parts;
//! [`demo`] shows them at work, and [`check`] examines a configuration and a server.

pub mod admin;
pub mod channel;
pub mod check;
pub mod cluster;
pub mod connect;
pub mod delivery;
pub mod demo;
pub mod dialect;
pub mod event_log;
mod eviction;
pub mod ingress;
pub mod lifecycle;
pub mod log;
pub mod otel;
pub mod sidecar;
pub mod upstream;

#[cfg(feature = "balancer")]
pub use mcp_resume_balancer as balancer;
#[cfg(feature = "simulation")]
pub use mcp_resume_base::simulation;
#[cfg(not(feature = "simulation"))]
pub(crate) use mcp_resume_base::simulation;
pub(crate) use mcp_resume_base::{backoff, random, sync};
pub use mcp_resume_base::{clock, descriptors};
#[cfg(unix)]
pub use mcp_resume_child as child;
pub use mcp_resume_config as config;
pub use mcp_resume_identity as identity;
pub use mcp_resume_metrics as metrics;
pub use mcp_resume_protocol as protocol;
pub use mcp_resume_server::{self as server, body};
pub use mcp_resume_store as store;
pub use mcp_resume_tls as tls;
