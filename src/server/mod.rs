//! HTTP servers: accept, TLS, HTTP version, connection, connection limit, error responses.

mod accept;
pub mod connection;
mod connection_limit;
mod http2;
pub mod listener;
pub mod respond;
mod stall;
mod workers;

pub use accept::{Accept, Handle, Limits, Protocols, serve};
pub use connection::Connection;
pub use connection_limit::Seats;
pub use workers::{Accepted, distribute, start_worker};
