//! Messages between replicas that share a store, in JSON.
//!
//! Owned here: the wire form. Absent: the time of sending, which the cluster decides. A replica of
//! another version may send a message that is unknown here: it is skipped, and is no error.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use super::certificate::CertificateNames;
use super::error::Failure;
use super::ids::{AttachId, Owner, Seq, StreamId};

/// One message. The names of its variants and fields are on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the writer of a stream: its reader at another replica. Sent on each change, and again
    /// while the stream is read.
    Reader(Reader),
    /// To a replica with a reader of the stream: a newer reader is at another replica.
    Displaced {
        /// The stream.
        stream: StreamId,
        /// The displaced reader.
        attach: AttachId,
    },
    /// To the writer of a stream: requests its tail, which may be ahead of the store.
    Where {
        /// The requesting replica.
        from: Owner,
        /// The number of the reply.
        number: u64,
        /// The stream.
        stream: StreamId,
    },
    /// The reply to [`Message::Where`].
    There {
        /// The number from the request.
        number: u64,
        /// The last event, or `None` if there is no such stream.
        upto: Option<Seq>,
    },
    /// To the replica that runs a call: a client has repeated it at another replica, with the same
    /// `Idempotency-Key`.
    Repeated {
        /// The replica that waits for the reply.
        from: Owner,
        /// The number of the reply.
        number: u64,
        /// The fingerprint of the call.
        call: Base64,
        /// The ID of the call's stream by its claim record. `None` in a message of an earlier
        /// version.
        #[serde(default)]
        run: Option<StreamId>,
        /// The fingerprint of the call's body. `None` in a message of an earlier version, about a
        /// call without a key: the reply is [`RepeatedCall::Nothing`] then.
        body: Option<Base64>,
    },
    /// The reply to [`Message::Repeated`].
    Known {
        /// The number from the request.
        number: u64,
        /// The state of the call.
        known: RepeatedCall,
    },
    /// A client's request that may concern a stream or session of that replica.
    Request {
        /// The replica that waits for the reply.
        from: Owner,
        /// The number of the reply.
        number: u64,
        /// The request.
        request: HttpMessage,
    },
    /// The reply to [`Message::Request`].
    Reply {
        /// The number of the request.
        number: u64,
        /// The HTTP response, or `None` if the request concerns nothing there.
        reply: Option<HttpMessage>,
    },
}

/// The state of a repeated call at the replica that ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepeatedCall {
    /// No such call is known.
    Nothing,
    /// The earlier call was released: the repeated one is a new call.
    Another,
    /// The key was used with another body.
    OtherBody,
    /// The call runs without a response yet: the request is to be repeated.
    Waiting,
    /// The response is this stream.
    Stream(StreamId),
    /// The response passed as it is.
    Answer(HttpMessage),
    /// The call failed before it had a response.
    Failed(Failure),
}

/// The reader of a stream at another replica, for the writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// The stream.
    pub stream: StreamId,
    /// The replica of the reader.
    pub from: Owner,
    /// The reader, or `None` if it has gone.
    pub attach: Option<AttachId>,
    /// The last event that was written to the reader.
    pub written: Seq,
    /// The last event that a client confirmed at that replica.
    pub confirmed: Seq,
    /// True if a client has resumed the stream at that replica.
    pub returned: bool,
    /// Number of requests for the stream at that replica, with or without a read. An increase
    /// restarts the stream's timers.
    pub touches: u64,
}

/// The head and the body of an HTTP request, with its sender, or of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpMessage {
    /// `METHOD target`, or the status of a response.
    pub line: String,
    /// Peer address of the connection of a request.
    pub peer: IpAddr,
    /// True if the connection of a request is encrypted.
    pub is_secure: bool,
    /// Names in the client certificate of a request, or `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateNames>,
    /// Header names and values.
    pub headers: Vec<(String, Base64)>,
    /// The whole body.
    pub body: Base64,
    /// The replica that responds to a request, among its recipients.
    #[serde(default)]
    pub to: Recipient,
}

/// The replica that responds to a forwarded request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipient {
    /// Any replica that the request may concern.
    #[default]
    Any,
    /// The replica that runs the call, or has the server→client request, that it names.
    Concerned,
    /// The replica that opened its session.
    Home,
    /// Every replica: the session has ended, and its server knows.
    SessionOver,
}

impl HttpMessage {
    /// Returns the message of an HTTP response.
    pub fn of_response(status: StatusCode, headers: &HeaderMap, body: Vec<u8>) -> Self {
        let bytes = |value: &HeaderValue| Base64(value.as_bytes().to_vec());
        Self {
            line: status.as_str().to_owned(),
            peer: std::net::Ipv4Addr::UNSPECIFIED.into(),
            is_secure: false,
            certificate: None,
            headers: headers.iter().map(|(name, value)| (name.as_str().to_owned(), bytes(value))).collect(),
            body: Base64(body),
            to: Recipient::Any,
        }
    }
}

/// Bytes that are base64 on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Base64(pub Vec<u8>);

impl From<Base64> for String {
    fn from(bytes: Base64) -> Self {
        STANDARD.encode(bytes.0)
    }
}

impl TryFrom<String> for Base64 {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Self)
    }
}

impl Message {
    /// Returns the message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("messages have no maps with keys other than text")
    }

    /// Reads a message. Returns `None` if it is malformed or unknown.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn messages_round_trip_and_unknown_ones_are_skipped() {
        let request = HttpMessage {
            line: "POST /mcp".to_owned(),
            peer: std::net::Ipv6Addr::LOCALHOST.into(),
            is_secure: true,
            certificate: None,
            headers: vec![("x".to_owned(), Base64(vec![0xff, 0]))],
            body: Base64(b"{}".to_vec()),
            to: Recipient::Concerned,
        };
        let stream = StreamId::from_bytes([3; 12]);
        for message in [
            Message::Displaced { stream, attach: AttachId(u64::MAX) },
            Message::Where { from: Owner(7), number: 2, stream },
            Message::There { number: 2, upto: Some(Seq(u64::MAX)) },
            Message::There { number: 3, upto: None },
            Message::Repeated {
                from: Owner(7),
                number: 4,
                call: Base64(vec![0xff; 32]),
                run: Some(stream),
                body: Some(Base64(vec![1; 32])),
            },
            Message::Known { number: 4, known: RepeatedCall::Stream(stream) },
            Message::Known { number: 5, known: RepeatedCall::Failed(Failure::after_send(ErrorCode::UpstreamBroke)) },
            Message::Request { from: Owner(7), number: u64::MAX, request: request.clone() },
            Message::Reply { number: 1, reply: Some(request) },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bytes in [&b""[..], b"{}", br#"{"Greeting":{}}"#, b"\xff"] {
            assert_eq!(Message::decode(bytes), None);
        }
    }

    #[test]
    fn a_message_of_an_earlier_version_about_a_call_without_a_key_is_read() {
        let joined =
            br#"{"Repeated":{"from":7,"number":4,"call":"AAEC","body":null,"joined":{"id":"s","principal":"AA=="}}}"#;
        let call = Base64(vec![0, 1, 2]);
        let message = Message::Repeated { from: Owner(7), number: 4, call, run: None, body: None };
        assert_eq!(Message::decode(joined), Some(message));
    }
}
