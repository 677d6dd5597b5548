//! Permits for endpoints with mutual TLS on this machine: the listener in front of a program says for a moment, by mutual TLS,
//! that every request of this proxy is allowed, and where the program listens. The question is a load poll with a header, which
//! other servers answer as such. The kernel then sends requests to the program in plaintext, which never leaves the kernel.
//! What ends connections by mutual TLS ends this too: the same process decides, by the same rules, for the same certificate.
//!
//! A listener may name its own program alone: it has any identity of the mesh, and requests to it are not meant for another
//! service's program. So the kernel has to say that both sockets were made by processes of one cgroup and user.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use fairmesh_headers::{LOAD_PATH, LOCAL_HOST};
use fairmesh_kernel::{Permit, SocketOwner, listener_owner, peer_owner, program_clock};
use fairmesh_model::Identity;
use fairmesh_server::Stream;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    kernel::{
        attached_maps::Attached,
        local_answer::{LocalAnswer, LocalPermission, Parties, read_answer},
        published_endpoint::PublishedEndpoint,
    },
    local_host::local_host,
};

/// How long a permit is in force after the question. So long a revocation takes at most.
const VALID_FOR: Duration = Duration::from_millis(950);
/// Interval of the questions while requests are permitted.
const INTERVAL: Duration = Duration::from_millis(300);
/// Time limit of a connection and of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(600);
/// Pauses after a refusal or a failure: the first one, which doubles, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Time in which the other end of a new connection is established.
const ESTABLISHED_WITHIN: Duration = Duration::from_millis(100);
/// Maximum length of an answer's head, in bytes.
const MAX_HEAD: usize = 4096;

/// The way to an endpoint within this machine.
#[derive(Clone, Debug, Default)]
pub(super) enum LocalWay {
    /// The endpoint has not answered yet.
    #[default]
    Unknown,
    /// The requests of the callers need mutual TLS.
    Refused,
    /// The kernel may send them to this program, while its permit is in force.
    Permitted(LocalProgram),
}

/// The program behind an endpoint.
#[derive(Clone, Debug)]
pub(super) struct LocalProgram {
    pub(super) address: SocketAddr,
    pub(super) permit: Arc<Permit>,
    owner: SocketOwner,
}

/// Asks one endpoint, and renews its permit.
struct Follower {
    endpoint: Arc<PublishedEndpoint>,
    attached: Arc<Attached>,
    /// Since the first answer that permitted requests. The connections that the kernel uses lead to this program: another one
    /// gets nothing until the endpoint is published anew.
    program: Option<LocalProgram>,
    pause: Duration,
}

/// A connection by mutual TLS over which an endpoint is asked.
struct Questions<C> {
    connection: C,
    request: String,
    parties: Parties,
    /// The owner of the listener's socket.
    owner: SocketOwner,
}

/// Whether an address is one of this machine: the system would send from that address itself. Nothing is sent.
pub(super) fn is_here(address: SocketAddr) -> bool {
    let to = address.ip().to_canonical();
    let any = match to {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((to, address.port()))?;
        socket.local_addr()
    });
    to.is_loopback() || from.is_ok_and(|from| from.ip() == to)
}

/// Renews the permit until the endpoint is withdrawn, or does not know the question.
pub(super) async fn follow(endpoint: Arc<PublishedEndpoint>, attached: Arc<Attached>) {
    let withdrawn = endpoint.withdrawn.clone();
    let mut follower = Follower { endpoint, attached, program: None, pause: PAUSES[0] };
    tokio::select! {
        () = withdrawn.cancelled() => {}
        () = follower.run() => {}
    }
    follower.refuse();
}

impl Follower {
    async fn run(&mut self) {
        loop {
            let Err(ended) = self.ask_over_connection().await;
            self.refuse();
            let address = self.endpoint.endpoint.target().address;
            tracing::debug!(%address, error = %ended, "requests to this endpoint need mutual TLS");
            if ended.kind() == io::ErrorKind::Unsupported {
                return;
            }
            self.wait().await;
        }
    }

