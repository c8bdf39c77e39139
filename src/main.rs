//! The binary: runs the role of the command line. Exit codes: 0 success, 1 failure at run time, 2
//! wrong configuration.

mod cli;

use std::cell::Cell;
use std::error::Error;
use std::fmt::Arguments;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, io, panic};

use clap::{CommandFactory, Parser};
use mcp_resume::admin::ask;
#[cfg(feature = "balancer")]
use mcp_resume::balancer::{self, Balancer};
use mcp_resume::check::{self, Report, summary::Summary};
use mcp_resume::config::{Balancing, Config, Flags, Limits, Log, LogFormat};
use mcp_resume::connect;
use mcp_resume::demo;
use mcp_resume::descriptors;
use mcp_resume::log::json::JsonLines;
use mcp_resume::log::timestamps::Timestamps;
use mcp_resume::log::{self, Lines, text};
use mcp_resume::sidecar::{self, Addresses, Server};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use cli::{Balance, Check, Cli, Command, Demo, Health, Process};

const FAILED: u8 = 1;
const WRONG_CONFIGURATION: u8 = 2;
/// Levels of the log of `connect`: hosts show stderr as errors. A program's own lines are passed
/// on.
const CONNECT_LOG: &str = "warn,mcp_resume_child::stderr=debug,mcp_resume::program=debug";
/// Levels with `--debug`. Libraries stay silent: they log headers.
const CONNECT_DEBUG_LOG: &str = "warn,mcp_resume=debug";
/// Size from which the file of `--debug` is begun anew.
const DEBUG_FILE_MAX: u64 = 16 * 1024 * 1024;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = mcp_resume::child::run_helper() {
        return code;
    }
    if env::args_os().nth(1).is_some_and(|command| command == "connect") {
        return connect_role();
    }
    match Cli::parse().command {
        Command::Serve(options) => match configure(options.config.clone().as_deref(), options.into_flags()) {
            Ok(config) => run(serve(config)),
            Err(problem) => fail(WRONG_CONFIGURATION, problem),
        },
        Command::Balance(options) => balance(options),
        // Its errors are answers on stdout.
        Command::Connect(_) => connect_role(),
        Command::Check(options) => check(options),
        Command::Drain(process) => match admin_address(&process) {
            Ok(address) => run(drain(address)),
            Err(problem) => fail(WRONG_CONFIGURATION, problem),
        },
        Command::Health(options) => match admin_address(&options.process) {
            Ok(address) => health(address, &options),
            Err(problem) => fail(WRONG_CONFIGURATION, problem),
        },
        Command::Demo(options) => run(demo(options)),
        Command::Completions { shell } => {
            let mut completions = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mcp-resume", &mut completions);
            print_bytes(&completions)
        }
        Command::Man { output: Some(directory) } => {
            let written =
                fs::create_dir_all(&directory).and_then(|()| clap_mangen::generate_to(Cli::command(), &directory));
            match written {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(FAILED, format!("cannot write to {}: {error}", directory.display())),
            }
        }
        Command::Man { output: None } => {
            let mut page = Vec::new();
            match clap_mangen::Man::new(Cli::command()).render(&mut page) {
                Ok(()) => print_bytes(&page),
                Err(error) => fail(FAILED, error),
            }
        }
    }
}

