//! Hot upgrade: a running proxy hands its listening sockets to its successor.
//!
//! The running proxy waits on a Unix socket and sends all listening sockets over it, the Unix socket itself
//! first; the successor reads the addresses from the sockets. The successor accepts beside the running proxy
//! once it has its routing information, and reports that it serves. Only then does the running proxy stop
//! accepting and drain. If the successor fails before that, the running proxy continues. Before its sockets it sends
//! its [`KeptOptions`], and a successor with other ones gives up.
//!
//! Sockets are passed rather than bound a second time with `SO_REUSEPORT`: closing a socket resets the
//! connections in its accept queue, and here no socket is closed.

use std::{
    fs,
    future::Future,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
        unix::net::UnixListener as StdUnixListener,
    },
    path::Path,
    time::Duration,
};

use fairmesh_shared_memory::{DescriptorChannel, MAX_DESCRIPTORS};
use rustix::process::Pid;
use tokio::{
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};

use crate::lifecycle::kept_options::KeptOptions;

/// First message of the successor, with the protocol version.
const HELLO: &[u8] = b"fairmesh handover 2";
/// First message of version 1, in which the predecessor does not send its options.
const HELLO_1: &[u8] = b"fairmesh handover 1";
/// Message sent together with sockets: more messages with sockets follow.
const MORE: &[u8] = b"more";
const ALL: &[u8] = b"all";
/// Message of the successor: it is serving.
const SERVING: &[u8] = b"serving";
/// Message of the predecessor: it has stopped accepting.
const STOPPED: &[u8] = b"stopped";

/// Time limit for messages that a peer can send without preparation.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum number of messages that carry sockets. Enough for more than a thousand listeners.
const MAX_FRAMES: usize = 16;
/// Mode of the Unix socket. Any process that connects receives the sockets, so only the same user and root may
/// connect.
const SOCKET_MODE: u32 = 0o600;

/// The running proxy that this process will replace.
#[derive(Debug)]
pub struct Predecessor(DescriptorChannel);

/// Sockets received from the predecessor. Unused ones are closed.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<std::net::TcpListener>,
    handover: Option<StdUnixListener>,
}

/// Offers the listeners of this proxy to a successor.
#[derive(Debug)]
pub struct Handover {
    listener: UnixListener,
    sockets: Vec<OwnedFd>,
    options: KeptOptions,
}

/// A successor that is already serving, and waits until this proxy has stopped accepting.
#[derive(Debug)]
pub struct Successor {
    channel: DescriptorChannel,
    process: Option<Pid>,
}

impl Predecessor {
    /// Receives the sockets of the proxy that listens at `path`; `None` if there is none.
    ///
    /// # Errors
    /// The proxy does not hand over, or it has options that are not among `options`.
    pub async fn find(path: &Path, options: &KeptOptions) -> io::Result<Option<(Self, Inherited)>> {
        let Some(mut channel) = connect(path).await? else { return Ok(None) };
        let running = within_limit(receive_options(&mut channel)).await?;
        match running {
            Some(running) => options.check(&running)?,
            // The previous release closes the connection after an unknown version.
            None => {
                let Some(again) = connect(path).await? else { return Ok(None) };
                channel = again;
                channel.send(HELLO_1, &[]).await?;
            }
        }
        let inherited = within_limit(receive_sockets(&mut channel)).await?;
        Ok(Some((Self(channel), inherited)))
    }

    /// Reports that this proxy serves, and waits until the predecessor has stopped accepting. A closed connection
    /// also means that it has stopped.
    pub async fn take_over(mut self) {
        let exchange = async {
            self.0.send(SERVING, &[]).await?;
            self.0.receive().await
        };
        match timeout(MESSAGE_TIMEOUT, exchange).await {
            Ok(Ok(_)) => tracing::info!("took over from the previous proxy, which drains"),
            Ok(Err(error)) => tracing::warn!(%error, "the previous proxy ended early"),
            Err(_) => {
                tracing::warn!(
                    "the previous proxy does not confirm that it has stopped; check whether it hangs"
                )
            }
        }
    }
}

