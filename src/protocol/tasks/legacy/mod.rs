//! Tasks of the revision [2025-11-25]: the client requests one with `params.task`, and reads the
//! outcome by `tasks/result`.
//!
//! Owned here: the offer in the results of `initialize` and `tools/list`, the request for a task,
//! the mark of a task's messages, and the messages that the proxy writes. Absent: the state of a
//! task, which is the state of its call's stream ([`stream`](crate::stream)).
//!
//! [2025-11-25]: https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks

mod offer;
mod related;
mod request;
mod wire;

pub use offer::{offered, with_support};
pub use related::tagged;
pub use request::{TaskParams, task_params, without_task};
pub use wire::{cancelled, cannot_cancel, created, got, status_changed, unsupported, withdrawn};

/// Name of the only revision with these tasks.
pub const REVISION: &str = "2025-11-25";
