//! Sessions that share a channel: their messages, and what they share.

mod sessions;
mod shared_state;
