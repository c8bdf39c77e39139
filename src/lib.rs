//! mcp-resume: a reverse proxy that makes MCP (Model Context Protocol) servers resumable without changing them.
//!
//! It assigns event IDs, logs every upstream message, keeps the upstream call running when the client goes away, and answers
//! the client that comes back. A request's way is the tree's order:
//!
//! ```text
//! client ─► ingress ─► classify ─► upstream call ─► event log ─► delivery ─► client
//!                                                      ▲│
//!                                                      │▼
//!                                                    store
//! ```
//!
//! [`protocol`] is the sans-io core: codecs, identifiers, classification, the stream state machine. [`ingress`] is downstream
//! HTTP, [`upstream`] the call to the MCP server, [`event_log`] the one log of streams, [`store`] where events rest,
//! [`delivery`] the response bodies, [`dialect`] the resumption proposals as adapters over the log. [`sidecar`] puts them together;
//! [`demo`] shows them at work, [`check`] looks at a configuration and at a server before.

pub mod admin;
mod backoff;
#[cfg(feature = "balancer")]
pub mod balancer;
pub mod body;
pub mod check;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod delivery;
pub mod demo;
pub mod descriptors;
pub mod dialect;
pub mod event_log;
pub mod ingress;
pub mod lifecycle;
pub mod log;
pub mod metrics;
pub mod protocol;
mod random;
pub mod server;
pub mod sidecar;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(not(feature = "simulation"))]
mod simulation;
pub mod store;
mod sync;
pub mod tls;
pub mod upstream;