/// Connects to the proxy that listens at `path`; `None` if there is none.
async fn connect(path: &Path) -> io::Result<Option<DescriptorChannel>> {
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(DescriptorChannel::new(stream))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn within_limit<T>(exchange: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(MESSAGE_TIMEOUT, exchange).await.map_err(|_| timed_out())?
}

/// Introduces this process and receives the options of the predecessor; `None` if it does not know this version.
async fn receive_options(channel: &mut DescriptorChannel) -> io::Result<Option<KeptOptions>> {
    channel.send(HELLO, &[]).await?;
    Ok(channel.receive().await?.map(|(message, _)| KeptOptions::from_message(&message)))
}

async fn receive_sockets(channel: &mut DescriptorChannel) -> io::Result<Inherited> {
    let mut handles = Vec::new();
    for _ in 0..MAX_FRAMES {
        let Some((message, some)) = channel.receive().await? else {
            return Err(protocol_error("the peer speaks another version of the handover protocol"));
        };
        handles.extend(some);
        match &message[..] {
            MORE => {}
            ALL => return Inherited::new(handles),
            _ => break,
        }
    }
    Err(protocol_error("the peer speaks another version of the handover protocol"))
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

    /// Takes the listener that is bound to exactly this address.
    pub fn take(&mut self, address: SocketAddr) -> Option<std::net::TcpListener> {
        let is_it = |listener: &std::net::TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        let index = self.sockets.iter().position(is_it)?;
        Some(self.sockets.swap_remove(index))
    }
}

impl Handover {
    /// Listens at `path` for a successor with these `options`, or on the `inherited` socket for that path. Keeps
    /// copies of the listeners until dropped.
    pub fn open<'a>(
        (path, options): (&Path, &KeptOptions),
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
        Ok(Self { listener, sockets: sockets.collect::<io::Result<_>>()?, options: options.clone() })
    }

    /// Waits until a successor serves. Failed attempts change nothing.
    pub async fn wait_successor(&self) -> Successor {
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
                Ok(None) => tracing::warn!("a successor gave up; this proxy continues"),
                Err(error) => tracing::warn!(%error, "handover failed; this proxy continues"),
            }
        }
    }

    async fn hand_over(&self, stream: UnixStream) -> io::Result<Option<Successor>> {
        let peer = stream.peer_cred()?;
        let uid = peer.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer runs as another user"));
        }
        let mut channel = DescriptorChannel::new(stream);
        match within_limit(channel.receive()).await? {
            Some((message, _)) if &message[..] == HELLO => {
                channel.send(&self.options.to_message(), &[]).await?
            }
            Some((message, _)) if &message[..] == HELLO_1 => {}
            Some(_) => {
                return Err(protocol_error("the peer speaks another version of the handover protocol"));
            }
            None => return Ok(None),
        }
        tracing::info!(listeners = self.sockets.len(), "a successor is about to take over");
        let all: Vec<_> =
            [self.listener.as_fd()].into_iter().chain(self.sockets.iter().map(AsFd::as_fd)).collect();
        let mut frames = all.chunks(MAX_DESCRIPTORS).peekable();
        while let Some(handles) = frames.next() {
            let message = if frames.peek().is_some() { MORE } else { ALL };
            channel.send(message, handles).await?;
        }
        // No time limit: the successor waits for its routing information, and its exit closes the connection.
        match channel.receive().await? {
            Some((message, _)) if &message[..] == SERVING => {
                Ok(Some(Successor { channel, process: peer.pid().and_then(Pid::from_raw) }))
            }
            Some(_) => Err(protocol_error("the peer speaks another version of the handover protocol")),
            None => Ok(None),
        }
    }
}

impl Successor {
    /// Process id of the successor; `None` in another PID namespace, such as another container.
    pub fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Reports that this proxy has stopped accepting.
    pub async fn confirm_stopped(self) {
        // The successor may have exited.
        let _ = self.channel.send(STOPPED, &[]).await;
    }
}

/// Listens at `path` if no process does. The file is not removed when a proxy exits: it might be the
/// successor's.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
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
    io::Error::new(io::ErrorKind::TimedOut, "no response; another upgrade may be in progress")
}

fn protocol_error(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests;
