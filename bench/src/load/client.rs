//! One MCP client on one connection, with a session of its own.

use super::{Target, expect_ok};
use crate::Result;
use crate::reader::Reader;
use crate::script::{Script, call_body};
use crate::wire::Conn;

/// Headers every request of a session carries.
const HEADERS: &str = "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n";

pub(super) struct Client {
    conn: Conn,
    target: Target,
    /// The session's header line, or nothing.
    session: String,
}

impl Client {
    /// Connects and initializes a session; reads take up to `read_size` bytes.
    pub(super) async fn open(target: &Target, read_size: usize) -> Result<Self> {
        let conn = Conn::connect(target.addr, read_size).await?;
        let mut client = Self { conn, target: target.clone(), session: String::new() };
        let body = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
        client.post(body).await?;
        let head = client.conn.response().await?;
        expect_ok(head.status, "initialize")?;
        client.conn.rest(&mut Vec::new()).await?;
        let session = head.session.ok_or("initialize brought no session")?;
        client.session = format!("Mcp-Session-Id: {session}\r\n");
        Ok(client)
    }

    /// Resets the connection; `come_back` makes the next one.
    pub(super) fn cut(self) -> Result<Gone> {
        self.conn.cut()?;
        Ok(Gone { target: self.target, session: self.session })
    }

    /// Sends a call whose answer must be JSON, appends that to `out`.
    pub(super) async fn json(&mut self, id: u64, script: &Script, out: &mut Vec<u8>) -> Result<()> {
        self.post(&call_body(id, script)?).await?;
        let head = self.conn.response().await?;
        expect_ok(head.status, "a call")?;
        self.conn.rest(out).await
    }

    /// Sends a call whose answer must be an event stream, reads its head.
    pub(super) async fn stream(&mut self, id: u64, script: &Script) -> Result<()> {
        self.post(&call_body(id, script)?).await?;
        self.event_stream("a call").await
    }

    /// Asks for what follows event `last`, reads the head.
    pub(super) async fn resume(&mut self, last: &str) -> Result<()> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n{}Last-Event-ID: {last}\r\n\r\n",
            self.target.path, self.target.host, self.session
        );
        self.conn.write(request.as_bytes()).await?;
        self.event_stream("a resume").await
    }

    /// Reads what has come of the stream; how many events, or `None` once the response body has ended.
    pub(super) async fn read(&mut self, reader: &mut Reader) -> Result<Option<u64>> {
        let more = self.conn.more(reader.buf()).await?;
        let events = reader.take()?;
        Ok((more || events > 0).then_some(events))
    }

    /// How many reads of the socket brought something.
    pub(super) fn reads(&self) -> u64 {
        self.conn.reads()
    }

    async fn event_stream(&mut self, what: &str) -> Result<()> {
        let head = self.conn.response().await?;
        expect_ok(head.status, what)?;
        if head.event_stream { Ok(()) } else { Err(format!("{what} was not answered with an event stream").into()) }
    }

    async fn post(&mut self, body: &[u8]) -> Result<()> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{HEADERS}{}Content-Length: {}\r\n\r\n",
            self.target.path,
            self.target.host,
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
    /// The same session on a new connection.
    pub(super) async fn come_back(&self, read_size: usize) -> Result<Client> {
        let conn = Conn::connect(self.target.addr, read_size).await?;
        Ok(Client { conn, target: self.target.clone(), session: self.session.clone() })
    }
}
