//! What replicas that share a store say to each other: one JSON message each.
//!
//! Owned here: the words, and nothing of when they are said (`cluster`). A replica of another version may say what is not known here:
//! that is no error, and passed over.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use super::certificate::CertificateNames;
use super::error::Failure;
use super::ids::{AttachId, Owner, Seq, StreamId};

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the writer of a stream: who reads it at another replica, said when it changes and again while somebody does.
    Reader(Reader),
    /// To a replica where a stream is read: a newer reader is somewhere else.
    Displaced {
        /// The stream.
        stream: StreamId,
        /// Who is not its reader any more.
        attach: AttachId,
    },
    /// To the writer of a stream: how far it is there, which may be further than in the store.
    Where {
        /// Who wants to know.
        from: Owner,
        /// What the answer is to be called.
        number: u64,
        /// The stream.
        stream: StreamId,
    },
    /// How far a stream is that was asked for.
    There {
        /// What the question was called.
        number: u64,
        /// The last event; `None`: there is no such stream.
        upto: Option<Seq>,
    },
    /// To the replica that runs a call: a client has sent it again, elsewhere.
    Repeated {
        /// Who waits for the answer.
        from: Owner,
        /// What the answer is to be called.
        number: u64,
        /// The fingerprint of the call.
        call: Base64,
        /// What the record of the call says that its stream would be called.
        #[serde(default)]
        run: Option<StreamId>,
        /// The fingerprint of its body, where the client names it by a key.
        body: Option<Base64>,
    },
    /// What a call that was sent again comes back to.
    Known {
        /// What the question was called.
        number: u64,
        /// The answer.
        known: Known,
    },
    /// A client's request that may concern something at that replica.
    Request {
        /// Who waits for the answer.
        from: Owner,
        /// What the answer is to be called.
        number: u64,
        /// The request.
        request: Handed,
    },
    /// What became of a request.
    Reply {
        /// What it was called.
        number: u64,
        /// `None`: it concerns nothing there.
        reply: Option<Handed>,
    },
}

/// What a replica knows of a call that was sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// A call that nobody comes back to any more: this is another one.
    Another,
    /// Its key was used with another body.
    OtherBody,
    /// It runs, and there is no word of its answer yet: to be asked again.
    Waiting,
    /// The answer is this stream.
    Stream(StreamId),
    /// The answer that passed.
    Answer(Handed),
    /// It failed before there was an answer.
    Failed(Failure),
}

/// A reader of a stream, as its writer must know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// The stream.
    pub stream: StreamId,
    /// Where it reads.
    pub from: Owner,
    /// The reader; `None` once there is none.
    pub attach: Option<AttachId>,
    /// The last event that was written to it.
    pub written: Seq,
    /// The last event that a client confirmed there.
    pub confirmed: Seq,
    /// A client has come back to the stream there.
    pub returned: bool,
    /// How often somebody asked for the stream there, read or not: more than before restarts its timers.
    pub touches: u64,
}

/// The head and the body of an HTTP message: a request and who made it, or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// `METHOD target`, or a status.
    pub line: String,
    /// Of a request: who is at the other end of its connection.
    pub peer: IpAddr,
    /// Of a request: whether that connection is encrypted.
    pub is_secure: bool,
    /// Of a request: the names in the certificate that its client showed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateNames>,
    /// Names and values.
    pub headers: Vec<(String, Base64)>,
    /// The whole body.
    pub body: Base64,
    /// Whose request it is among those it is handed to.
    #[serde(default)]
    pub to: Recipient,
}

/// Which of the replicas that a request is handed to answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipient {
    /// One that it may concern.
    #[default]
    Any,
    /// The one that runs the call, or has the question, that it names.
    Concerned,
    /// The one where its session was opened.
    Home,
    /// Each: its session has ended, and its server has been told.
    SessionOver,
}

impl Handed {
    /// An answer.
    pub fn answer(status: StatusCode, headers: &HeaderMap, body: Vec<u8>) -> Self {
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

/// Bytes as text.
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
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("messages have no maps with keys that are no text")
    }

    /// Reads one; `None` for what is none that is known.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::error::ErrorCode;

    #[test]
    fn a_message_comes_back_as_it_was_and_an_unknown_one_is_none() {
        let request = Handed {
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
                body: None,
            },
            Message::Known { number: 4, known: Known::Stream(stream) },
            Message::Known { number: 5, known: Known::Failed(Failure::after_send(ErrorCode::UpstreamBroke)) },
            Message::Request { from: Owner(7), number: u64::MAX, request: request.clone() },
            Message::Reply { number: 1, reply: Some(request) },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bytes in [&b""[..], b"{}", br#"{"Greeting":{}}"#, b"\xff"] {
            assert_eq!(Message::decode(bytes), None);
        }
    }
}
