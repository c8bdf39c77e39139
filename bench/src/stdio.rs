//! The scripted upstream as a stdio server, for bridges from stdio to HTTP: a JSON-RPC message a
//! line, the same tool, the same payloads.
//!
//! A cancelled call ends without a response. Deliberately absent: acknowledgements, since a bridge
//! may start many of these.

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::Result;
use crate::payload::{now_nanos, progress_head, write_answer, write_progress};
use crate::script::{Call, Mode, Script};

/// Largest number of calls that wait for the runtime.
const WAITING: usize = 1024;
const MS: u64 = 1_000_000;

#[derive(ClapArgs)]
pub(crate) struct Args {
    /// A file that gets a byte for every run of the tool with events
    #[arg(long)]
    runs: Option<PathBuf>,
}

/// Serves until stdin ends.
pub(crate) async fn run(args: Args) -> Result<()> {
    let runs = args.runs.map(|path| OpenOptions::new().append(true).create(true).open(path)).transpose()?;
    let runs = Arc::new(runs);
    let (calls, mut others) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            let Ok(call) = serde_json::from_str::<Call>(&line) else {
                // A response to a request that was never sent, or a blank line.
                continue;
            };
            let is_said = match immediate(&call) {
                Some(mut message) => say(&mut message).is_ok(),
                None => calls.blocking_send(call).is_ok(),
            };
            if !is_said {
                return;
            }
        }
    });
    let mut running: HashMap<u64, AbortHandle> = HashMap::new();
    while let Some(call) = others.recv().await {
        match (call.id, call.method.as_str()) {
            (Some(id), "tools/call") => {
                running.retain(|_, run| !run.is_finished());
                running.insert(id, tokio::spawn(answer(id, call, Arc::clone(&runs))).abort_handle());
            }
            (None, "notifications/cancelled") => {
                if let Some(run) = call.params.request_id.and_then(|id| running.remove(&id)) {
                    run.abort();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the response to a request that takes no time. The thread that reads writes it, so that
/// no thread of the server waits for another: a server like that costs the bridges before it as
/// little as possible.
fn immediate(call: &Call) -> Option<Vec<u8>> {
    let id = call.id?;
    if call.method != "tools/call" {
        return Some(reply(id, call).to_string().into_bytes());
    }
    let script = &call.params.arguments;
    let has_no_events = matches!(script.mode, Mode::Json) || (matches!(script.mode, Mode::Short) && script.events == 0);
    has_no_events.then(|| {
        let mut line = Vec::new();
        write_answer(&mut line, id, 0, script.bytes);
        line
    })
}

fn reply(id: u64, call: &Call) -> Value {
    let result = match call.method.as_str() {
        "initialize" => json!({
            "protocolVersion": call.params.protocol_version.as_deref().unwrap_or("2025-11-25"),
            "capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "0"}}),
        "ping" => json!({}),
        "tools/list" => json!({"tools": [{"name": "bench", "inputSchema": {"type": "object"}}]}),
        other => {
            let message = format!("no method {other}");
            return json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": message}});
        }
    };
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

async fn answer(id: u64, call: Call, runs: Arc<Option<File>>) -> Result<()> {
    let script = call.params.arguments;
    let mut sent = 0;
    match script.mode {
        Mode::Json => {}
        Mode::Idle => sleep(Duration::from_millis(script.duration_ms)).await,
        Mode::Events | Mode::Short => {
            if let Some(mut runs) = runs.as_ref().as_ref() {
                runs.write_all(b".")?;
            }
            sent = events(&progress_head(&call.params.meta.progress_token.to_string()), &script).await?;
        }
    }
    let mut line = Vec::new();
    write_answer(&mut line, id, sent, 0);
    say(&mut line)
}

/// Sends the events of `script`; returns their number.
async fn events(head: &[u8], script: &Script) -> Result<u64> {
    let end = match script.duration_ms {
        0 => u64::MAX,
        ms => now_nanos() + ms * MS,
    };
    let mut ticks = interval(Duration::from_millis(script.interval_ms.max(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut sent, mut line) = (0, Vec::with_capacity(script.bytes + 64));
    while script.events == 0 || sent < script.events {
        match script.interval_ms {
            0 => yield_now().await,
            _ => _ = ticks.tick().await,
        }
        if now_nanos() >= end {
            break;
        }
        sent += 1;
        line.clear();
        write_progress(&mut line, head, sent, now_nanos(), script.bytes);
        say(&mut line)?;
    }
    Ok(sent)
}

/// Writes one message and its newline at once. A bridge that does not read stops the whole server,
/// as with any other server.
fn say(message: &mut Vec<u8>) -> Result<()> {
    message.push(b'\n');
    Ok(std::io::stdout().lock().write_all(message)?)
}
