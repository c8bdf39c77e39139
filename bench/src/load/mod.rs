//! The loads: what each puts on a proxy, and the figures it prints.

mod back;
mod client;
mod idle;
mod json;
mod replay;
mod resume;
mod short;
mod soak;
mod streams;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::Value;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::JoinSet;

use crate::{Error, Result};

/// One load and the URL it is put on.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// URL for the requests: http://HOST:PORT/PATH
    url: String,
    /// Seconds after which the run has failed
    #[arg(long, default_value_t = 120, global = true)]
    timeout_secs: u64,
    /// The server is not the scripted one or has a bridge before it: make the whole handshake, take
    /// the same messages in any JSON, answers as event streams and event IDs of any kind; and count
    /// clients that do not return instead of failing
    #[arg(long, global = true)]
    foreign: bool,
    /// Speak HTTP+SSE, the transport before Streamable HTTP, to a foreign server: the URL is its
    /// stream's
    #[arg(long, global = true, requires = "foreign")]
    http_sse: bool,
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// JSON requests, each after the last response, on every connection
    Json(json::Args),
    /// Calls answered with a few events at once, each after the last response, on every connection
    Short(short::Args),
    /// Event streams: paced by acknowledgement or by time, or in bursts
    Streams(streams::Args),
    /// Open silent streams and hold them until a line comes on stdin
    Idle(idle::Args),
    /// Cut every client at once, and wait until all of them have resumed
    Resume(resume::Args),
    /// Read finished streams again from their beginning
    Replay(replay::Args),
    /// Cut a few clients, each by itself, and let it reconnect at once, again and again
    Back(back::Args),
    /// All kinds of client traffic, at a steady rate, for long
    Soak(soak::Args),
}

/// Runs one load and prints its figures.
pub(crate) async fn run(args: Args) -> Result<()> {
    let target = Target { foreign: args.foreign, http_sse: args.http_sse, ..Target::parse(&args.url)? };
    let load = async {
        match args.kind {
            Kind::Json(args) => json::run(target, args).await,
            Kind::Short(args) => short::run(target, args).await,
            Kind::Streams(args) => streams::run(target, args).await,
            Kind::Idle(args) => idle::run(target, args).await,
            Kind::Resume(args) => resume::run(target, args).await,
            Kind::Replay(args) => replay::run(target, args).await,
            Kind::Back(args) => back::run(target, args).await,
            Kind::Soak(args) => soak::run(target, args).await,
        }
    };
    let figures = tokio::time::timeout(Duration::from_secs(args.timeout_secs), load)
        .await
        .map_err(|_| format!("not done after {} s", args.timeout_secs))??;
    println!("{figures}");
    Ok(())
}

/// The target of a load: the proxy, or the upstream itself.
#[derive(Clone, Debug)]
struct Target {
    addr: SocketAddr,
    host: String,
    path: String,
    /// The line of every request with a credential, or nothing.
    credential: String,
    /// Value of `--foreign`.
    foreign: bool,
    /// Value of `--http-sse`.
    http_sse: bool,
}

impl Target {
    fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").ok_or("the URL must begin with http://")?;
        let (host, path) = rest.split_once('/').ok_or("the URL needs a path")?;
        let addr = host.to_socket_addrs()?.next().ok_or("the URL's host has no address")?;
        Ok(Self {
            addr,
            host: host.to_owned(),
            path: format!("/{path}"),
            credential: String::new(),
            foreign: false,
            http_sse: false,
        })
    }
}

/// Every task's result, or the first error of any.
async fn join_all<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(result) = tasks.join_next().await {
        results.push(result??);
    }
    Ok(results)
}

/// Prints `word` on stdout and waits for a line on stdin: the runner measures the proxy meanwhile.
async fn pause(word: &str) -> Result<()> {
    println!("{}", serde_json::json!({ "at": word }));
    let mut line = String::new();
    BufReader::new(stdin()).read_line(&mut line).await?;
    Ok(())
}

/// Microseconds at the given parts of all samples, which are nanoseconds.
fn percentiles(samples: &mut [u64], parts: &[(&str, f64)]) -> Result<Value> {
    samples.sort_unstable();
    let last = samples.len().checked_sub(1).ok_or("nothing was measured")?;
    let at = |part: f64| samples[(last as f64 * part).round() as usize] as f64 / 1000.0;
    Ok(parts
        .iter()
        .map(|(name, part)| ((*name).to_owned(), Value::from(at(*part))))
        .collect::<serde_json::Map<_, _>>()
        .into())
}

/// As `percentiles`, or `None` without samples.
fn percentiles_if_any(samples: &mut [u64], parts: &[(&str, f64)]) -> Result<Value> {
    if samples.is_empty() { Ok(Value::Null) } else { percentiles(samples, parts) }
}

const USUAL: &[(&str, f64)] = &[("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

/// `Err` for a status that is not 200, or 202 if no response is expected.
fn expect_ok(status: u16, what: &str) -> Result<()> {
    if matches!(status, 200 | 202) { Ok(()) } else { Err(Error::from(format!("{what} was answered {status}"))) }
}
