//! Codes of JSON-RPC errors, each with the clause that defines it.
//!
//! [JSON-RPC 2.0, section 5.1] defines the first five. The last four are the proxy's own, for the
//! errors of `docs/errors.md`.
//!
//! [JSON-RPC 2.0, section 5.1]: https://www.jsonrpc.org/specification#error_object

/// The body is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The message is no valid request.
pub const INVALID_REQUEST: i64 = -32600;
/// The method does not exist.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// A parameter is missing or invalid.
pub const INVALID_PARAMS: i64 = -32602;
/// The request has failed at the server.
pub const INTERNAL_ERROR: i64 = -32603;

/// The resource does not exist ([MCP 2025-11-25, resources]). From 2026-07-28 on the code is
/// [`INVALID_PARAMS`].
///
/// [MCP 2025-11-25, resources]: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#error-handling
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The user must first open the URLs in the error's data ([MCP 2025-11-25, elicitation]).
///
/// [MCP 2025-11-25, elicitation]: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#error-handling
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
/// A header differs from the body (MCP 2026-07-28, transports).
pub const HEADER_MISMATCH: i64 = -32020;
/// The client has not declared a capability that the request needs (MCP 2026-07-28, lifecycle).
pub const MISSING_CAPABILITY: i64 = -32021;
/// The server does not support the revision of the request (MCP 2026-07-28, lifecycle).
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// The MCP server has failed.
pub const UPSTREAM_FAILED: i64 = -32010;
/// The call was given up.
pub const CALL_GIVEN_UP: i64 = -32011;
/// The stream or the session does not exist any more.
pub const STREAM_GONE: i64 = -32012;
/// A limit of the proxy was reached.
pub const LIMIT_REACHED: i64 = -32013;
