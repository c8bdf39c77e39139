//! Black-box tests: a scripted upstream, the proxy in this process, a raw client.
//!
//! Each test runs on one thread with the proxy, on real sockets. A name says a behaviour.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests measure how soon the proxy answers; they do not move its time.
#![allow(clippy::disallowed_methods)]

mod access;
mod admin;
mod adoption;
mod bad_input;
mod batch;
mod beats;
mod bounds;
mod bridge;
mod by_get;
mod cancel;
mod check;
mod client_responses;
#[cfg(target_os = "linux")]
mod client_variables;
mod closing;
mod commit;
#[cfg(target_os = "linux")]
mod cors;
mod cut;
mod dialects;
mod drain;
mod error_texts;
mod event_stream;
mod flow;
mod forwarded_headers;
mod gateway_errors;
mod http_version_matrix;
mod issued_sessions;
mod keep_alive;
mod keys;
#[cfg(target_os = "linux")]
mod large_results;
mod late_bodies;
mod late_status;
mod legacy_tasks;
mod long_calls;
mod matrix;
mod metrics;
mod misdirected;
mod modern;
mod origin;
mod passthrough;
mod pings;
mod priming;
mod principal;
mod process;
mod promise;
mod public_url;
mod repeated_ids;
mod repetitions;
mod resume;
mod retry;
mod revival;
mod revival_lists;
mod revival_living;
mod revival_restarts;
mod revival_tokens;
mod session;
mod session_cookies;
mod session_generations;
mod session_names;
mod shared_connection;
mod spelled_ids;
mod sse_recognition;
mod sse_upstream;
mod standalone;
mod starvation;
mod static_headers;
#[cfg(target_os = "linux")]
mod stdio;
#[cfg(target_os = "linux")]
mod stdio_large;
#[cfg(target_os = "linux")]
mod stdio_modern;
#[cfg(target_os = "linux")]
mod stdio_shared;
mod stores;
mod support;
mod support_self_test;
mod task_matrix;
mod task_transcripts;
mod tasks;
mod tls;
mod token_refresh;
mod torture;
mod traces;
mod upstream_close;
mod upstream_death;
mod upstream_wait;
mod well_known;

/// The proxy runs on the test's own thread.
const WORKERS: Option<usize> = None;
