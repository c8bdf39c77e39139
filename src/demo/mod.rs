//! `mcp-resume demo`: a call that is cut and resumed, shown on the wire.
//!
//! ```text
//! client ── relay ── server                  the same call, first without the proxy: lost
//! client ── relay ── proxy ── server         then through it: every event once
//! ```
//!
//! Everything runs in this process, but over real sockets, and `serve` runs the same proxy. The
//! cuts are TCP resets made by the relay; the proxy has no switch for them. Deliberately absent:
//! anything the proxy would do for this client and not for another.

mod call;
mod client;
mod error;
mod relay;
mod server;
mod transcript;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::oneshot;

use self::call::{COUNT_TO, ReceivedEvents, count};
use self::client::Client;
pub use self::error::Error;
use self::error::SHOW_LIMIT;
use self::relay::Relay;
use self::server::Server;
use self::transcript::Transcript;
use crate::config::{self, Config};
use crate::sidecar;

/// Longest time of the proxy's shutdown after the show.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Cuts of the call that goes directly to the server: one is enough.
const DIRECT_CUTS: [u64; 1] = [3];
/// Cuts of the call through the proxy: one while the tool runs, and one so late that the result
/// comes without a client connection.
const PROXY_CUTS: [u64; 2] = [3, 8];

/// Options of the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of the proxy; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Exit after the show instead of listening on for the reader's own requests. A demo whose
    /// stdout is not a terminal has no reader and exits as well.
    pub once: bool,
}

/// Runs the show, then the proxy alone until ctrl-c. Without a terminal, or with `once`, it ends
/// after the show.
///
/// # Errors
///
/// Any failure that keeps the show from ending with every event delivered exactly once; see
/// [`Error`].
pub async fn run(options: Options) -> Result<(), Error> {
    let server = Server::start().await?;
    let proxy = sidecar::Server::bind(config(&server, &options)?).await?;
    let address = proxy.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = Box::pin(proxy.run(async move {
        // It is closed after the show.
        let _ = stopped.await;
    }));
    let program = async {
        let mut transcript = Transcript::on_stdout();
        let example = show(&server, address, &mut transcript).await?;
        if !options.once && io::stdout().is_terminal() {
            transcript.text(&commands(address, &example))?;
            tokio::signal::ctrl_c().await?;
        }
        Ok::<_, Error>(())
    };
    let outcome = tokio::select! {
        ended = &mut serving => return ended.map_err(Error::from).and(Err(Error::ProxyEnded)),
        outcome = program => outcome,
    };
    drop(stop);
    // An open connection of the reader's does not prolong the demo.
    let _ = tokio::time::timeout(END_LIMIT, serving).await;
    outcome
}

/// Returns the defaults of `serve` with the addresses of the demo.
fn config(server: &Server, options: &Options) -> Result<Config, config::Problems> {
    let flags = config::Flags {
        upstream: Some(format!("http://{}/mcp", server.address())),
        listen: Some(options.listen.to_string()),
        admin: Some(String::new()),
        ..config::Flags::default()
    };
    Config::load(None, [], flags)
}

/// Values of a call for the commands at the end.
struct Example {
    session: String,
    event_id: String,
}

async fn show(server: &Server, proxy: SocketAddr, transcript: &mut Transcript) -> Result<Example, Error> {
    let both = async {
        show_loss(server, transcript).await?;
        show_resumption(server, proxy, transcript).await
    };
    tokio::time::timeout(SHOW_LIMIT, both).await.map_err(|_| Error::TooLong)?
}

/// Makes the call directly to the server: the cut events are lost.
async fn show_loss(server: &Server, transcript: &mut Transcript) -> Result<(), Error> {
    transcript.title("1. Straight to a server that cannot resume   (client ─ relay ─ server)")?;
    let relay = Relay::start(server.address()).await?;
    let mut client = Client::new(relay.address(), transcript);
    client.initialize().await?;
    let received = count(&mut client, &relay, &DIRECT_CUTS).await?;
    transcript.note("  no event had an id: there is nothing to come back with")?;
    server.all_calls_ended().await;
    transcript.note(&format!("  the tool has counted to {COUNT_TO}; its result went nowhere"))?;
    let lost = format!("{} of {COUNT_TO} numbers arrived, and no result", received.progress.len());
    transcript.verdict(false, &lost)?;
    Ok(())
}

/// Repeats the call by the same client through the proxy, cut twice: nothing is lost.
async fn show_resumption(server: &Server, proxy: SocketAddr, transcript: &mut Transcript) -> Result<Example, Error> {
    transcript.title("2. The same server behind mcp-resume   (client ─ relay ─ mcp-resume ─ server)")?;
    let relay = Relay::start(proxy).await?;
    let calls_before = server.calls_begun();
    let mut client = Client::new(relay.address(), transcript);
    client.initialize().await?;
    let received = count(&mut client, &relay, &PROXY_CUTS).await?;
    let session = client.session().unwrap_or_default().to_owned();

    if let Err(violation) = verify(&received, server.calls_begun() - calls_before) {
        transcript.verdict(false, &violation)?;
        return Err(Error::NotExactlyOnce(violation));
    }
    transcript.verdict(true, &summary(&received))?;
    Ok(Example { session, event_id: received.third.unwrap_or_default() })
}

fn verify(received: &ReceivedEvents, calls: u64) -> Result<(), String> {
    received.verify()?;
    if received.breaks as usize != PROXY_CUTS.len() {
        return Err(format!("{} cuts were made, {} were seen", PROXY_CUTS.len(), received.breaks));
    }
    if calls != 1 {
        return Err(format!("the tool ran {calls} times"));
    }
    Ok(())
}

fn summary(received: &ReceivedEvents) -> String {
    let resets = received.breaks;
    format!(
        "every event arrived exactly once and in order: {COUNT_TO} numbers and the result, \
         across {resets} connection resets; the tool ran once"
    )
}

/// Returns commands for the reader to try while the proxy listens on.
fn commands(proxy: SocketAddr, example: &Example) -> String {
    let Example { session, event_id } = example;
    format!(
        r#"
The proxy listens on http://{proxy}/mcp until ctrl-c. In another terminal:

  # replay the call above from its third event on
  curl -N http://{proxy}/mcp -H 'Accept: text/event-stream' -H 'Mcp-Session-Id: {session}' \
    -H 'Last-Event-ID: {event_id}'

  # open a session of your own
  S=$(curl -si http://{proxy}/mcp -H 'Content-Type: application/json' \
    -H 'Accept: application/json, text/event-stream' \
    -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"8"}}}}}}' \
    | tr -d '\r' | sed -n 's/^mcp-session-id: //p')

  # make a call, and press ctrl-c in the middle of it
  curl -N http://{proxy}/mcp -H "Mcp-Session-Id: $S" -H 'Content-Type: application/json' \
    -H 'Accept: application/json, text/event-stream' \
    -d '{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"count","arguments":{{"to":40}},"_meta":{{"progressToken":1}}}}}}'

  # come back with the last id you saw
  curl -N http://{proxy}/mcp -H "Mcp-Session-Id: $S" -H 'Accept: text/event-stream' \
    -H 'Last-Event-ID: ID'

Before your own server:  mcp-resume serve --upstream http://127.0.0.1:3000/mcp
"#
    )
}

#[cfg(test)]
mod tests;
