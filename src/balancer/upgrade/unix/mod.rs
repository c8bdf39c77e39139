//! Upgrade over a Unix socket: the listening sockets, and the messages sent with them. A message
//! consists of lines of text and ends with an empty one.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::future::pending;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Error, Listeners};
use mcp_resume_base::clock;
use mcp_resume_base::random;

/// Deadline of a response from the other process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the next process to become ready; after it, it must start again.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// Longest message.
const MESSAGE_MAX: usize = 4096;
/// Most listeners of a message.
const LISTENERS_MAX: usize = 8;

const END: &[u8] = b"\n\n";
/// First line of the message with the listeners' addresses, one a line. It differs in other
/// versions.
const GREETING: &str = "mcp-resume listeners 1";
const BUSY: &[u8] = b"busy\n\n";
const READY: &[u8] = b"ready\n\n";
const GO: &[u8] = b"go\n\n";

/// The previous owner of the listeners. It still serves. It continues if this value is dropped.
#[derive(Debug)]
pub struct Predecessor(StdUnixStream);

/// The listeners of this process, offered to the next one.
#[derive(Debug)]
pub struct Offer {
    socket: StdUnixListener,
    listeners: Listeners,
}

/// Takes the listeners of the process that waits at `path`, ready for tokio; `None` if no process
/// waits. Blocks for seconds at most, and is meant for process startup. The other process serves
/// until [`offer`] is called with the [`Predecessor`].
///
/// # Errors
/// If a process waits there but does not hand its listeners over. Their addresses are then most
/// likely in use.
pub fn take(path: &Path) -> Result<Option<(Listeners, Predecessor)>, Error> {
    take_within(path, ANSWER_TIMEOUT)
}

fn take_within(path: &Path, wait: Duration) -> Result<Option<(Listeners, Predecessor)>, Error> {
    let deadline = clock::now() + wait;
    if !is_our_socket(path)? {
        return Ok(None);
    }
    let stream = match connect(path, wait) {
        Ok(stream) => stream,
        // The process that waited there has ended.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => return Ok(None),
        Err(error) => return Err(or_timed_out(error)),
    };
    let (message, fds) = receive(&stream, deadline)?;
    Ok(Some((listeners(&message, fds)?, Predecessor(stream))))
}

/// Waits at `path` for the next process, with `listeners` that this one serves. First notifies a
/// predecessor that this process serves; the predecessor then drains. Replaces the socket of a dead
/// process at the path.
///
/// # Errors
/// If this process cannot wait there. A predecessor then continues to serve, and this process must
/// end.
pub async fn offer(path: &Path, listeners: Listeners, predecessor: Option<Predecessor>) -> Result<Offer, Error> {
    if listeners.len() > LISTENERS_MAX {
        return Err(Error::TooMany);
    }
    let path = path.to_owned();
    let taking = spawn_blocking(move || take_path(&path, predecessor));
    let socket = taking.await.map_err(io::Error::other)??;
    Ok(Offer { socket, listeners })
}

impl Offer {
    /// Resolves once another process serves the listeners and owns the path: this process must not
    /// accept any more, and may end. Dropping the future withdraws the offer. Requires a runtime
    /// with I/O and time.
    pub async fn handed_over(self) {
        let socket = self.socket.set_nonblocking(true).and_then(|()| UnixListener::from_std(self.socket));
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                warn!(%error, "no process can take over from this one");
                return pending().await;
            }
        };
        loop {
            let next = accept(&socket).await;
            match hand_over(&socket, next, &self.listeners).await {
                Ok(()) => return info!("another process has taken over"),
                Err(error) => warn!(%error, "another process did not take over"),
            }
        }
    }
}

/// Hands over to `next`. Meanwhile, other processes learn that the offer is taken.
async fn hand_over(socket: &UnixListener, next: UnixStream, listeners: &Listeners) -> Result<(), Error> {
    let mut serving = pin!(serve_next(next, listeners));
    loop {
        tokio::select! {
            // First, so that a process which connects after the hand-over has failed is not
            // refused.
            biased;
            done = &mut serving => return done,
            mut other = accept(socket) => {
                let _ = within(ANSWER_TIMEOUT, other.write_all(BUSY)).await;
            }
        }
    }
}

async fn serve_next(mut next: UnixStream, listeners: &Listeners) -> Result<(), Error> {
    within(ANSWER_TIMEOUT, send(&next, listeners)).await?;
    let mut word = [0; READY.len()];
    within(READY_TIMEOUT, next.read_exact(&mut word)).await?;
    if word != *READY {
        return Err(Error::Protocol("not the word \"ready\""));
    }
    within(ANSWER_TIMEOUT, next.write_all(GO)).await?;
    // From here on the next process serves, even if it never gets the path. Until it has the path,
    // others learn that it is taking over.
    let _ = within(ANSWER_TIMEOUT, next.read(&mut word)).await;
    Ok(())
}

async fn within<T>(wait: Duration, work: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
    Ok(timeout(wait, work).await.map_err(|_| Error::TimedOut)??)
}

