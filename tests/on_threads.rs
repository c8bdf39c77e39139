//! Black-box tests on the runtime that ships: the proxy has threads of its own, and a resume, a
//! retry or a cancel comes to another one than the call it is about, or a call to another one than
//! the pipes of its server. The cases are those of `tests/it`, which have the proxy on their own
//! thread.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests measure how soon the proxy answers; they do not move its time.
#![allow(clippy::disallowed_methods)]
// Some of the support is for the cases that are not here.
#![allow(dead_code, unused_imports)]

#[path = "it/cancel.rs"]
mod cancel;
#[path = "it/client_responses/mod.rs"]
mod client_responses;
#[path = "it/resume/mod.rs"]
mod resume;
#[path = "it/retry.rs"]
mod retry;
#[path = "it/session.rs"]
mod session;
#[path = "it/standalone.rs"]
mod standalone;
#[cfg(target_os = "linux")]
#[path = "it/stdio_modern.rs"]
mod stdio_modern;
#[cfg(target_os = "linux")]
#[path = "it/stdio_shared.rs"]
mod stdio_shared;
#[path = "it/support/mod.rs"]
mod support;

/// The next connection is served by the next of these.
const WORKERS: Option<usize> = Some(2);
