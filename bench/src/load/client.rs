//! One MCP client on one connection, usually with a session of its own.

use memchr::memmem;

use super::{Target, expect_ok};
use crate::Result;
use crate::reader::{Reader, only_message};
use crate::script::{Script, call_body};
use crate::wire::Conn;

/// Headers of every request.
const HEADERS: &str = "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n";
const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub(super) struct Client {
    conn: Conn,
    /// For HTTP+SSE, the stream with all messages of a session, which brought the address to post
    /// to.
    inbox: Option<Conn>,
    target: Target,
    /// Path of the requests.
    path: String,
    /// The session's header line, or nothing.
    session: String,
}

impl Client {
    /// Connects and initializes a session; reads take up to `read_size` bytes.
    pub(super) async fn open(target: &Target, read_size: usize) -> Result<Self> {
        let mut client = Self::without_session(target, read_size).await?;
        if target.http_sse {
            client.open_inbox(read_size).await?;
            client.call(INITIALIZE).await?;
            let answer = client.message().await?;
            client.finish_handshake(&answer).await?;
            return Ok(client);
        }
        client.initialize().await?;
        Ok(client)
    }

    /// Opens a session, for all further requests.
    pub(super) async fn initialize(&mut self) -> Result<()> {
        self.session.clear();
        self.post(INITIALIZE).await?;
        let head = self.conn.response().await?;
        expect_ok(head.status, "initialize")?;
        let mut answer = Vec::new();
        self.conn.rest(&mut answer).await?;
        let session = head.session.ok_or("initialize brought no session")?;
        self.session = format!("Mcp-Session-Id: {session}\r\n");
        if self.target.foreign {
            self.finish_handshake(&answer).await?;
        }
        Ok(())
    }

    /// Connects and sends nothing: a client of a server without sessions.
    pub(super) async fn without_session(target: &Target, read_size: usize) -> Result<Self> {
        let conn = Conn::connect(target.addr, read_size).await?;
        Ok(Self { conn, inbox: None, target: target.clone(), path: target.path.clone(), session: String::new() })
    }

    /// Opens the stream of an HTTP+SSE session, whose first event has the address to post to.
    async fn open_inbox(&mut self, read_size: usize) -> Result<()> {
        let mut inbox = Conn::connect(self.target.addr, read_size).await?;
        let (path, host) = (&self.target.path, &self.target.host);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n");
        inbox.write(request.as_bytes()).await?;
        expect_ok(inbox.response().await?.status, "the session's stream")?;
        self.inbox = Some(inbox);
        self.path = String::from_utf8(self.message().await?)?;
        Ok(())
    }

    /// The next message on the session's stream, if no other follows it.
    async fn message(&mut self) -> Result<Vec<u8>> {
        let inbox = self.inbox.as_mut().ok_or("there is no stream of the session")?;
        let mut events = Vec::new();
        loop {
            if !inbox.more(&mut events).await? {
                return Err("the session's stream has ended".into());
            }
            events.retain(|byte| *byte != b'\r');
            if let (true, Ok(message)) = (events.ends_with(b"\n\n"), only_message(&events)) {
                return Ok(message.to_vec());
            }
        }
    }

    /// Posts a message whose response comes on the session's stream.
    async fn call(&mut self, body: &[u8]) -> Result<()> {
        self.post(body).await?;
        expect_ok(self.conn.response().await?.status, "a message")?;
        self.conn.rest(&mut Vec::new()).await
    }

    /// Sends the notification that some servers require before the first call.
    async fn finish_handshake(&mut self, answer: &[u8]) -> Result<()> {
        if memmem::find(answer, br#""protocolVersion":"2025-11-25""#).is_none() {
            return Err(format!("initialize was answered {}", String::from_utf8_lossy(answer)).into());
        }
        self.call(INITIALIZED).await
    }

    /// Resets the connection; `come_back` makes the next one.
    pub(super) fn cut(self) -> Result<Gone> {
        self.conn.cut()?;
        self.inbox.map_or(Ok(()), Conn::cut)?;
        Ok(Gone { target: self.target, session: self.session })
    }

    /// Another connection of the same session.
    pub(super) async fn another(&self, read_size: usize) -> Result<Self> {
        let conn = Conn::connect(self.target.addr, read_size).await?;
        Ok(Self {
            conn,
            inbox: None,
            target: self.target.clone(),
            path: self.path.clone(),
            session: self.session.clone(),
        })
    }