/// Returns the next connection from a process of this user.
async fn accept(socket: &UnixListener) -> UnixStream {
    let own = rustix::process::geteuid().as_raw();
    loop {
        match socket.accept().await.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
            Ok((uid, stream)) if uid == own => return stream,
            Ok((uid, _)) => warn!(uid, "a process of another user may not take over"),
            Err(error) => {
                warn!(%error, "accepting a next process failed");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn send(stream: &UnixStream, listeners: &Listeners) -> io::Result<()> {
    let mut message = GREETING.to_owned();
    for (address, _) in listeners {
        message.push_str(&format!("\n{address}"));
    }
    message.push_str("\n\n");
    let fds: Vec<BorrowedFd<'_>> = listeners.iter().map(|(_, listener)| listener.as_fd()).collect();
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        Ok(sendmsg(stream, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::empty())?)
    });
    // The send buffer is empty, so it has room for the whole message.
    if sent.await? == message.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Creates a socket at `path` in place of an old one. A predecessor is relieved just before, when
/// no other step can fail.
fn take_path(path: &Path, predecessor: Option<Predecessor>) -> Result<StdUnixListener, Error> {
    is_our_socket(path)?;
    let temporary = TempName::new(path);
    let socket = StdUnixListener::bind(&temporary.0)?;
    fs::set_permissions(&temporary.0, Permissions::from_mode(0o600))?;
    if let Some(predecessor) = &predecessor {
        relieve(predecessor)?;
    }
    match fs::rename(&temporary.0, path) {
        Err(error) if predecessor.is_none() => Err(error.into()),
        // The predecessor drains already, so this process must serve.
        Err(error) => {
            warn!(path = %path.display(), %error, "no process can take over from this one");
            Ok(socket)
        }
        Ok(()) => Ok(socket),
    }
}

fn relieve(Predecessor(stream): &Predecessor) -> Result<(), Error> {
    let deadline = clock::now() + ANSWER_TIMEOUT;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut stream = stream;
    stream.write_all(READY).map_err(or_timed_out)?;
    let (answer, _) = receive(stream, deadline)?;
    if answer == GO { Ok(()) } else { Err(Error::Protocol("not the word \"go\"")) }
}

/// A temporary name beside a path, removed on drop unless renamed.
struct TempName(PathBuf);

impl TempName {
    fn new(path: &Path) -> Self {
        let mut name = OsString::from(path);
        name.push(format!(".{:08x}", u32::from_be_bytes(random::bytes())));
        Self(name.into())
    }
}

impl Drop for TempName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns true for a socket of this user, and false if nothing exists there.
fn is_our_socket(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_socket() && found.uid() == rustix::process::geteuid().as_raw() => Ok(true),
        Ok(_) => Err(Error::NotOurSocket),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Connects with a deadline: the standard library's method waits as long as the queue of the other
/// end is full.
fn connect(path: &Path, wait: Duration) -> io::Result<StdUnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(wait))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Receives one message, and the sockets attached to it.
fn receive(stream: &StdUnixStream, deadline: Instant) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
    let (mut message, mut fds) = (Vec::new(), Vec::new());
    while !message.ends_with(END) {
        let left = deadline.checked_duration_since(clock::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(Error::TimedOut)?))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; MESSAGE_MAX];
        let slice = &mut [IoSliceMut::new(&mut bytes)];
        let received = retry_on_intr(|| recvmsg(stream, slice, &mut control, RecvFlags::empty()));
        let received =
            received.map_err(|error| if error == Errno::AGAIN { Error::TimedOut } else { Error::Io(error.into()) })?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = part {
                fds.extend(sockets);
            }
        }
        message.extend_from_slice(&bytes[..received.bytes]);
        match received.bytes {
            0 => return Err(Error::Io(ErrorKind::UnexpectedEof.into())),
            _ if message.len() > MESSAGE_MAX => return Err(Error::Protocol("a message without an end")),
            _ => {}
        }
    }
    Ok((message, fds))
}

fn listeners(message: &[u8], fds: Vec<OwnedFd>) -> Result<Listeners, Error> {
    if message == BUSY {
        return Err(Error::Busy);
    }
    let text = std::str::from_utf8(message).map_err(|_| Error::Protocol("a message that is not UTF-8"))?;
    let mut lines = text.trim_end_matches('\n').split('\n');
    if lines.next() != Some(GREETING) {
        return Err(Error::Protocol("another greeting"));
    }
    let addresses: Result<Vec<SocketAddr>, _> = lines.map(str::parse).collect();
    let addresses = addresses.map_err(|_| Error::Protocol("an invalid address"))?;
    if addresses.len() != fds.len() {
        return Err(Error::Protocol("another number of addresses than of sockets"));
    }
    addresses.into_iter().zip(fds).map(|(address, fd)| Ok((address, listener(fd)?))).collect()
}

fn listener(fd: OwnedFd) -> io::Result<TcpListener> {
    // Not every system can set this flag on receipt.
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    let listener = TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    // Fails for a socket of another family.
    listener.local_addr()?;
    Ok(listener)
}

fn or_timed_out(error: io::Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { Error::TimedOut } else { Error::Io(error) }
}

#[cfg(test)]
mod tests;
