//! Messages between a client of the revisions with sessions and a server of 2026-07-28.

mod handshake;
mod input;
mod param_headers;
mod request;
mod response;
mod session_name;
mod tool_list;

pub use handshake::{ClientFacts, Discovered};
pub use input::{InputRequest, InputRequired};
pub use param_headers::{ParamHeader, param_headers_of_call};
pub use request::{Round, listen, name_header, translated};
pub use response::{error_of, failed_call, is_header_mismatch, result_as, untagged};
pub use session_name::{is_session_name, new_session_name};
pub use tool_list::{ToolFacts, tool_facts, without_invalid_tools, without_output_schemas};

pub use super::{LEGACY, MAX_ROUNDS, MODERN};
