//! Every failure that the proxy itself reports, and its meaning for the client.
//!
//! Owned here: the one table of HTTP status, JSON-RPC code, party at fault and text. `failure.rs`
//! makes the messages. Absent: HTTP responses (`server::respond`), and errors of the upstream,
//! which pass unchanged.

mod failure;

use serde::{Deserialize, Serialize};

use super::jsonrpc::code;

pub use failure::{Details, Failure, Subject};

/// Party at fault for an error; on the wire `data.fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The MCP client.
    Client,
    /// This proxy.
    Proxy,
    /// The MCP server or the way to it.
    Upstream,
}

impl Side {
    /// Returns the word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Proxy => "proxy",
            Side::Upstream => "upstream",
        }
    }
}

/// Cause of an error. Records hold its [`Self::label`]. Each code has exactly one row in the tables
/// below, in `docs/errors.md`, and in [`ErrorCode::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum ErrorCode {
    /// The upstream could not be reached: nothing was sent.
    Unreachable,
    /// The upstream did not accept a connection or send a head in time.
    UpstreamTimeout,
    /// The upstream's connection broke, or its HTTP response ended, before the JSON-RPC response.
    UpstreamBroke,
    /// The upstream's response was no JSON-RPC response: content type, encoding, or a malformed
    /// body.
    UpstreamGarbage,
    /// One event of the upstream was larger than `max_event_bytes`.
    EventTooLarge,
    /// The upstream sent an HTTP error after the proxy had committed a response.
    UpstreamStatus,
    /// The upstream redirected a call to another origin.
    UpstreamRedirect,
    /// A web page came in place of the server's response.
    NotTheServer,
    /// A certificate, or a proxy on the way to the server, is refused or refuses.
    WayRefused,
    /// The call took longer than `call_timeout`.
    CallTimedOut,
    /// The client did not resume the call in time, or its session was deleted.
    Abandoned,
    /// The stream or the cursor is gone.
    StreamLost,
    /// The stream was full, and no client read it for `full_wait`.
    BoundReached,
    /// The store is full, or it is required and cannot be reached.
    StoreFailed,
    /// The proxy that ran the call has died, and with it the connection to the upstream.
    OwnerDied,
    /// The body is not JSON.
    NotJson,
    /// JSON, but no JSON-RPC message; or a `Last-Event-ID` that is not the proxy's.
    BadRequest,
    /// The body is larger than `limits.body_bytes`.
    BodyTooLarge,
    /// The array has more messages than `limits.batch`.
    BatchTooLong,
    /// An `Idempotency-Key` was reused with another body.
    KeyReused,
    /// The client accepts neither JSON nor SSE.
    NotAcceptable,
    /// A protocol upgrade was requested.
    UpgradeRefused,
    /// The request's head is larger than `limits.header_bytes`.
    HeadTooLarge,
    /// The proxy drains: the call was not begun, or still ran at the end of the drain.
    Draining,
    /// The request names a host that is not in `listen.allowed_hosts`.
    HostRefused,
    /// The request comes from a page whose origin is not in `listen.allowed_origins`.
    OriginRefused,
    /// The requested stream was begun with another token of the same subject, and the upstream
    /// could not verify this one.
    TokenUnproven,
    /// The body took too long to arrive.
    BodyTooSlow,
    /// The principal has `limits.streams_per_principal` running calls.
    TooManyStreams,
    /// The principal has `limits.detached_calls_per_principal` calls without a client.
    TooManyDetached,
    /// The session has `limits.held_posts_per_session` waiting POSTs.
    TooManyHeld,
    /// The principal holds `streams.max_bytes_per_principal`.
    ShareFull,
    /// All principals together hold `streams.max_bytes_total`, and this one more than its fair
    /// share.
    ProxyFull,
    /// There are `limits.connections` connections, or as many upstream connections as the limit of
    /// open files allows.
    TooManyConnections,
    /// A resume token, or the object named with it, gives this caller no access.
    TokenRefused,
    /// A request of a resumption proposal in an array with other messages.
    NotInBatch,
    /// A balancer sent a request that concerns another replica.
    Misdirected,
    /// The session belongs to another replica's server.
    SessionElsewhere,
    /// The balancer knows no replica that accepts the request.
    NoReplica,
    /// The connection to the replica broke before its response.
    ReplicaBroke,
    /// The client's address has `balance.requests_per_sec`.
    TooManyRequests,
    /// The program of a server on stdio has ended, or has closed its output.
    ServerEnded,
    /// No server on stdio could be started for a session.
    ServerFailed,
    /// A server on stdio did not respond to `initialize` within `upstream.start_secs`.
    ServerSlow,
    /// There is no room for a further server on stdio.
    NoServer,
    /// More waits to be written to a server on stdio than `streams.max_bytes`.
    ChannelFull,
    /// The session has no server on stdio.
    SessionUnknown,
    /// A request of the session with the same ID runs, or was given up and has no response yet.
    IdInUse,
    /// The server requested more input than a task may have: too many rounds, or too much in one
    /// round.
    TooMuchInput,
    /// A header that becomes a variable of a server on stdio has a value that cannot be used.
    VariableRefused,
    /// The session was begun with other values of the headers that become variables.
    OtherVariables,
}

