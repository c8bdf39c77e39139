//! The store behind the log, and what it has of a stream.

pub(in crate::event_log) mod schema;
