//! Queries over UDP and TCP (RFC 1035, 4.2; RFC 7766).

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    answers::{Answers, Carrier},
    metrics::increment,
};

/// Maximum length of a query, in bytes: a name and EDNS options. A longer query is malformed over UDP, and ends the
/// connection over TCP.
const MAX_QUERY: usize = 4096;
/// Maximum number of UDP queries per socket that wait for the services of a tenant. Further queries are
/// dropped; their clients repeat them.
const MAX_WAITING: usize = 256;
/// Maximum number of connections per socket. Further connections wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
/// Time limit for a connection to be idle, to send a query, and to read a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after an error of a socket.
const RETRY: Duration = Duration::from_millis(100);

/// The tasks that serve queries.
#[derive(Debug)]
pub(crate) struct Server {
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Serves queries on these sockets.
    pub(crate) fn start(sockets: Vec<(UdpSocket, TcpListener)>, answers: &Arc<Answers>) -> Self {
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        for (udp, tcp) in sockets {
            let (udp, tcp) =
                (serve_udp(udp, Arc::clone(answers)), serve_tcp(tcp, Arc::clone(answers), stopping.clone()));
            tasks.spawn(stopping.clone().run_until_cancelled_owned(udp));
            tasks.spawn(stopping.clone().run_until_cancelled_owned(tcp));
        }
        tasks.close();
        Self { stopping, tasks }
    }

    /// Stops serving. Clients repeat unanswered queries.
    pub(crate) async fn stop(self) {
        self.stopping.cancel();
        self.tasks.wait().await;
    }
}

async fn serve_udp(socket: UdpSocket, answers: Arc<Answers>) {
    let (socket, waiting) = (Arc::new(socket), Arc::new(Semaphore::new(MAX_WAITING)));
    let mut buffer = vec![0; MAX_QUERY];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // For instance the ICMP error for an earlier response.
            Err(error) => {
                tracing::debug!(%error, "cannot receive a query");
                sleep(RETRY).await;
                continue;
            }
        };
        let (own, query) = (Arc::clone(&answers), buffer[..length].to_vec());
        let mut responding = Box::pin(async move { own.respond(&query, Carrier::Udp).await });
        // Nearly always ready at once, since the services are known.
        if let Some(response) = responding.as_mut().now_or_never() {
            send(&socket, client, response).await;
            continue;
        }
        let Ok(permit) = Arc::clone(&waiting).try_acquire_owned() else {
            increment(&answers.metrics.shed);
            continue;
        };
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            send(&socket, client, responding.await).await;
            drop(permit);
        });
    }
}

async fn send(socket: &UdpSocket, client: SocketAddr, response: Option<Vec<u8>>) {
    if let Some(response) = response
        && let Err(error) = socket.send_to(&response, client).await
    {
        tracing::debug!(%error, %client, "cannot send a response");
    }
}

async fn serve_tcp(listener: TcpListener, answers: Arc<Answers>, stopping: CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, answers, stopping) = match listener.accept().await {
            Ok((stream, _)) => (stream, Arc::clone(&answers), stopping.clone()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept; check the limit of open files");
                sleep(RETRY).await;
                continue;
            }
        };
        increment(&answers.metrics.connections);
        tokio::spawn(async move {
            // Ends when the client closes the connection, or the connection is idle.
            let _ = stopping.run_until_cancelled(serve_connection(stream, &answers)).await;
            drop(place);
        });
    }
}

/// Answers the queries of a connection, one after the other.
async fn serve_connection(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    loop {
        let query = timeout(IDLE_TIMEOUT, read_message(&mut stream)).await??;
        let Some(response) = answers.respond(&query, Carrier::Tcp).await else { return Ok(()) };
        // A response is below 64 KB, the bound of a message over TCP.
        let length = u16::try_from(response.len()).unwrap_or(u16::MAX).to_be_bytes();
        timeout(IDLE_TIMEOUT, stream.write_all(&[&length[..], &response].concat())).await??;
    }
}

/// Reads a length-prefixed message.
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_QUERY {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ServiceName;
    use hickory_proto::{
        op::{Message, Query},
        rr::{Name, RecordType},
    };

    use super::*;
    use crate::service_directory::Directory;

    fn query() -> Vec<u8> {
        let name = Name::from_ascii("cart.shop.mesh.").unwrap();
        Message::new().add_query(Query::query(name, RecordType::A)).set_id(9).to_vec().unwrap()
    }

    #[tokio::test]
    async fn dns_queries_are_answered_over_udp_and_tcp() {
        let directory = Directory::of_services([(ServiceName::new("shop/cart").unwrap(), None)]);
        let answers = Answers::new("mesh".parse().unwrap(), vec![[240, 0, 0, 1].into()], directory);
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [over_udp, over_tcp] = [udp.local_addr().unwrap(), tcp.local_addr().unwrap()];
        let server = Server::start(vec![(udp, tcp)], &Arc::new(answers));

        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(b"no query", over_udp).await.unwrap();
        client.send_to(&query(), over_udp).await.unwrap();
        let mut buffer = [0; 512];
        let (length, _) = client.recv_from(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!((answer.id(), answer.answers().len()), (9, 1));

        let mut stream = TcpStream::connect(over_tcp).await.unwrap();
        for _ in 0..2 {
            let asked = query();
            stream.write_u16(asked.len() as u16).await.unwrap();
            stream.write_all(&asked).await.unwrap();
            let answer = read_message(&mut stream).await.unwrap();
            assert_eq!(Message::from_vec(&answer).unwrap().answers().len(), 1);
        }
        server.stop().await;
        assert!(stream.read_u8().await.is_err(), "it is closed");
    }
}
