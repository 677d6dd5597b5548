//! Terminates mutual TLS in front of a program that speaks plaintext.

use std::{io, net::SocketAddr, task::Context, time::Duration};

use fairmesh_listen::{Acceptor, GuardedStream, Limits, Memory};
use fairmesh_wire::transport::{Stream, Transport};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::failure::Failure;

/// Time limit of a connection to the program, which is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Listens for callers; connections end with it.
#[derive(Debug)]
pub(super) struct Terminator {
    _serving: JoinSet<()>,
}

impl Terminator {
    /// Listens at `address`, and forwards the bytes of connections to `program`.
    pub(super) async fn start(
        address: SocketAddr,
        program: SocketAddr,
        transport: Transport,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::failed_with(
                format!("cannot listen on {address} in front of the program: {error}"),
                "have the program listen at the address of --program, and no other at that of --address",
            )
        })?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, program, transport));
        Ok(Self { _serving: serving })
    }
}

async fn serve(listener: TcpListener, program: SocketAddr, transport: Transport) {
    let acceptor = Acceptor::new("program", Limits::program(), Memory::default());
    let mut connections = JoinSet::new();
    loop {
        let accept =
            |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream));
        tokio::select! {
            stream = acceptor.accept(accept) => {
                let transport = transport.clone();
                connections.spawn(async move {
                    if let Err(error) = forward(stream, program, &transport).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(
    stream: GuardedStream<Stream>,
    program: SocketAddr,
    transport: &Transport,
) -> io::Result<()> {
    if let Some(socket) = stream.get_ref().tcp() {
        socket.set_nodelay(true)?;
    }
    // The ends of requests are not visible here.
    let mut caller = transport.accept(stream).await?.exempt_once_begun();
    let mut program = timeout(CONNECT_TIMEOUT, TcpStream::connect(program)).await??;
    program.set_nodelay(true)?;
    copy_bidirectional(&mut caller, &mut program).await.map(drop)
}
