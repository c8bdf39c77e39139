//! Black-box tests: a scripted upstream, the proxy in this process, a raw client.
//!
//! Each test runs on one thread with the proxy, on real sockets. A name says a behaviour.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests measure how soon the proxy answers; they do not move its time.
#![allow(clippy::disallowed_methods)]

mod access;
mod admin;
mod answers;
mod bad_input;
mod batch;
mod bounds;
mod cancel;
mod check;
mod closing;
mod commit;
mod cut;
mod dialects;
mod drain;
mod elsewhere;
mod exchange;
mod flow;
mod keys;
mod kit;
mod matrix;
mod metrics;
mod modern;
mod origin;
mod pairings;
mod principal;
mod process;
mod refreshed;
mod resume;
mod retry;
mod session;
mod shared_connection;
mod standalone;
mod starved;
mod stores;
mod support;
mod tls;
mod torture;
mod upstream_close;
mod upstream_death;
mod well_known;
mod wrapped;

/// The proxy runs on the test's own thread.
const WORKERS: Option<usize> = None;
