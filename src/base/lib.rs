//! Time, randomness, locks and the limit of open files: each has one place, so that tests can move
//! the clock and draw from a seed.
//!
//! Part of mcp-resume, without a stable interface of its own.

pub mod backoff;
pub mod clock;
pub mod descriptors;
pub mod random;
pub mod simulation;
pub mod sync;