impl ErrorCode {
    /// Every code, in the order of the variants.
    pub const ALL: [ErrorCode; 51] = [
        ErrorCode::Unreachable,
        ErrorCode::UpstreamTimeout,
        ErrorCode::UpstreamBroke,
        ErrorCode::UpstreamGarbage,
        ErrorCode::EventTooLarge,
        ErrorCode::UpstreamStatus,
        ErrorCode::UpstreamRedirect,
        ErrorCode::NotTheServer,
        ErrorCode::WayRefused,
        ErrorCode::CallTimedOut,
        ErrorCode::Abandoned,
        ErrorCode::StreamLost,
        ErrorCode::BoundReached,
        ErrorCode::StoreFailed,
        ErrorCode::OwnerDied,
        ErrorCode::NotJson,
        ErrorCode::BadRequest,
        ErrorCode::BodyTooLarge,
        ErrorCode::BatchTooLong,
        ErrorCode::KeyReused,
        ErrorCode::NotAcceptable,
        ErrorCode::UpgradeRefused,
        ErrorCode::HeadTooLarge,
        ErrorCode::Draining,
        ErrorCode::HostRefused,
        ErrorCode::OriginRefused,
        ErrorCode::TokenUnproven,
        ErrorCode::BodyTooSlow,
        ErrorCode::TooManyStreams,
        ErrorCode::TooManyDetached,
        ErrorCode::TooManyHeld,
        ErrorCode::ShareFull,
        ErrorCode::ProxyFull,
        ErrorCode::TooManyConnections,
        ErrorCode::TokenRefused,
        ErrorCode::NotInBatch,
        ErrorCode::Misdirected,
        ErrorCode::SessionElsewhere,
        ErrorCode::NoReplica,
        ErrorCode::ReplicaBroke,
        ErrorCode::TooManyRequests,
        ErrorCode::ServerEnded,
        ErrorCode::ServerFailed,
        ErrorCode::ServerSlow,
        ErrorCode::NoServer,
        ErrorCode::ChannelFull,
        ErrorCode::SessionUnknown,
        ErrorCode::IdInUse,
        ErrorCode::TooMuchInput,
        ErrorCode::VariableRefused,
        ErrorCode::OtherVariables,
    ];

    /// The status of a reply whose head is not written yet.
    pub const fn http_status(self) -> u16 {
        match self {
            ErrorCode::NotJson
            | ErrorCode::BadRequest
            | ErrorCode::NotInBatch
            | ErrorCode::IdInUse
            | ErrorCode::VariableRefused => 400,
            ErrorCode::StreamLost | ErrorCode::TokenRefused => 200,
            ErrorCode::HostRefused | ErrorCode::OriginRefused | ErrorCode::OtherVariables => 403,
            ErrorCode::SessionElsewhere | ErrorCode::SessionUnknown => 404,
            ErrorCode::NotAcceptable => 406,
            ErrorCode::BodyTooSlow => 408,
            ErrorCode::BodyTooLarge | ErrorCode::BatchTooLong => 413,
            ErrorCode::Misdirected => 421,
            ErrorCode::KeyReused => 422,
            ErrorCode::TooManyStreams
            | ErrorCode::TooManyDetached
            | ErrorCode::ShareFull
            | ErrorCode::TooManyRequests => 429,
            ErrorCode::UpgradeRefused => 501,
            ErrorCode::Unreachable
            | ErrorCode::UpstreamBroke
            | ErrorCode::UpstreamGarbage
            | ErrorCode::EventTooLarge
            | ErrorCode::UpstreamStatus
            | ErrorCode::UpstreamRedirect
            | ErrorCode::NotTheServer
            | ErrorCode::WayRefused
            | ErrorCode::ReplicaBroke
            | ErrorCode::ServerEnded
            | ErrorCode::ServerFailed
            | ErrorCode::TooMuchInput => 502,
            ErrorCode::HeadTooLarge => 431,
            ErrorCode::BoundReached
            | ErrorCode::StoreFailed
            | ErrorCode::Draining
            | ErrorCode::TokenUnproven
            | ErrorCode::TooManyHeld
            | ErrorCode::ProxyFull
            | ErrorCode::TooManyConnections
            | ErrorCode::NoReplica
            | ErrorCode::NoServer
            | ErrorCode::ChannelFull => 503,
            ErrorCode::UpstreamTimeout
            | ErrorCode::CallTimedOut
            | ErrorCode::Abandoned
            | ErrorCode::OwnerDied
            | ErrorCode::ServerSlow => 504,
        }
    }

