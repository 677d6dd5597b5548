use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    task::Context,
};

use fairmesh_listen::{Acceptor, GuardedStream, Limits, Memory};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::{Address, Socket, Stream, Transport, UserPlaces, configure};
use crate::lock_file;

/// Mode of sockets: any user of the machine may connect. The folder restricts access, and permissions depend on the
/// identity.
const SOCKET_MODE: u32 = 0o666;

/// Why listening on an address failed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("another process already listens on {address}; stop it, or choose another address")]
    InUse {
        /// The address.
        address: Address,
    },
    /// The path exists and is not a socket. It is never deleted.
    #[error("{} is not a socket; move it away, or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system call failed.
    #[error("cannot listen on {address}: {source}; check the address and the permissions of this user")]
    Failed {
        /// The address.
        address: Address,
        /// The system error.
        source: io::Error,
    },
}

/// Accepts connections. Dropping it closes the port, or removes the socket file.
#[derive(Debug)]
pub struct Listener {
    inner: Inner,
    acceptor: Acceptor,
    transport: Transport,
    with_joining: bool,
    takes_tokens: bool,
    attests: bool,
    users: Option<UserPlaces>,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens on `address`. A stale socket file is replaced; missing folders are created.
    pub(super) async fn bind(address: &Address, transport: Transport) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone() },
            _ => BindError::Failed { address: address.clone(), source },
        };
        let inner = match address {
            Address::Tcp(address) => Inner::Tcp(TcpListener::bind(address).await.map_err(failed)?),
            Address::Unix(path) => {
                let lock = lock(path).map_err(failed)?;
                remove_stale(path).await?.map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
                Inner::Unix(listener, SocketFile::new(path, lock).map_err(failed)?)
            }
        };
        let acceptor = Acceptor::new("calls", Limits::calls(), Memory::default());
        let (with_joining, takes_tokens, attests, users) = (false, false, false, None);
        Ok(Self { inner, acceptor, transport, with_joining, takes_tokens, attests, users })
    }

    /// Shares the connection limits of `acceptor` with other listeners of the process, instead of using separate
    /// limits.
    #[must_use]
    pub fn within(self, acceptor: Acceptor) -> Self {
        Self { acceptor, ..self }
    }

    /// Also accepts peers without a certificate, for the calls with which they obtain one. Only
    /// [`serve`](super::serve) refuses their other calls.
    #[must_use]
    pub fn with_joining(self) -> Self {
        Self { with_joining: true, ..self }
    }

    /// Also accepts calls and watches of clients without a certificate that send a user token. The process must
    /// verify the token. For control planes.
    #[must_use]
    pub fn with_users(self) -> Self {
        Self { takes_tokens: true, ..self.with_joining() }
    }

    /// Asks the kernel for facts about each program that connects over a Unix socket, for
    /// [`program_of`](super::program_of).
    #[must_use]
    pub fn attesting(self) -> Self {
        Self { attests: true, ..self }
    }

    /// Limits each local user to `most` connections over a Unix socket, so that one user cannot use up the slots of
    /// others. Further connections of the user are closed.
    #[must_use]
    pub fn with_connections_of_user(self, most: usize) -> Self {
        Self { users: Some(UserPlaces::new(most)), ..self }
    }

    /// The address of the listener, with the port that the system assigned for port 0.
    pub fn address(&self) -> io::Result<Address> {
        match &self.inner {
            Inner::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Inner::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// Waits for a free connection slot and the next connection. System errors are logged, and accepting is retried
    /// after a pause.
    pub async fn accept(&self) -> Accepted {
        let accept = |cx: &mut Context<'_>| match &self.inner {
            Inner::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream)),
            Inner::Unix(listener, _) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Unix(stream)),
        };
        Accepted {
            stream: self.acceptor.accept(accept).await,
            transport: self.transport.clone(),
            with_joining: self.with_joining,
            takes_tokens: self.takes_tokens,
            attests: self.attests,
            users: self.users.clone(),
        }
    }
}

/// An accepted connection before its handshake.
#[derive(Debug)]
pub struct Accepted {
    stream: GuardedStream<Stream>,
    transport: Transport,
    with_joining: bool,
    takes_tokens: bool,
    attests: bool,
    users: Option<UserPlaces>,
}

impl Accepted {
    /// Performs the handshake.
    ///
    /// # Errors
    /// If the handshake fails, or a limit of the listener closed the connection.
    pub async fn handshake(self) -> io::Result<Socket> {
        let Self { stream, transport, with_joining, takes_tokens, attests, users } = self;
        if let Some(socket) = stream.get_ref().tcp() {
            configure(socket)?;
        }
        let socket =
            Socket::new(transport.accept_mesh(stream, with_joining).await?)?.taking_tokens(takes_tokens);
        let socket = match users {
            Some(users) => socket.placed(&users)?,
            None => socket,
        };
        if attests { socket.attest() } else { Ok(socket) }
    }
}

/// Locks the file beside the socket. Without the lock, two processes that start together could treat each other's
/// socket as stale. The system releases the lock when the process ends for any reason.
fn lock(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    lock_file(Path::new(&beside)).map_err(|error| match error {
        TryLockError::WouldBlock => io::ErrorKind::AddrInUse.into(),
        TryLockError::Error(error) => error,
    })
}

/// Removes a stale socket file.
async fn remove_stale(path: &Path) -> Result<io::Result<()>, BindError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(())),
        Err(error) => return Ok(Err(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    Ok(match UnixStream::connect(path).await {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    })
}

/// The socket file of a listener. Removed with the listener, unless another file has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Lock, held as long as the file belongs to this listener.
    _lock: File,
}

impl SocketFile {
    fn new(path: &Path, lock: File) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)?, _lock: lock })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If removal fails, the next process finds a stale file and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