    /// Permits nothing from now on.
    fn refuse(&self) {
        if let Some(program) = &self.program {
            program.permit.end();
        }
        self.endpoint.way.send_replace(LocalWay::Refused);
    }

    /// Waits before the next question, longer each time.
    async fn wait(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES[1]);
    }

    /// Asks over one connection until that fails. The error is of the kind [`Unsupported`](io::ErrorKind::Unsupported) if the
    /// endpoint does not know the question.
    async fn ask_over_connection(&mut self) -> io::Result<Infallible> {
        self.check_policy()?;
        let mut questions = open_questions(&self.endpoint, &self.attached).await?;
        self.endpoint.count_in_place(&self.attached, &questions.parties.caller);
        loop {
            self.check_policy()?;
            let asked = program_clock();
            match questions.ask().await? {
                LocalAnswer::Permits(permission) => {
                    self.permit(permission, questions.owner, asked)?;
                    tokio::select! {
                        () = sleep(INTERVAL) => {}
                        () = self.endpoint.unusable.notified() => {
                            self.pause = PAUSES[1];
                            return Err(io::Error::other("the program is in no cgroup of --servers, or another one's"));
                        }
                    }
                }
                LocalAnswer::Refuses { status } => {
                    self.refuse();
                    let address = self.endpoint.endpoint.target().address;
                    tracing::debug!(%address, status, "the endpoint permits no requests by the kernel");
                    self.wait().await;
                }
                LocalAnswer::Unknown { status } => {
                    let unknown = format!("the endpoint does not know the question: {status}");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, unknown));
                }
            }
        }
    }

    /// Renews the permit, which was asked for at this time, if the program is the listener's own.
    fn permit(&mut self, permission: LocalPermission, owner: SocketOwner, asked: Duration) -> io::Result<()> {
        let LocalPermission { program: address, fields } = permission;
        if !is_here(address) || listener_owner(address)? != owner {
            return Err(io::Error::other(format!(
                "the program at {address} is of another cgroup or user than the listener in front of it"
            )));
        }
        let program = match self.program.take() {
            Some(program) => program,
            None => self.take_permit(address, owner)?,
        };
        let program = self.program.insert(program);
        if (program.address, program.owner) != (address, owner) {
            return Err(io::Error::other("the program has another address or owner now"));
        }
        program.permit.renew(&fields, asked + VALID_FOR);
        self.pause = PAUSES[0];
        self.endpoint.way.send_replace(LocalWay::Permitted(program.clone()));
        Ok(())
    }

    fn check_policy(&self) -> io::Result<()> {
        match self.endpoint.may_take_kernel() {
            true => Ok(()),
            false => Err(io::Error::other("the policy forbids the kernel")),
        }
    }

    fn take_permit(&self, address: SocketAddr, owner: SocketOwner) -> io::Result<LocalProgram> {
        let permit = self.attached.sender().and_then(|sender| sender.permit(&self.endpoint.slots));
        let permit = permit.ok_or_else(|| io::Error::other("all permits are in use"))?;
        Ok(LocalProgram { address, permit: Arc::new(permit), owner })
    }
}

/// Connects to an endpoint, and checks both sides of the connection.
async fn open_questions(
    endpoint: &PublishedEndpoint,
    attached: &Attached,
) -> io::Result<Questions<impl AsyncRead + AsyncWrite + Send + Unpin + use<>>> {
    let address = endpoint.endpoint.target().address;
    let connection = endpoint.endpoint.connect_raw(Instant::now() + ANSWER_TIMEOUT).await?;
    // A permissive policy lets a proxy without a certificate connect in plaintext.
    let Stream::Tls(stream) = &connection.io else {
        return Err(io::Error::other("the endpoint has proved no identity"));
    };
    let (Some(caller), Identity::Spiffe(server) | Identity::Federated(server)) =
        (attached.forwarder.services.mesh.identity(), stream.peer())
    else {
        return Err(io::Error::other("one of both sides has proved no identity"));
    };
    let socket = stream.socket();
    // Before the question, which identifies the machine.
    let owner = peer_owner(socket.local_addr()?, socket.peer_addr()?)?;
    let own = local_host()?;
    let request = format!("GET {LOAD_PATH} HTTP/1.1\r\nhost: {address}\r\n{LOCAL_HOST}: {own}\r\n\r\n");
    Ok(Questions { connection, request, parties: Parties { caller, server }, owner })
}