    /// The JSON-RPC error code.
    pub const fn json_rpc(self) -> i64 {
        match self {
            ErrorCode::Unreachable
            | ErrorCode::UpstreamTimeout
            | ErrorCode::UpstreamBroke
            | ErrorCode::UpstreamGarbage
            | ErrorCode::EventTooLarge
            | ErrorCode::UpstreamStatus
            | ErrorCode::UpstreamRedirect
            | ErrorCode::NotTheServer
            | ErrorCode::WayRefused
            | ErrorCode::TokenUnproven
            | ErrorCode::ServerEnded
            | ErrorCode::ServerFailed
            | ErrorCode::ServerSlow
            | ErrorCode::TooMuchInput => code::UPSTREAM_FAILED,
            ErrorCode::CallTimedOut
            | ErrorCode::Abandoned
            | ErrorCode::OwnerDied
            | ErrorCode::Draining
            | ErrorCode::NoReplica
            | ErrorCode::ReplicaBroke => code::CALL_GIVEN_UP,
            ErrorCode::StreamLost | ErrorCode::SessionElsewhere | ErrorCode::SessionUnknown => code::STREAM_GONE,
            ErrorCode::BoundReached
            | ErrorCode::StoreFailed
            | ErrorCode::BodyTooLarge
            | ErrorCode::BatchTooLong
            | ErrorCode::HeadTooLarge
            | ErrorCode::BodyTooSlow
            | ErrorCode::TooManyStreams
            | ErrorCode::TooManyDetached
            | ErrorCode::TooManyHeld
            | ErrorCode::ShareFull
            | ErrorCode::ProxyFull
            | ErrorCode::TooManyConnections
            | ErrorCode::TooManyRequests
            | ErrorCode::NoServer
            | ErrorCode::ChannelFull => code::LIMIT_REACHED,
            ErrorCode::NotJson => code::PARSE_ERROR,
            ErrorCode::TokenRefused => code::INVALID_PARAMS,
            ErrorCode::BadRequest
            | ErrorCode::NotInBatch
            | ErrorCode::Misdirected
            | ErrorCode::KeyReused
            | ErrorCode::NotAcceptable
            | ErrorCode::UpgradeRefused
            | ErrorCode::HostRefused
            | ErrorCode::OriginRefused
            | ErrorCode::IdInUse
            | ErrorCode::VariableRefused
            | ErrorCode::OtherVariables => code::INVALID_REQUEST,
        }
    }