/// Serves one host on stdio. Wrong arguments are the answer to the host, which shows nothing else.
fn connect_role() -> ExitCode {
    let parsed = match Cli::try_parse() {
        Ok(Cli { command: Command::Connect(options) }) => Ok((options.debug, options.into_options(environment()))),
        Ok(_) => Err("the arguments are of another command".to_owned()),
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => Err(wrong_arguments(&error)),
    };
    if io::stdin().is_terminal() {
        let checked = parsed.as_ref().map_err(String::clone).and_then(|(_, options)| connect::check(options));
        match checked {
            Ok(()) => eprintln!("mcp-resume connect is for hosts: it reads messages on stdin"),
            Err(problem) => return fail(WRONG_CONFIGURATION, problem),
        }
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, error),
    };
    let outcome = runtime.block_on(async {
        let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
        match parsed {
            Ok((is_debug, options)) => {
                let _log = connect_log(is_debug).map_err(|error| error.to_string())?;
                let stop = async {
                    tokio::select! {
                        () = connect::stop_signal() => {}
                        () = connect::reader_gone() => {}
                    }
                };
                let ended = connect::serve(&options, input, output, stop).await;
                ended.map_err(|error| error.to_string())
            }
            Err(problem) => {
                connect::refuse(&problem, input, output).await;
                Ok(connect::Ended::Refused)
            }
        }
    });
    // A read of stdin would be awaited for ever.
    runtime.shutdown_background();
    match outcome {
        Ok(connect::Ended::InOrder) => ExitCode::SUCCESS,
        Ok(connect::Ended::Refused) => ExitCode::from(WRONG_CONFIGURATION),
        Err(error) => fail(FAILED, error),
    }
}

/// Starts the log of `connect`: stderr, and a file beside it with `--debug`.
fn connect_log(is_debug: bool) -> io::Result<Output> {
    let level = if is_debug { CONNECT_DEBUG_LOG } else { CONNECT_LOG };
    let log = Log { format: LogFormat::Text, level: level.to_owned(), stderr_on_failure: true };
    if !is_debug {
        return Output::start(&log);
    }
    let file = connect::debug_file(DEBUG_FILE_MAX);
    let path = file.as_ref().map(|(path, _)| path.clone());
    let output = Output::start_with(&log, Both(file.map(|(_, file)| file), io::stderr()))?;
    if let Some(path) = path {
        info!(version = env!("CARGO_PKG_VERSION"), file = %path.display(), "logging details");
    }
    Ok(output)
}

/// A file, and stderr after it.
struct Both(Option<fs::File>, io::Stderr);

impl Write for Both {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A full disk takes nothing from stderr.
        let _ = self.0.as_mut().map(|file| file.write_all(bytes));
        self.1.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

/// Returns words for wrong arguments, without the arguments themselves.
fn wrong_arguments(error: &clap::Error) -> String {
    use clap::error::ErrorKind;
    let what = match error.kind() {
        ErrorKind::UnknownArgument => "an option is unknown",
        ErrorKind::NoEquals | ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            "an option has no value, or a wrong one"
        }
        ErrorKind::TooManyValues => "there are too many arguments",
        _ => "the arguments cannot be read",
    };
    format!("{what}: see mcp-resume connect --help; a header is one argument, --header 'Name: value'")
}

/// Prints a text to stdout. A reader that has seen enough is no failure.
fn print_bytes(text: &[u8]) -> ExitCode {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(FAILED, error),
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

/// Loads the configuration from the file, the environment and the flags.
fn configure(file: Option<&Path>, flags: Flags) -> Result<Config, Box<dyn Error>> {
    let file = read_file(file)?;
    let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    Ok(Config::load(file, environment(), flags)?)
}

/// Returns the address of a running process's admin listener.
fn admin_address(flags: &Process) -> Result<SocketAddr, Box<dyn Error>> {
    let file = read_file(flags.config.as_deref())?;
    let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    let address = Config::admin_address(file, environment(), flags.admin.clone())?;
    address.ok_or_else(|| "that process has no admin listener: admin.address is empty".into())
}

/// Returns the file's name, for messages, and its text.
fn read_file(path: Option<&Path>) -> Result<Option<(String, String)>, String> {
    let Some(path) = path else { return Ok(None) };
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read the configuration {name}: {error}"))?;
    Ok(Some((name, text)))
}

fn environment() -> impl Iterator<Item = (String, String)> {
    // Other programs' variables may be any bytes; ours are words and numbers.
    env::vars_os().map(|(name, value)| (name.to_string_lossy().into(), value.to_string_lossy().into()))
}

fn run(role: impl Future<Output = Result<(), Box<dyn Error>>>) -> ExitCode {
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Box::from)
        .and_then(|runtime| runtime.block_on(role));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A file that the configuration names counts as part of it.
        Err(error) if is_configuration_error(&*error) => fail(WRONG_CONFIGURATION, error),
        Err(error) => fail(FAILED, error),
    }
}

