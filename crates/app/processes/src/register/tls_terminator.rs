//! Listens for callers in front of a program that speaks plaintext, with mutual TLS in a mesh with a trust domain.

use std::{io, net::SocketAddr, task::Context, time::Duration};

use fairmesh_console::failure::Failure;
use fairmesh_edge::tunnel::copy::BidirectionalCopy;
use fairmesh_listen::{Acceptor, GuardedStream, Limits, Memory};
use fairmesh_proxy::ProgramFront;
use fairmesh_server::{ConnectionAuthorizer, identity_of};
use fairmesh_wire::transport::{Stream, Transport};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// Timeout for connecting to the program, which is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Listener for callers. Dropping it ends its connections.
#[derive(Debug)]
pub(super) struct Terminator {
    address: SocketAddr,
    authorizer: ConnectionAuthorizer,
    forwarding: Forwarding,
    _serving: JoinSet<()>,
}

impl Terminator {
    /// Listens at `address` (port 0: any port), and forwards connections to the program.
    pub(super) async fn start(
        address: SocketAddr,
        (transport, authorizer): (Transport, ConnectionAuthorizer),
        forwarding: Forwarding,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::failed_with(
                format!("cannot listen on {address} in front of the program: {error}"),
                "give a free address of this machine: to --listen, or to --address beside --program",
            )
        })?;
        let address = listener.local_addr().map_err(Failure::failed)?;
        let mut serving = JoinSet::new();
        let front = Front { forwarding: forwarding.clone(), transport, authorizer: authorizer.clone() };
        serving.spawn(serve(listener, front));
        Ok(Self { address, authorizer, forwarding, _serving: serving })
    }

    /// Address of the listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The authorizer, which decides who may call.
    pub(super) fn authorizer(&self) -> &ConnectionAuthorizer {
        &self.authorizer
    }

    /// Closes the listener and its connections, and tells the agent that the policy is no longer used.
    pub(super) async fn close(self) {
        if let Forwarding::Requests(front, _) = &self.forwarding {
            front.stop();
        }
        self.authorizer.close().await;
    }
}

/// Mode of forwarding connections to the program.
#[derive(Clone, Debug)]
pub(super) enum Forwarding {
    /// Forward bytes to this address.
    Bytes(SocketAddr),
    /// Forward requests to the program at this address.
    Requests(ProgramFront, SocketAddr),
}

impl Forwarding {
    fn program(&self) -> SocketAddr {
        match self {
            Self::Bytes(program) | Self::Requests(_, program) => *program,
        }
    }
}

/// Parameters for accepting and forwarding connections.
#[derive(Clone, Debug)]
struct Front {
    forwarding: Forwarding,
    transport: Transport,
    authorizer: ConnectionAuthorizer,
}

async fn serve(listener: TcpListener, front: Front) {
    let acceptor = Acceptor::new("program", Limits::program(), Memory::default());
    let mut connections = JoinSet::new();
    loop {
        let accept =
            |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream));
        tokio::select! {
            stream = acceptor.accept(accept) => {
                let front = front.clone();
                connections.spawn(async move {
                    if let Err(error) = front.forward(stream).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

impl Front {
    async fn forward(&self, stream: GuardedStream<Stream>) -> io::Result<()> {
        if let Some(socket) = stream.get_ref().tcp() {
            socket.set_nodelay(true)?;
        }
        let stream = self.transport.accept(stream).await?;
        let (peer, program) = (identity_of(&stream), self.forwarding.program());
        let Some(stream) = self.authorizer.accept(stream, program).await else { return Ok(()) };
        // The request server has its own limits. When forwarding bytes, the ends of requests are not visible.
        let caller = stream.exempt_once_begun();
        if let Forwarding::Requests(front, _) = &self.forwarding {
            front.serve(caller).await;
            return Ok(());
        }
        let program = timeout(CONNECT_TIMEOUT, TcpStream::connect(program)).await??;
        program.set_nodelay(true)?;
        tokio::select! {
            ended = BidirectionalCopy::new(caller, program) => ended,
            () = self.authorizer.revoked(&peer) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}