    /// The text of the error: constant, so that it can never carry a secret.
    pub const fn message(self) -> &'static str {
        match self {
            ErrorCode::Unreachable => "the MCP server could not be reached",
            ErrorCode::UpstreamTimeout => "the MCP server did not answer in time",
            ErrorCode::UpstreamBroke => "the MCP server broke off before it had answered",
            ErrorCode::UpstreamGarbage => "the MCP server's answer is not a JSON-RPC answer",
            ErrorCode::EventTooLarge => "the MCP server sent an event over the size limit",
            ErrorCode::UpstreamStatus => "the MCP server answered with an HTTP error",
            ErrorCode::UpstreamRedirect => "the MCP server redirects to another origin",
            ErrorCode::NotTheServer => "a web page came in place of the MCP server's answer",
            ErrorCode::WayRefused => "there is no trusted way to the MCP server",
            ErrorCode::CallTimedOut => "the call took longer than it may",
            ErrorCode::Abandoned => {
                "the call was abandoned: its client did not resume it in time, or ended the session"
            }
            ErrorCode::StreamLost => "the stream or the place in it is gone",
            ErrorCode::BoundReached => "the stream's buffer is full and no client reads it",
            ErrorCode::StoreFailed => "the proxy's store is full, or cannot be reached",
            ErrorCode::OwnerDied => "the proxy that ran the call has died",
            ErrorCode::NotJson => "the body is not JSON",
            ErrorCode::BadRequest => "the request is not valid here",
            ErrorCode::BodyTooLarge => "the body is larger than this proxy takes",
            ErrorCode::BatchTooLong => "the array has more messages than this proxy takes",
            ErrorCode::KeyReused => "this Idempotency-Key was used with another body",
            ErrorCode::NotAcceptable => "Accept names neither application/json nor text/event-stream",
            ErrorCode::UpgradeRefused => "protocol upgrades are not proxied",
            ErrorCode::HeadTooLarge => "the request's head is larger than this proxy takes",
            ErrorCode::Draining => "the proxy is shutting down",
            ErrorCode::HostRefused => "this proxy does not answer requests for that host",
            ErrorCode::OriginRefused => "this proxy does not answer pages of that origin",
            ErrorCode::TokenUnproven => "the MCP server could not be asked whose this token is",
            ErrorCode::BodyTooSlow => "the body took too long to arrive",
            ErrorCode::TooManyStreams => "this caller has too many streams",
            ErrorCode::TooManyDetached => "this caller has too many calls that it has left",
            ErrorCode::TooManyHeld => "this session has too many messages that wait for the MCP server",
            ErrorCode::ShareFull => "this caller's share of the proxy's memory is full",
            ErrorCode::ProxyFull => "the proxy's memory is full",
            ErrorCode::TooManyConnections => "the proxy has too many connections",
            ErrorCode::TokenRefused => "the resume token opens nothing here",
            ErrorCode::NotInBatch => "this request cannot be sent in an array with others",
            ErrorCode::Misdirected => "another replica of this proxy was meant",
            ErrorCode::SessionElsewhere => {
                "the session is gone: the MCP server that opened it is not behind this proxy"
            }
            ErrorCode::NoReplica => "no replica takes the request now",
            ErrorCode::ReplicaBroke => "the replica broke off before it had answered",
            ErrorCode::TooManyRequests => "this client sends too many requests",
            ErrorCode::ServerEnded => "the MCP server has ended before it had answered",
            ErrorCode::ServerFailed => "the MCP server could not be started",
            ErrorCode::ServerSlow => "the MCP server took too long to start",
            ErrorCode::NoServer => "there is no room for a further MCP server",
            ErrorCode::ChannelFull => "too much waits to be written to the MCP server",
            ErrorCode::SessionUnknown => "session not found",
            ErrorCode::IdInUse => "a request with this ID runs already",
            ErrorCode::TooMuchInput => "the MCP server asked for too much input",
            ErrorCode::VariableRefused => "a header cannot become a variable of the MCP server",
            ErrorCode::OtherVariables => "the session was begun with another value of a header that is a credential",
        }
    }

    /// Returns the party at fault.
    pub const fn side(self) -> Side {
        match self {
            ErrorCode::Unreachable
            | ErrorCode::UpstreamTimeout
            | ErrorCode::UpstreamBroke
            | ErrorCode::UpstreamGarbage
            | ErrorCode::EventTooLarge
            | ErrorCode::UpstreamStatus
            | ErrorCode::UpstreamRedirect
            | ErrorCode::NotTheServer
            | ErrorCode::WayRefused
            | ErrorCode::CallTimedOut
            | ErrorCode::TokenUnproven
            | ErrorCode::ServerEnded
            | ErrorCode::ServerFailed
            | ErrorCode::ServerSlow
            | ErrorCode::ChannelFull
            | ErrorCode::TooMuchInput => Side::Upstream,
            ErrorCode::StoreFailed
            | ErrorCode::OwnerDied
            | ErrorCode::Draining
            | ErrorCode::Misdirected
            | ErrorCode::ProxyFull
            | ErrorCode::TooManyConnections
            | ErrorCode::NoReplica
            | ErrorCode::ReplicaBroke
            | ErrorCode::NoServer => Side::Proxy,
            ErrorCode::Abandoned
            | ErrorCode::StreamLost
            | ErrorCode::BoundReached
            | ErrorCode::NotJson
            | ErrorCode::BadRequest
            | ErrorCode::TokenRefused
            | ErrorCode::NotInBatch
            | ErrorCode::SessionElsewhere
            | ErrorCode::BodyTooLarge
            | ErrorCode::BatchTooLong
            | ErrorCode::HeadTooLarge
            | ErrorCode::BodyTooSlow
            | ErrorCode::TooManyStreams
            | ErrorCode::TooManyDetached
            | ErrorCode::TooManyHeld
            | ErrorCode::ShareFull
            | ErrorCode::KeyReused
            | ErrorCode::NotAcceptable
            | ErrorCode::UpgradeRefused
            | ErrorCode::HostRefused
            | ErrorCode::OriginRefused
            | ErrorCode::TooManyRequests
            | ErrorCode::SessionUnknown
            | ErrorCode::IdInUse
            | ErrorCode::VariableRefused
            | ErrorCode::OtherVariables => Side::Client,
        }
    }

    /// Returns a short constant word for logs and metric labels.
    pub const fn label(self) -> &'static str {
        match self {
            ErrorCode::Unreachable => "unreachable",
            ErrorCode::UpstreamTimeout => "upstream_timeout",
            ErrorCode::UpstreamBroke => "upstream_broke",
            ErrorCode::UpstreamGarbage => "upstream_garbage",
            ErrorCode::EventTooLarge => "event_too_large",
            ErrorCode::UpstreamStatus => "upstream_status",
            ErrorCode::UpstreamRedirect => "upstream_redirect",
            ErrorCode::NotTheServer => "not_the_server",
            ErrorCode::WayRefused => "way_refused",
            ErrorCode::CallTimedOut => "call_timed_out",
            ErrorCode::Abandoned => "abandoned",
            ErrorCode::StreamLost => "stream_lost",
            ErrorCode::BoundReached => "bound_reached",
            ErrorCode::StoreFailed => "store_failed",
            ErrorCode::OwnerDied => "owner_died",
            ErrorCode::NotJson => "not_json",
            ErrorCode::BadRequest => "bad_request",
            ErrorCode::BodyTooLarge => "body_too_large",
            ErrorCode::BatchTooLong => "batch_too_long",
            ErrorCode::KeyReused => "key_reused",
            ErrorCode::NotAcceptable => "not_acceptable",
            ErrorCode::UpgradeRefused => "upgrade_refused",
            ErrorCode::HeadTooLarge => "head_too_large",
            ErrorCode::Draining => "draining",
            ErrorCode::HostRefused => "host_refused",
            ErrorCode::OriginRefused => "origin_refused",
            ErrorCode::TokenUnproven => "token_unproven",
            ErrorCode::BodyTooSlow => "body_too_slow",
            ErrorCode::TooManyStreams => "too_many_streams",
            ErrorCode::TooManyDetached => "too_many_detached",
            ErrorCode::TooManyHeld => "too_many_held",
            ErrorCode::ShareFull => "share_full",
            ErrorCode::ProxyFull => "proxy_full",
            ErrorCode::TooManyConnections => "too_many_connections",
            ErrorCode::TokenRefused => "token_refused",
            ErrorCode::NotInBatch => "not_in_batch",
            ErrorCode::Misdirected => "misdirected",
            ErrorCode::SessionElsewhere => "session_elsewhere",
            ErrorCode::NoReplica => "no_replica",
            ErrorCode::ReplicaBroke => "replica_broke",
            ErrorCode::TooManyRequests => "too_many_requests",
            ErrorCode::ServerEnded => "server_ended",
            ErrorCode::ServerFailed => "server_failed",
            ErrorCode::ServerSlow => "server_slow",
            ErrorCode::NoServer => "no_server",
            ErrorCode::ChannelFull => "channel_full",
            ErrorCode::SessionUnknown => "session_unknown",
            ErrorCode::IdInUse => "id_in_use",
            ErrorCode::TooMuchInput => "too_much_input",
            ErrorCode::VariableRefused => "variable_refused",
            ErrorCode::OtherVariables => "other_variables",
        }
    }
}

impl From<ErrorCode> for &'static str {
    fn from(code: ErrorCode) -> Self {
        code.label()
    }
}

impl TryFrom<String> for ErrorCode {
    type Error = UnknownCode;

    fn try_from(label: String) -> Result<Self, UnknownCode> {
        Self::ALL.into_iter().find(|code| code.label() == label).ok_or(UnknownCode(label))
    }
}

/// Error for a label without an [`ErrorCode`], perhaps of another version.
#[derive(Debug, thiserror::Error)]
#[error("unknown error code {0}")]
pub struct UnknownCode(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_every_code_in_order() {
        // A new variant moves the place of the last one. A new last variant must be named here.
        let last = ErrorCode::OtherVariables;
        assert_eq!(ErrorCode::ALL.len(), last as usize + 1);
        let places: Vec<usize> = ErrorCode::ALL.iter().map(|code| *code as usize).collect();
        assert_eq!(places, (0..=last as usize).collect::<Vec<_>>());
    }
}