fn is_configuration_error(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "balancer")]
    if let Some(error) = error.downcast_ref::<balancer::Error>() {
        return matches!(error, balancer::Error::Tls(_));
    }
    matches!(
        error.downcast_ref(),
        Some(
            sidecar::Error::Tls(_)
                | sidecar::Error::Traces(_)
                | sidecar::Error::Header(_)
                | sidecar::Error::ResourceMetadata(_)
        )
    )
}

/// Returns the number of client connections that this limit of open files allows.
fn connections(limits: &Limits, open_files: Option<usize>) -> usize {
    let is_default = limits.connections == Limits::DEFAULT_CONNECTIONS;
    descriptors::connections(limits.connections, is_default, open_files)
}

async fn serve(mut config: Config) -> Result<(), Box<dyn Error>> {
    let output = Output::start(&config.log)?;
    let limit = descriptors::raise();
    config.limits.connections = connections(&config.limits, limit);
    let (clients, beside) = (config.limits.connections, sidecar::connections_beside(&config));
    config.upstream.connections = descriptors::upstream_connections(clients, beside, limit);
    let (mut first, mut second) = (Signals::listen()?, Signals::listen()?);
    if let Some(command) = &mut config.upstream.command {
        command.adopts_orphans = true;
    }
    let path = config.upstream.url.endpoint_path().to_owned();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        upstream = %config.upstream.place(),
        store = %config.store,
        endpoint = path,
        "starting"
    );
    let scheme = if config.listen.tls.is_some() { "https" } else { "http" };
    let is_announced = Cell::new(false);
    let announce_addresses = |at: Addresses| {
        if is_announced.replace(true) {
            return;
        }
        output.announce(format_args!("listening on {scheme}://{}{path}", at.data));
        for (what, address) in [("admin", at.admin), ("metrics", at.metrics)] {
            if let Some(address) = address {
                output.announce(format_args!("{what} on http://{address}"));
            }
        }
    };
    let server = tokio::select! {
        server = Server::bind_and_wait(config, announce_addresses) => server?,
        // Nothing was started that would have to end.
        () = first.next() => return Ok(()),
    };
    announce_addresses(server.addresses());
    tokio::spawn(server.look_for_upstream());
    tokio::select! {
        result = server.run_on_threads(workers(), async move { first.next().await }) => Ok(result?),
        // A second signal ends the wait for running calls.
        () = async { second.next().await; second.next().await } => {
            Err("stopped by a second signal before everything had ended".into())
        }
    }
}

fn balance(options: Balance) -> ExitCode {
    let Balance { config, replica, listen, admin } = options;
    let configured = read_file(config.as_deref()).map_err(Box::from).and_then(|file| {
        let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
        let flags = Flags { listen, admin, ..Flags::default() };
        Ok::<_, Box<dyn Error>>(Balancing::load(file, environment(), flags, &replica)?)
    });
    match configured {
        Ok(config) => run_balancer(config),
        Err(problem) => fail(WRONG_CONFIGURATION, problem),
    }
}

#[cfg(not(feature = "balancer"))]
fn run_balancer(_: Balancing) -> ExitCode {
    let text = "this binary was built without the balancer: build it with --features balancer, which needs cmake";
    fail(WRONG_CONFIGURATION, text)
}

#[cfg(feature = "balancer")]
fn run_balancer(mut config: Balancing) -> ExitCode {
    run(async {
        let output = Output::start(&config.log)?;
        config.limits.connections = connections(&config.limits, descriptors::raise());
        let (mut first, mut second) = (Signals::listen()?, Signals::listen()?);
        let balancer = Balancer::bind(config).await?;
        let scheme = if balancer.certificates().is_some() { "https" } else { "http" };
        output.announce(format_args!("listening on {scheme}://{}", balancer.local_addr()));
        if let Some(address) = balancer.admin_addr() {
            output.announce(format_args!("admin on http://{address}"));
        }
        tokio::select! {
            result = balancer.run(workers(), async move { first.next().await }) => Ok(result?),
            () = async { second.next().await; second.next().await } => {
                Err("stopped by a second signal before everything had ended".into())
            }
        }
    })
}

