//! Tasks of the extension [`io.modelcontextprotocol/tasks`] at 2026-07-28: their requests, their
//! state, and their messages.
//!
//! A task is a call whose client gets a handle in place of the result, and polls for the state.
//! Owned here: the declaration of a client, the requests `tasks/*`, the state between the handle
//! and the outcome, and the proxy's messages for them. Absent: the promotion of a call to a task
//! ([`stream`](super::stream)), and the search for a task's stream (the event log).
//!
//! [`io.modelcontextprotocol/tasks`]: https://github.com/modelcontextprotocol/ext-tasks

mod discovery;
pub mod legacy;
mod listen;
mod request;
mod rounds;
mod server_ids;
mod state;
mod view;
mod wire;

pub use discovery::{Discovery, with_extension};
pub use listen::{names_tasks, without_own_tasks};
pub use request::{TaskMethod, TaskRequest, declares, handle_of, has_input_responses, task_id_of};
pub use rounds::{Continuation, InputProgress};
pub use server_ids::{owner_of, unwrapped, unwrapped_id, wrapped};
pub use state::{Outcome, Record, TaskState, poll_interval, shortened};
pub use view::{Status, TaskView};
pub use wire::{
    acknowledgement, created, get_request, get_response, header_mismatch, missing_capability, missing_responses,
    unknown_task,
};

/// Name of the extension, in declarations of clients and of servers.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Prefix of the IDs of the proxy's own tasks.
pub const ID_PREFIX: &str = "mrt1.";
