//! Hot upgrade: a running proxy hands its listeners to its successor, which says when it serves.
//!
//! The running one waits on a Unix socket. Who comes there gets every listener, that socket first; a listener says itself
//! where it listens, so that nothing else has to be told. The successor accepts beside it once it knows what to serve, says
//! so, and only then the first one stops and drains. Whatever happens to the successor before that word, the first goes on.
//!
//! Handing the sockets themselves over was preferred to a second one on the same port (`SO_REUSEPORT`): connections that
//! wait in the queue of a socket that is closed are reset, and here nobody closes it.

use std::{
    fs, io,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
        unix::net::UnixListener as StdUnixListener,
    },
    path::Path,
    time::Duration,
};

use fairmesh_sealed::{Channel, MAX_HANDLES};
use rustix::process::Pid;
use tokio::{
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};

/// The first word of a successor, with the version of what is said here.
const HELLO: &[u8] = b"fairmesh handover 1";
/// What comes with listeners: whether there are more.
const MORE: &[u8] = b"more";
const ALL: &[u8] = b"all";
/// The successor serves.
const SERVING: &[u8] = b"serving";
/// The one before it accepts no more.
const STOPPED: &[u8] = b"stopped";

/// How long either side may take for what it does at once.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before accepting again when the system refuses.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The most frames of listeners: a thousand are more than anybody has.
const MAX_FRAMES: usize = 16;
/// Whoever may connect gets the listeners: the same user and root.
const SOCKET_MODE: u32 = 0o600;

/// The running proxy that is to be succeeded.
#[derive(Debug)]
pub(crate) struct Predecessor(Channel);

/// What a predecessor handed over. What nobody takes is closed.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    sockets: Vec<std::net::TcpListener>,
    handover: Option<StdUnixListener>,
}

/// Waits for a successor.
#[derive(Debug)]
pub(crate) struct Handover {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
}

/// Who has taken over, and waits to hear that nobody else accepts.
#[derive(Debug)]
pub(crate) struct Successor {
    channel: Channel,
    process: Option<Pid>,
}

impl Predecessor {
    /// Gets the listeners of the proxy that waits at `path`, where one does.
    pub(crate) async fn find(path: &Path) -> io::Result<Option<(Self, Inherited)>> {
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut channel = Channel::new(stream);
        let inherited = timeout(MESSAGE_TIMEOUT, receive(&mut channel)).await.map_err(|_| timed_out())??;
        Ok(Some((Self(channel), inherited)))
    }

    /// Tells it that this one serves, and waits until it accepts no more. One that is gone has stopped as well.
    pub(crate) async fn take_over(mut self) {
        let exchange = async {
            self.0.send(SERVING, &[]).await?;
            self.0.receive().await
        };
        match timeout(MESSAGE_TIMEOUT, exchange).await {
            Ok(Ok(_)) => tracing::info!("took over from the proxy before; it drains"),
            Ok(Err(error)) => tracing::warn!(%error, "the proxy before ended before it was told to"),
            Err(_) => {
                tracing::warn!("the proxy before does not say that it has stopped; look whether it hangs")
            }
        }
    }
}

async fn receive(channel: &mut Channel) -> io::Result<Inherited> {
    channel.send(HELLO, &[]).await?;
    let mut handles = Vec::new();
    for _ in 0..MAX_FRAMES {
        let Some((message, some)) = channel.receive().await? else {
            return Err(protocol_error("it speaks another version of the handover"));
        };
        handles.extend(some);
        match &message[..] {
            MORE => {}
            ALL => return Inherited::new(handles),
            _ => break,
        }
    }
    Err(protocol_error("it speaks another version of the handover"))
}

impl Inherited {
    fn new(handles: Vec<OwnedFd>) -> io::Result<Self> {
        let mut handles = handles.into_iter();
        let handover = handles.next().map(StdUnixListener::from);
        let sockets = handles.map(|handle| {
            let listener = std::net::TcpListener::from(handle);
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()?, handover })
    }

    /// A listener at this very address.
    pub(crate) fn take(&mut self, address: SocketAddr) -> Option<std::net::TcpListener> {
        let is_it = |listener: &std::net::TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        let index = self.sockets.iter().position(is_it)?;
        Some(self.sockets.swap_remove(index))
    }
}

impl Handover {
    /// Opens `path` for a successor to come, unless it was `inherited`, and holds on to the listeners until it is dropped.
    pub(crate) fn open<'a>(
        path: &Path,
        inherited: Inherited,
        listeners: impl IntoIterator<Item = &'a tokio::net::TcpListener>,
    ) -> io::Result<Self> {
        let listener = match inherited.handover {
            Some(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)?
            }
            None => bind(path)?,
        };
        let sockets = listeners.into_iter().map(|listener| listener.as_fd().try_clone_to_owned());
        Ok(Self { listener, sockets: sockets.collect::<io::Result<_>>()? })
    }

    /// Waits until somebody has taken over. Who fails before that changes nothing.
    pub(crate) async fn wait_successor(&self) -> Successor {
        loop {
            let handed = match self.listener.accept().await {
                Ok((stream, _)) => self.hand_over(stream).await,
                Err(error) => {
                    sleep(ACCEPT_RETRY).await;
                    Err(error)
                }
            };
            match handed {
                Ok(Some(successor)) => return successor,
                Ok(None) => tracing::warn!("a successor gave up; this proxy goes on"),
                Err(error) => tracing::warn!(%error, "nobody took over; this proxy goes on"),
            }
        }
    }

    async fn hand_over(&self, stream: UnixStream) -> io::Result<Option<Successor>> {
        let peer = stream.peer_cred()?;
        let uid = peer.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it runs as another user"));
        }
        let mut channel = Channel::new(stream);
        let hello = timeout(MESSAGE_TIMEOUT, channel.receive()).await.map_err(|_| timed_out())??;
        match hello {
            Some((message, _)) if &message[..] == HELLO => {}
            Some(_) => return Err(protocol_error("it speaks another version of the handover")),
            None => return Ok(None),
        }
        tracing::info!(listeners = self.sockets.len(), "a successor is about to take over");
        let all: Vec<_> =
            [self.listener.as_fd()].into_iter().chain(self.sockets.iter().map(AsFd::as_fd)).collect();
        let mut frames = all.chunks(MAX_HANDLES).peekable();
        while let Some(handles) = frames.next() {
            let message = if frames.peek().is_some() { MORE } else { ALL };
            channel.send(message, handles).await?;
        }
        // It takes the time that it needs to learn what to serve; its end is noticed.
        match channel.receive().await? {
            Some((message, _)) if &message[..] == SERVING => {
                Ok(Some(Successor { channel, process: peer.pid().and_then(Pid::from_raw) }))
            }
            Some(_) => Err(protocol_error("it speaks another version of the handover")),
            None => Ok(None),
        }
    }
}

impl Successor {
    /// Which process it is, where the system knows: of one among other processes, such as another container's, it does not.
    pub(crate) fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Tells it that nobody else accepts any more.
    pub(crate) async fn confirm_stopped(self) {
        // One that is gone meanwhile is told nothing.
        let _ = self.channel.send(STOPPED, &[]).await;
    }
}

/// Listens at `path`, where nobody does. The file stays for the next one when a proxy ends: to remove it could take away
/// what a successor has.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "what is there is not a socket"));
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
        }
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer; another upgrade may be under way")
}

fn protocol_error(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests;