/// Extends the level "info" to silence libraries. Their messages are of no use to an operator, and
/// this program logs the failures of requests and replicas itself.
fn quiet(level: &str) -> String {
    const QUIET: &str = "fjall=warn,lsm_tree=warn,pingora_core=off,pingora_proxy=off,pingora_load_balancing=off";
    if level == "info" { format!("{level},{QUIET}") } else { level.to_owned() }
}

/// Returns the number of workers: one for each core that this process may use.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Prints a summary of the configuration, or the report on a server if one is given.
fn check(options: Check) -> ExitCode {
    let Check { config, url, upstream, upstream_sse, header, tool, arguments, watch, end_session, json, command } =
        options;
    let upstream = upstream.or(url);
    let has_server = upstream.is_some() || upstream_sse.is_some() || !command.is_empty();
    let flags = Flags { upstream, upstream_sse, command, ..Flags::default() };
    let wrong_flag = |flag: &str, problem: String| fail(WRONG_CONFIGURATION, format_args!("{flag}: {problem}"));
    let headers = match check::parse_headers(&header) {
        Ok(headers) => headers,
        Err(problem) => return wrong_flag("--header", problem),
    };
    let arguments = match check::parse_arguments(arguments.as_deref().unwrap_or("{}")) {
        Ok(arguments) => arguments,
        Err(problem) => return wrong_flag("--arguments", problem),
    };
    let is_complete = !has_server || config.is_some();
    let mut config = match configure(config.as_deref(), flags) {
        Ok(config) => config,
        Err(problem) => return fail(WRONG_CONFIGURATION, problem),
    };
    if let Some(command) = &mut config.upstream.command {
        if let Err(problem) = check::check_program_headers(&headers, &command.env_from_headers) {
            return wrong_flag("--header", problem);
        }
        (command.adopts_orphans, command.stderr_to_client) = (true, true);
    }
    let unusable = if is_complete { sidecar::check_files(&config) } else { Vec::new() };
    if !unusable.is_empty() {
        let lines: Vec<String> = unusable.iter().map(|error| format!("\n  {error}")).collect();
        return fail(
            WRONG_CONFIGURATION,
            format_args!("the configuration names what cannot be used:{}", lines.concat()),
        );
    }
    if !has_server {
        print(&Summary::new(&config), json);
        return ExitCode::SUCCESS;
    }
    let tool = tool.map(|name| check::Tool { name, arguments });
    let progress: Option<fn(&str)> = if json { None } else { Some(show_progress) };
    let timeouts = timeouts_of(&config, watch);
    let mut outcome = ExitCode::from(FAILED);
    let code = run(async {
        sidecar::load_headers(&mut config)?;
        let channels = sidecar::channels(&config)?;
        let options = check::Options { channels, headers, tool, end_sessions: end_session, timeouts, progress };
        let mut facts = check::probe(&config, &options).await;
        if check::is_http_sse_alone(&facts, &config) {
            config.upstream.sse = config.upstream.recognisable.take();
            let (channels, timeouts) = (sidecar::channels(&config)?, timeouts_of(&config, watch));
            facts = check::probe(&config, &check::Options { channels, timeouts, ..options }).await;
        }
        let report = Report::new(facts, &config);
        outcome = match &report.facts.unknown_tool {
            Some(name) => wrong_flag("--tool", no_such_tool(name, &report)),
            None => {
                print(&report, json);
                ExitCode::from(if report.can_stand_in_front { 0 } else { FAILED })
            }
        };
        Ok(())
    });
    if code == ExitCode::SUCCESS { outcome } else { code }
}

