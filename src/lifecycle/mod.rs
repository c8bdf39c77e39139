//! The phases of a process as its clients see them: ready, draining, ended.

pub mod drain;
pub mod readiness;