    /// Ends the session, on this connection.
    pub(super) async fn delete(&mut self) -> Result<()> {
        let request = format!(
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n{}{}\r\n",
            self.target.path, self.target.host, self.target.credential, self.session
        );
        self.conn.write(request.as_bytes()).await?;
        expect_ok(self.conn.response().await?.status, "a DELETE")?;
        self.conn.rest(&mut Vec::new()).await
    }

    /// Sends a call whose response must be JSON, and appends it to `out`. A foreign server may
    /// respond with an event stream of one message.
    pub(super) async fn json(&mut self, id: u64, script: &Script, out: &mut Vec<u8>) -> Result<()> {
        if self.inbox.is_some() {
            self.call(&call_body(id, script)?).await?;
            out.extend_from_slice(&self.message().await?);
            return Ok(());
        }
        self.post(&call_body(id, script)?).await?;
        let head = self.conn.response().await?;
        expect_ok(head.status, "a call")?;
        if !head.event_stream {
            return self.conn.rest(out).await;
        }
        let mut events = Vec::new();
        self.conn.rest(&mut events).await?;
        out.extend_from_slice(only_message(&events)?);
        Ok(())
    }

    /// Sends a call whose response must be an event stream, and reads its head.
    pub(super) async fn stream(&mut self, id: u64, script: &Script) -> Result<()> {
        if self.target.foreign
            && let Some(conn) = self.conn.unless_open(self.target.addr).await?
        {
            // The client has waited for other clients for longer than the server's idle timeout.
            self.conn = conn;
        }
        if self.inbox.is_some() {
            return self.call(&call_body(id, script)?).await;
        }
        self.post(&call_body(id, script)?).await?;
        self.event_stream("a call").await
    }

    /// Requests the events after `last`, and reads the head.
    pub(super) async fn resume(&mut self, last: &str) -> Result<()> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n{}{}Last-Event-ID: {last}\r\n\r\n",
            self.target.path, self.target.host, self.target.credential, self.session
        );
        self.conn.write(request.as_bytes()).await?;
        self.event_stream("a resume").await
    }

    /// Reads the available events of the stream; returns their number, or `None` once the response
    /// body has ended.
    pub(super) async fn read(&mut self, reader: &mut Reader) -> Result<Option<u64>> {
        if self.target.foreign && reader.answered {
            // A resumed stream may stay open for ever.
            return Ok(None);
        }
        let more = match &mut self.inbox {
            Some(inbox) => {
                let more = inbox.more(reader.buf()).await?;
                reader.buf().retain(|byte| *byte != b'\r');
                more
            }
            None => self.conn.more(reader.buf()).await?,
        };
        let events = reader.take()?;
        Ok((more || events > 0).then_some(events))
    }

    /// True if its server is a foreign one.
    pub(super) fn foreign(&self) -> bool {
        self.target.foreign
    }

    /// A reader of the response to request `id` from this client's server.
    pub(super) fn reader(&self, id: u64) -> Reader {
        Reader::new(id).with_foreign(self.target.foreign)
    }

    /// Appends the rest of the response to `out`, with any content.
    pub(super) async fn rest(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.conn.rest(out).await
    }

    /// Number of reads of the socket that returned bytes.
    pub(super) fn reads(&self) -> u64 {
        self.inbox.as_ref().unwrap_or(&self.conn).reads()
    }

    async fn event_stream(&mut self, what: &str) -> Result<()> {
        let head = self.conn.response().await?;
        expect_ok(head.status, what)?;
        if head.event_stream { Ok(()) } else { Err(format!("{what} was not answered with an event stream").into()) }
    }

    async fn post(&mut self, body: &[u8]) -> Result<()> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{HEADERS}{}{}Content-Length: {}\r\n\r\n",
            self.path,
            self.target.host,
            self.target.credential,
            self.session,
            body.len()
        );
        self.conn.write(&[head.as_bytes(), body].concat()).await
    }
}

/// A client without a connection.
pub(super) struct Gone {
    target: Target,
    session: String,
}

impl Gone {
    /// Reconnects in the same session, or in a new one if a session is bound to its stream.
    pub(super) async fn come_back(&self, read_size: usize) -> Result<Client> {
        if self.target.http_sse {
            return Client::open(&self.target, read_size).await;
        }
        let conn = Conn::connect(self.target.addr, read_size).await?;
        let (target, path) = (self.target.clone(), self.target.path.clone());
        Ok(Client { conn, inbox: None, target, path, session: self.session.clone() })
    }

    /// True if its server is a foreign one.
    pub(super) fn foreign(&self) -> bool {
        self.target.foreign
    }
}