impl<C: AsyncRead + AsyncWrite + Unpin> Questions<C> {
    async fn ask(&mut self) -> io::Result<LocalAnswer> {
        timeout(ANSWER_TIMEOUT, ask(&mut self.connection, &self.request, &self.parties)).await?
    }
}

/// Asks once, and reads the answer with its body, since the next answer follows.
async fn ask(
    connection: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
    parties: &Parties,
) -> io::Result<LocalAnswer> {
    connection.write_all(request.as_bytes()).await?;
    connection.flush().await?;
    let mut head = Vec::new();
    // Byte by byte: the stream has decrypted them already.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD {
            return Err(io::Error::other("the answer is too long"));
        }
        head.push(connection.read_u8().await?);
    }
    let (answer, body) = read_answer(&head, parties).map_err(io::Error::other)?;
    connection.read_exact(&mut vec![0; body]).await?;
    Ok(answer)
}

impl LocalProgram {
    /// Checks that a new connection leads to a socket of this program's owner, in a cgroup of servers. The listener may have
    /// been replaced since the endpoint named it.
    pub(super) async fn check(&self, stream: &TcpStream, attached: &Attached) -> io::Result<()> {
        let (own, peer) = (stream.local_addr()?, stream.peer_addr()?);
        if established_owner(own, peer).await? != self.owner {
            return Err(io::Error::other("the program is of another cgroup or user than its listener"));
        }
        // The programs note a connection before it is established at the server's end.
        match attached.sender().is_some_and(|sender| sender.is_accepted(own, peer)) {
            true => Ok(()),
            false => Err(io::Error::other("the program is in no cgroup of --servers")),
        }
    }
}

/// The owner of the other end, which may be established a moment later than this one.
async fn established_owner(own: SocketAddr, peer: SocketAddr) -> io::Result<SocketOwner> {
    let began = Instant::now();
    loop {
        match peer_owner(own, peer) {
            Err(_) if began.elapsed() < ESTABLISHED_WITHIN => sleep(Duration::from_millis(1)).await,
            found => return found,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_here() {
        let here = |text: &str| is_here(text.parse().unwrap());
        assert!(here("127.0.0.1:80") && here("127.96.0.1:80") && here("[::ffff:127.0.0.1]:80"));
        assert!(here("[::1]:80"));
        // Documentation addresses (RFC 5737, RFC 3849) are no machine's.
        assert!(!here("192.0.2.1:80") && !here("[2001:db8::1]:80"));
    }

    #[tokio::test]
    async fn refused_question_is_asked_again_over_the_same_connection() {
        let [caller, server] =
            ["spiffe://prod/shop/web", "spiffe://prod/shop/cart"].map(|id| id.parse().unwrap());
        let parties = Parties { caller, server };
        let (mut own, mut other) = duplex(1024);
        let refusals =
            ["403 Forbidden\r\ncontent-length: 3\r\n\r\nno\n", "503 Busy\r\ncontent-length: 0\r\n\r\n"];
        for refusal in refusals {
            other.write_all(format!("HTTP/1.1 {refusal}").as_bytes()).await.unwrap();
        }
        for status in [403, 503] {
            let answer = ask(&mut own, "GET / HTTP/1.1\r\n\r\n", &parties).await.unwrap();
            assert_eq!(answer, LocalAnswer::Refuses { status });
        }
    }
}
