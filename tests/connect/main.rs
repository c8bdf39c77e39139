//! Black-box tests of `connect`: a host on pipes, the whole of `connect` in this process, and a
//! scripted server. A test's name says a behaviour.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests measure how soon the host has its answer; they do not move its time.
#![allow(clippy::disallowed_methods)]
// Some of the support is for other tests.
#![allow(dead_code, unused_imports)]

mod arguments;
mod cuts;
mod ends;
mod host;
#[cfg(target_os = "linux")]
mod host_process;
mod keys;
mod lists;
mod modern;
mod network;
mod opening;
mod order;
mod path;
mod process;
#[cfg(target_os = "linux")]
mod programs;
mod servers;
mod strangers;
#[path = "../it/support/mod.rs"]
mod support;
#[cfg(target_os = "linux")]
#[path = "../children/table.rs"]
mod table;

use host::Host;
use support::*;

/// The proxy of the support is not used here.
const WORKERS: Option<usize> = None;
