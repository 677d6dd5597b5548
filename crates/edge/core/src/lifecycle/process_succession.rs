//! Runs a process with listeners until it stops accepting, and hands the listeners to a successor.

use std::{
    future::{Future, pending},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpListener, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    lifecycle::{
        kept_options::KeptOptions,
        service_manager,
        socket_handover::{Handover, Inherited, Predecessor, Successor},
    },
    shutdown::Shutdown,
};

/// Reason why a process cannot start or cannot replace the running process, which then continues.
#[derive(Debug, thiserror::Error)]
pub enum SuccessionError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}; choose another address, or stop the process that uses it")]
    Listen {
        /// The address that cannot be bound.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The handover socket cannot be used, or the running process did not hand over.
    #[error(
        "cannot take over at {}: {source}; a process that runs there continues; fix the cause, or stop it first",
        path.display()
    )]
    Handover {
        /// Path of the handover socket.
        path: PathBuf,
        /// Error of the operating system or of the handover protocol.
        source: io::Error,
    },
    /// The successor was not ready within the time limit.
    #[error("not ready within {waited:?}; the running process continues; check --agent, and start again")]
    NotReady {
        /// Time that the process waited.
        waited: Duration,
    },
}

/// The listeners of a process, and the processes before and after it.
#[derive(Debug)]
pub struct Succession {
    /// The bound listeners, in the order of their addresses.
    pub listeners: Vec<TcpListener>,
    predecessor: Option<Predecessor>,
    handover: Option<Handover>,
}

/// How a process stops.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Shutdown that is started once the process no longer accepts connections.
    pub shutdown: Arc<Shutdown>,
    /// Time that open connections have to end.
    pub drain: Duration,
    /// Time limit for a successor to become ready.
    pub ready_within: Duration,
}

/// Reason why a process stopped accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A successor serves its listeners.
    Succeeded,
    /// The process was asked to stop.
    Stopped,
}

impl Succession {
    /// Binds the addresses, or takes over the sockets of the process that runs at `path` with the same `options`.
    ///
    /// # Errors
    /// An address cannot be bound, the running process does not hand over, or its options differ.
    pub async fn bind(
        addresses: &[SocketAddr],
        (path, options): (Option<&Path>, &KeptOptions),
    ) -> Result<Self, SuccessionError> {
        let (predecessor, mut inherited) = match path {
            Some(path) => {
                found(path, options).await?.map_or_else(Default::default, |(one, all)| (Some(one), all))
            }
            None => Default::default(),
        };
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let bound = bind(*address, &mut inherited).await;
            listeners.push(bound.map_err(|source| SuccessionError::Listen { address: *address, source })?);
        }
        let open = |path: &Path| {
            let opened = Handover::open((path, options), inherited, &listeners);
            opened.map_err(|source| SuccessionError::Handover { path: path.to_owned(), source })
        };
        let handover = path.map(open).transpose()?;
        Ok(Self { listeners, predecessor, handover })
    }

    /// Whether this process takes over from a running one.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Waits for `ready`, then accepts connections until `stop` completes or a successor serves, and then
    /// starts the shutdown. When it returns, the tasks that `accept` started have ended; open connections
    /// have until the drain deadline.
    ///
    /// # Errors
    /// A predecessor runs, and this process is not ready in time.
    pub async fn run(
        self,
        ready: impl Future<Output = ()>,
        accept: impl FnOnce(Vec<TcpListener>, &TaskTracker),
        ends: Stop,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, SuccessionError> {
        let Self { listeners, predecessor, handover } = self;
        let accepting = TaskTracker::new();
        let serving = async {
            let is_first = predecessor.is_none();
            if is_first {
                service_manager::notify_listening();
                ready.await;
            } else {
                let waited = ends.ready_within;
                timeout(waited, ready).await.map_err(|_| SuccessionError::NotReady { waited })?;
            }
            accept(listeners, &accepting);
            if let Some(predecessor) = predecessor {
                predecessor.take_over().await;
            }
            service_manager::notify_serving();
            match &handover {
                Some(handover) => Ok::<Successor, SuccessionError>(handover.wait_successor().await),
                None => pending().await,
            }
        };
        let successor = tokio::select! {
            successor = serving => Some(successor?),
            () = stop => None,
        };
        ends.shutdown.start(ends.drain);
        accepting.close();
        accepting.wait().await;
        drop(handover);
        Ok(leave(successor).await)
    }
}

/// Tells the service manager and the successor that this process no longer accepts connections.
async fn leave(successor: Option<Successor>) -> Ended {
    let Some(successor) = successor else {
        service_manager::notify_draining();
        return Ended::Stopped;
    };
    service_manager::notify_successor(successor.process());
    successor.confirm_stopped().await;
    Ended::Succeeded
}

async fn found(
    path: &Path,
    options: &KeptOptions,
) -> Result<Option<(Predecessor, Inherited)>, SuccessionError> {
    let found = Predecessor::find(path, options).await;
    found.map_err(|source| SuccessionError::Handover { path: path.to_owned(), source })
}

async fn bind(address: SocketAddr, inherited: &mut Inherited) -> io::Result<TcpListener> {
    match inherited.take(address) {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(address).await,
    }
}
