//! Listeners in the network namespaces of containers. `fairmesh kernel attach` opens them there and passes them to this proxy, and
//! a proxy to its successor; neither the proxy nor its successor can enter these namespaces.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use fairmesh_edge::listen::LogLimiter;
use fairmesh_kernel::{Container, ContainerSocket, Listening};
use fairmesh_shared_memory::DescriptorChannel;
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, UnixListener, UnixStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// The message with which a listener is passed. Its descriptors are the listener and a process of the container.
const OFFER: &[u8] = b"fairmesh container 1";
/// Interval of attempts to accept while descriptors are exhausted.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);
/// Limits log lines about connections that pass no listener: any program in the proxy's network can connect.
static NOT_PASSED: LogLimiter = LogLimiter::new();
/// Time limit of an exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listener in the network namespace of a container.
#[derive(Debug)]
pub(crate) struct ContainerListener {
    pub(crate) listener: TcpListener,
    /// A process of the container. The descriptor is readable once the process has ended.
    process: AsyncFd<OwnedFd>,
    /// Cancelled once the listener is closed or is to be closed: its container has ended, another listener has replaced it, or
    /// nothing is attached any more.
    pub(crate) closed: CancellationToken,
}

/// The socket at which this proxy takes listeners.
#[derive(Debug)]
pub(crate) struct ContainerListeners {
    listener: UnixListener,
    pub(crate) socket: ContainerSocket,
}

/// A listener that was passed, and the sender, who waits for an answer.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) listener: ContainerListener,
    sender: DescriptorChannel,
}

impl ContainerListeners {
    /// Opens the socket. Without it, as where a profile denies abstract sockets, programs outside of containers are served.
    pub(crate) fn open() -> Option<Self> {
        let opened = Self::try_open();
        if let Err(error) = &opened {
            tracing::warn!(%error, "containers cannot use this proxy: no socket for their listeners");
        }
        opened.ok()
    }

    fn try_open() -> io::Result<Self> {
        let (listener, socket) = ContainerSocket::open()?;
        Ok(Self { listener: UnixListener::from_std(listener)?, socket })
    }

    /// The next listener that somebody passes.
    pub(crate) async fn next(&self) -> Offer {
        loop {
            let received = match self.listener.accept().await {
                Ok((stream, _)) => timeout(EXCHANGE_TIMEOUT, receive(stream)).await.map_err(io::Error::from),
                Err(error) => {
                    // The process has no descriptors left, for example.
                    sleep(ACCEPT_INTERVAL).await;
                    Err(error)
                }
            };
            match received.and_then(|received| received) {
                Ok(offer) => return offer,
                Err(error) => {
                    if let Some(suppressed) = NOT_PASSED.next() {
                        tracing::warn!(%error, suppressed, "a listener of a container was not passed");
                    }
                }
            }
        }
    }
}

/// Receives a listener from root, or from another process of this proxy's user.
async fn receive(stream: UnixStream) -> io::Result<Offer> {
    let user = stream.peer_cred()?.uid();
    if user != 0 && user != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("user {user} may not pass one")));
    }
    let mut sender = DescriptorChannel::new(stream);
    let (message, descriptors) = sender.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let [listener, process] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| io::Error::other("the message has other descriptors than two"))?;
    if message != OFFER {
        return Err(io::Error::other("the message is of another release"));
    }
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let process = watch_readable(process)?;
    Ok(Offer { listener: ContainerListener { listener, process, closed: CancellationToken::new() }, sender })
}

/// Watches a descriptor: of a process, for example, which is readable once the process has ended.
///
/// # Errors
/// When the system cannot watch it.
#[allow(unsafe_code, reason = "tokio has no safe function for descriptors that are no sockets")]
pub fn watch_readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same one, as long as it exists.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    watched.map_err(io::Error::from)
}

impl Offer {
    /// Tells the sender whether the listener is used; an error gives the reason why not. Returns the listener if it is used.
    pub(crate) async fn answer(self, result: Result<(), String>) -> Option<ContainerListener> {
        let Self { listener, sender } = self;
        let text = result.as_ref().err().map_or("", String::as_str);
        // Without an answer, the sender offers another one.
        let _ = timeout(EXCHANGE_TIMEOUT, sender.send(text.as_bytes(), &[])).await;
        result.ok().map(|()| listener)
    }
}

impl ContainerListener {
    /// Completes once the listener is of no use here.
    pub(crate) async fn wait_closed(&self) {
        tokio::select! {
            _ = self.process.readable() => {}
            () = self.closed.cancelled() => {}
        }
    }

    /// Passes the listener to the proxy that has succeeded this one.
    pub(crate) async fn pass_on(&self, successor: &Listening) -> io::Result<()> {
        offer(successor, [self.listener.as_fd(), self.process.as_fd()]).await
    }
}

/// Opens a listener in a container and passes it to a proxy. Returns the number of the container's network namespace.
///
/// # Errors
/// When the namespace cannot be entered, or the proxy does not take the listener.
pub async fn listen_in_container(proxy: &Listening, container: &Container) -> io::Result<u64> {
    let (listener, namespace) = container.open_listener().map_err(io::Error::other)?;
    offer(proxy, [listener.as_fd(), container.process()]).await?;
    Ok(namespace)
}

async fn offer(to: &Listening, descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let none = || io::Error::other("the proxy takes no listeners of containers");
    let stream = to.container_socket.ok_or_else(none)?.connect(to.proxy)?;
    let stream = UnixStream::from_std(stream)?;
    // Once the proxy has ended, any program can get its address.
    let other = stream.peer_cred()?.pid();
    if other.and_then(|pid| u32::try_from(pid).ok()) != Some(to.proxy) {
        return Err(io::Error::other("another process has the proxy's address for listeners of containers"));
    }
    let exchange = async {
        let mut channel = DescriptorChannel::new(stream);
        channel.send(OFFER, &descriptors).await?;
        channel.receive().await?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let (answer, _) = timeout(EXCHANGE_TIMEOUT, exchange).await??;
    match answer.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned())),
    }
}