/// Returns the timeouts of a check. The start of a server on stdio takes its time, and sessions on
/// channels need no message to live.
fn timeouts_of(config: &Config, watch: Option<u64>) -> check::Timeouts {
    let mut timeouts = check::Timeouts::default();
    if let Some(command) = &config.upstream.command {
        timeouts.response += command.start;
        timeouts.watch = Duration::ZERO;
    }
    if config.upstream.sse.is_some() {
        timeouts.watch = Duration::ZERO;
    }
    timeouts.watch = watch.map_or(timeouts.watch, Duration::from_secs);
    timeouts
}

/// Shows the next step of a check on stderr.
fn show_progress(step: &str) {
    let _ = writeln!(io::stderr(), "mcp-resume: {step} …");
}

fn no_such_tool(name: &str, report: &Report) -> String {
    let names = report.facts.tools.as_ref().map(|tools| tools.names.join(", ")).unwrap_or_default();
    match names.as_str() {
        "" => format!("the server has no tool {name}: it has none"),
        names => format!("the server has no tool {name}; it has {names}"),
    }
}

fn print(output: &(impl Display + serde::Serialize), as_json: bool) {
    if as_json {
        announce(serde_json::to_string_pretty(output).unwrap_or_default());
    } else {
        announce(output.to_string().trim_end());
    }
}

async fn drain(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    ask::drain(address).await?;
    announce("drained");
    Ok(())
}

/// Prints the result of a probe, and returns success or failure as the exit code.
fn health(address: SocketAddr, options: &Health) -> ExitCode {
    let probe = if options.live { ask::Probe::Live } else { ask::Probe::Ready };
    let mut is_good = false;
    let code = run(async {
        let health = ask::wait_for(address, probe, Duration::from_secs(options.wait.into())).await?;
        is_good = health.is_good;
        announce(health.text);
        Ok(())
    });
    if is_good { code } else { ExitCode::from(FAILED) }
}

async fn demo(options: Demo) -> Result<(), Box<dyn Error>> {
    let Demo { listen, once } = options;
    Ok(demo::run(demo::Options { listen, once }).await?)
}

/// Outputs of a serving process: stderr for the log, stdout for addresses. Neither blocks it. On
/// drop, both get a moment to take the queued lines.
struct Output {
    log: Lines,
    stdout: Lines,
}

impl Output {
    fn start(log: &Log) -> io::Result<Self> {
        Self::start_with(log, io::stderr())
    }

    /// Starts the outputs with another place for the log.
    fn start_with(log: &Log, place: impl Write + Send + 'static) -> io::Result<Self> {
        let output = Self { log: Lines::to(place)?, stdout: Lines::to(io::stdout())? };
        // The configuration has validated the level.
        let lines = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(quiet(&log.level)))
            .with_ansi(io::stderr().is_terminal())
            .with_timer(Timestamps)
            .with_writer(output.log.clone());
        match log.format {
            LogFormat::Text => lines.fmt_fields(text::Fields::default()).init(),
            LogFormat::Json => lines.json().with_writer(JsonLines(output.log.clone())).init(),
        }
        // The default hook writes to stderr and may block.
        panic::set_hook(Box::new(|panic| error!(%panic, "a task has panicked")));
        Ok(output)
    }

    /// Prints an address on stdout.
    fn announce(&self, line: Arguments<'_>) {
        self.stdout.print(line);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.stdout.finish();
        self.log.finish();
    }
}

/// Prints a line on stdout. A failure means that stdout was closed, and is ignored.
fn announce(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn fail(code: u8, error: impl Display) -> ExitCode {
    log::print_in_time(io::stderr(), format_args!("mcp-resume: {error}"));
    ExitCode::from(code)
}

/// Signals to stop: ctrl-c, and on Unix SIGTERM.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
}

impl Signals {
    #[cfg(unix)]
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    #[cfg(windows)]
    fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: tokio::signal::windows::ctrl_c()? })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(windows)]
    async fn next(&mut self) {
        self.interrupt.recv().await;
    }
}
