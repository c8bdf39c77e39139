//! Translation between the eras, message by message.
//!
//! Owned here: the bytes of each message on either side. Members that mean the same on both sides pass unchanged. Absent: sessions, and calls that wait for
//! the answers of their client (`upstream/bridge/`).

pub mod modern_clients;

/// Revision without sessions.
pub const MODERN: &str = "2026-07-28";
/// Newest revision with sessions.
pub const LEGACY: &str = "2025-11-25";
