//! `mcp-resume connect`: a server on stdio for one host, before a server on HTTP or a program.
//!
//! **A second front of the same core.** The pipe turns the host's lines into requests of one client
//! ([`LocalClient`](crate::ingress::LocalClient)), and messages of streams into lines. Behind it
//! are the handlers, the log, the pump, revival and the bridge of `serve`, in this process. A
//! request is a head and a body without HTTP. The body of its response is one message for each
//! frame, read from the log in place of an event stream (`delivery/messages.rs`). The pipe enters
//! at the handlers, and not at log and pump below them: sessions, cancels, responses of the host,
//! revival and the limits are the handlers', and would be there twice. Four facts of the one
//! connection leave out the rules for connections that break: retries of a POST, priming,
//! heartbeats, and proofs of delivery.
//!
//! Owned here: lines ([`input`], [`output`]), the beginning, the order and the end of the host's
//! session ([`opening`], [`probes`], [`memory`], [`pipe`], [`end`]), and the way of a request
//! ([`waiting`], [`calls`], [`keys`], [`running`], [`tools`]). Hidden tools ([`ignored`]), a
//! server that differs from its first handshake ([`told`], [`facts`]), and answers of something
//! else than the far side ([`strangers`]). The program behind the pipe and its files ([`reload`],
//! [`program`], [`watch`], [`listening`]). The options ([`options`], [`settings`], [`headers`])
//! with the proxies of the environment ([`proxies`]), and the place of the credentials
//! ([`credentials`]). Absent: resumption, revival, waiting for a server, translation, tasks; a
//! sign-in.

mod calls;
mod credentials;
mod end;
mod facts;
mod far;
mod headers;
mod ignored;
mod input;
mod keys;
mod listening;
mod memory;
mod opening;
mod options;
mod output;
mod pipe;
mod platform;
mod probes;
mod program;
mod proxies;
mod refused;
mod reload;
mod running;
mod settings;
mod strangers;
mod told;
mod tools;
mod waiting;
mod watch;
mod words;

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{info, warn};

pub use self::credentials::Credentials;
use self::credentials::OwnHeaders;
use self::end::Cause;
use self::far::Far;
use self::ignored::IgnoredTools;
use self::input::Input;
use self::memory::Memory;
pub use self::options::{Options, Problem};
use self::output::Output;
use self::pipe::{Pipe, Rules};
pub use self::platform::{config_file, debug_file, memory_folder, reader_gone, stop_signal};
pub use self::proxies::is_loopback;
use self::settings::Settings;
use self::watch::Watched;
use crate::clock;
use crate::sidecar::{self, Local};
use crate::upstream;

/// End of a session with a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The session has ended in order.
    InOrder,
    /// The arguments were wrong. The host has their problem as the response to each request.
    Refused,
}

/// Serves a host on `input` and `output` until the host or `stop` ends it.
///
/// # Errors
/// If the parts of the core cannot be started.
pub async fn serve<R, W>(
    options: &Options,
    input: R,
    output: W,
    stop: impl Future<Output = ()>,
) -> Result<Ended, sidecar::Error>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let settings = match Settings::of(options) {
        Ok(settings) => settings,
        Err(problem) => {
            refuse(&problem, input, output).await;
            return Ok(Ended::Refused);
        }
    };
    let Settings { config, connect, origin, credentials, server, memory, warnings } = settings;
    for warning in warnings {
        warn!("{warning}");
    }
    let ignored = IgnoredTools::new(&options.ignored_tools);
    let progress = config.delivery.progress.clone();
    let is_http = config.upstream.command.is_none();
    let local = match Local::start(config) {
        Ok(local) => local,
        Err(error) => {
            refuse(&error.to_string(), input, output).await;
            return Ok(Ended::Refused);
        }
    };
    let credentials = Arc::new(OwnHeaders { names: credentials });
    let (output, writing) = Output::new(output);
    let written = tokio::spawn(writing.run());
    let far = Far::new(local.client().clone(), credentials);
    let (is_program, is_watched) = (!options.command.is_empty(), !options.watch.is_empty());
    let rules = Rules { connect, progress, origin, is_http, ignored, is_program, is_watched };
    let (pipe, notifications) = Pipe::new(far, output, rules, Memory::new(memory, server));
    if is_watched {
        pipe.spawn(pipe.clone().replace_on_change(Watched::new(options.watch.clone())));
    }
    pipe.spawn(pipe.clone().post_notifications(notifications));
    pipe.spawn(probe_after_sleep());
    let mut input = Input::new(input);
    let mut stop = std::pin::pin!(stop);
    let cause = tokio::select! {
        () = pipe.read(&mut input) => Cause::EndOfInput,
        () = pipe.output.closed() => Cause::Stopped,
        () = &mut stop => Cause::Stopped,
    };
    tokio::select! {
        () = pipe.finish(cause) => {}
        // The host was killed, or gives no more time.
        () = stop, if cause == Cause::EndOfInput => pipe.finish(Cause::Stopped).await,
    }
    local.end().await;
    // All that was accepted is written, if the host reads it.
    drop(pipe);
    if cause == Cause::EndOfInput {
        let _ = written.await;
    }
    Ok(Ended::InOrder)
}

/// Probes the connections to the far side each time that the machine has slept.
async fn probe_after_sleep() {
    loop {
        platform::slept(clock::boot).await;
        info!("the machine has slept: the connections are probed");
        upstream::probe_open_connections().await;
    }
}

/// Checks the options as [`serve`] does, for a person at a terminal.
///
/// # Errors
/// The first problem.
pub fn check(options: &Options) -> Result<(), Problem> {
    Settings::of(options).map(drop)
}

/// Answers each request with `problem` until the end of stdin: a host shows the answer to
/// `initialize`, and nothing else of a server that does not start.
pub async fn refuse<R, W>(problem: &str, input: R, output: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (output, writing) = Output::new(output);
    let written = tokio::spawn(writing.run());
    let mut input = Input::new(input);
    tokio::select! {
        () = refused::answer(problem, &mut input, &output) => {}
        () = output.closed() => return,
    }
    drop(output);
    let _ = written.await;
}
