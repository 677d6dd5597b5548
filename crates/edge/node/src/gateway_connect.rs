//! The start of a captured connection: chooses the replica of the gateway that it goes to.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use bytes::BytesMut;
use fairmesh_edge::{
    forward::misdirected_request::{FirstResponse, read_first},
    tunnel::prefixed_io::PrefixedIo,
};
use fairmesh_model::ServiceName;
use fairmesh_wire::{
    proxy_protocol::{Addresses, ConnectionId, write_with_id},
    transport::Stream,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf, split},
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};

use crate::{gateway_replicas::Gateways, placements::Placements, pods::Pod};

/// Maximum number of bytes from a pod that are kept for sending to another replica. A longer HTTP/1.1 request is not
/// repeated.
const MAX_KEPT: usize = 16 * 1024;
/// Minimum room for a read. A usual request fits into one read.
const READ: usize = 2048;
/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time limit for a replica to accept the header of a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the first response. A replica refuses a service as soon as it knows the service's name.
const FIRST_RESPONSE: Duration = Duration::from_secs(10);
/// Maximum number of replicas that are tried for one connection.
const MAX_MISDIRECTED: usize = 4;

/// A captured connection to be opened to a gateway.
#[derive(Debug)]
pub(crate) struct GatewayConnect<'a> {
    pub(crate) gateways: &'a Gateways,
    pub(crate) placements: Option<&'a Placements>,
    pub(crate) pod: &'a Pod,
    pub(crate) addresses: Addresses,
    pub(crate) id: ConnectionId,
}

/// A connection to a replica that does not refuse the service.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The connection. Reads first return the bytes already read of the first response.
    pub(crate) gateway: PrefixedIo<Stream>,
    /// Number of bytes from the pod that were already sent to the gateway.
    pub(crate) sent: u64,
    /// Bytes from the pod that must still be sent to the gateway.
    pub(crate) unsent: BytesMut,
}

/// The first bytes of a connection, in both directions.
#[derive(Debug, Default)]
struct FirstBytes {
    /// All bytes read from the pod. The first `sent` of them were sent to the gateway.
    kept: BytesMut,
    sent: usize,
    is_flushed: bool,
    answer: BytesMut,
}

impl GatewayConnect<'_> {
    /// Opens the connection, and sends the header with the captured addresses. If the gateway has backends,
    /// this also exchanges the first bytes: a replica that refuses the service has not processed the request,
    /// and the next replica gets it.
    ///
    /// # Errors
    /// No replica accepts the connection, or each tried replica serves other services.
    pub(crate) async fn open(&self, pod: &mut TcpStream) -> io::Result<Opened> {
        let service = self.placements.and_then(|all| all.service_at(self.addresses.destination));
        let (mut service, mut refused, mut kept) = (service, BTreeSet::new(), BytesMut::new());
        for _ in 0..MAX_MISDIRECTED {
            let replicas = self.replicas(service.as_ref(), &refused);
            let (replica, mut gateway) = self.gateways.connect(&self.pod.transport, replicas).await?;
            refused.insert(replica);
            let header = write_with_id(self.addresses, self.id);
            // A replica that did not get the whole header processes nothing.
            if !matches!(timeout(HEADER_TIMEOUT, send(&mut gateway, &header)).await, Ok(Ok(()))) {
                tracing::debug!(gateway = %replica, "a replica did not accept the header of a connection");
                self.gateways.avoid(replica, Instant::now());
                continue;
            }
            let mut first = FirstBytes { kept, ..FirstBytes::default() };
            let response = match self.placements.is_some_and(Placements::are_used) {
                true => exchange_first(pod, &mut gateway, &mut first).await,
                false => FirstResponse::Other,
            };
            let FirstResponse::Misdirected(placed) = response else {
                let FirstBytes { mut kept, sent, answer, .. } = first;
                let gateway = PrefixedIo::new(answer, gateway);
                return Ok(Opened { gateway, sent: sent as u64, unsent: kept.split_off(sent) });
            };
            service = placed.or(service);
            kept = first.kept;
        }
        Err(io::Error::other(
            "replicas of the gateway serve other services, or are stuck; look at 'fairmesh gateway status'",
        ))
    }

    /// The replicas to try: the replicas of the service, or the configured replicas if the service has no placement.
    fn replicas(&self, service: Option<&ServiceName>, refused: &BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
        let turn = self.gateways.turn();
        let placed = self.placements.zip(service).map(|(all, service)| all.replicas_of(service, turn));
        let mut replicas =
            placed.filter(|placed| !placed.is_empty()).unwrap_or_else(|| self.gateways.configured(turn));
        replicas.retain(|replica| !refused.contains(replica));
        replicas
    }
}

/// Exchanges bytes until the first response is known, the pod has sent more than is kept, or the time limit
/// is reached. The end or failure of one direction does not end the other: a pod that sends no more still
/// gets its response, and a replica that refuses may have closed before it has read everything. The rest is
/// left to the next reader.
async fn exchange_first(pod: &mut TcpStream, gateway: &mut Stream, first: &mut FirstBytes) -> FirstResponse {
    let deadline = Instant::now() + FIRST_RESPONSE;
    let (mut from_gateway, mut to_gateway) = split(gateway);
    let mut answer = std::mem::take(&mut first.answer);
    let mut is_sending = true;
    let response = loop {
        // An HTTP/2 server sends its settings first, so its response can be awaited before the rest of the
        // request is sent. An HTTP/1.1 server may need the whole request.
        let is_full = first.kept.len() >= MAX_KEPT && first.is_sent();
        if is_full && !first.kept.starts_with(HTTP2_PREFACE) {
            break FirstResponse::Other;
        }
        tokio::select! {
            read = from_gateway.read_buf(&mut answer) => match (read, read_first(&answer)) {
                (Ok(1..), FirstResponse::Incomplete) => {}
                (Ok(1..), response) => break response,
                _ => break FirstResponse::Other,
            },
            step = first.send_step(pod, &mut to_gateway), if is_sending && !is_full => match step {
                Ok(goes_on) => is_sending = goes_on,
                Err(_) => break FirstResponse::Other,
            },
            () = sleep_until(deadline) => break FirstResponse::Other,
        }
    };
    first.answer = answer;
    response
}

impl FirstBytes {
    /// Whether the gateway has received all bytes read from the pod.
    fn is_sent(&self) -> bool {
        self.sent == self.kept.len() && self.is_flushed
    }

    /// Sends kept bytes, or reads more from the pod if all were sent. Returns `false` if the pod sends no
    /// more, or the gateway accepts no more. Cancel safe: it awaits a single operation.
    ///
    /// # Errors
    /// The connection to the pod failed.
    async fn send_step(
        &mut self,
        pod: &mut TcpStream,
        gateway: &mut WriteHalf<&mut Stream>,
    ) -> io::Result<bool> {
        if self.sent < self.kept.len() {
            self.is_flushed = false;
            let written = gateway.write(&self.kept[self.sent..]).await.unwrap_or_default();
            self.sent += written;
            Ok(written > 0)
        } else if !self.is_flushed {
            self.is_flushed = gateway.flush().await.is_ok();
            Ok(self.is_flushed)
        } else {
            self.kept.reserve(READ);
            pod.read_buf(&mut self.kept).await.map(|read| read > 0)
        }
    }
}

async fn send(gateway: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    gateway.write_all(bytes).await?;
    gateway.flush().await
}

#[cfg(test)]
mod tests {
    use fairmesh_edge::forward::misdirected_request::response_bytes;
    use fairmesh_test_support::PATIENCE;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (connected, listener.accept().await.unwrap().0)
    }

    /// Exchanges the first bytes of a pod that sends `pod_sends` and nothing else, with a replica that
    /// behaves like `replica`, whose connection stays open.
    async fn exchange(
        pod_sends: &[u8],
        replica: impl AsyncFnOnce(TcpStream) -> TcpStream,
    ) -> (FirstResponse, FirstBytes) {
        let ((mut pod, mut of_pod), (gateway, of_gateway)) = (pair().await, pair().await);
        let (mut gateway, mut first) = (Stream::Tcp(gateway), FirstBytes::default());
        let exchanged = async {
            let sending = async {
                pod.write_all(pod_sends).await.unwrap();
                pod.shutdown().await.unwrap();
            };
            let exchanging = exchange_first(&mut of_pod, &mut gateway, &mut first);
            tokio::join!(sending, replica(of_gateway), exchanging).2
        };
        let response = timeout(PATIENCE, exchanged).await.expect("the response is known");
        (response, first)
    }

    fn refusal() -> (Vec<u8>, FirstResponse) {
        let service = ServiceName::new("red/web").unwrap();
        (response_bytes(&service), FirstResponse::Misdirected(Some(service)))
    }

    #[tokio::test]
    async fn gateway_refusal_is_read_after_pod_sent_whole_request() {
        let (bytes, refused) = refusal();
        let (response, first) = exchange(b"GET / HTTP/1.0\r\n\r\n", async |mut replica| {
            let mut read = [0; 18];
            replica.read_exact(&mut read).await.unwrap();
            replica.write_all(&bytes).await.unwrap();
            replica
        })
        .await;
        assert_eq!((response, &first.kept[..]), (refused, &b"GET / HTTP/1.0\r\n\r\n"[..]));
    }

    #[tokio::test]
    async fn long_http2_upload_waits_for_gateway_response_and_is_repeated() {
        let (bytes, refused) = refusal();
        let upload = [HTTP2_PREFACE, &[0; 3 * MAX_KEPT]].concat();
        let (response, first) = exchange(&upload, async |mut replica| {
            // Only part of the kept bytes is read by the replica.
            let mut read = vec![0; MAX_KEPT];
            replica.read_exact(&mut read).await.unwrap();
            replica.write_all(&bytes).await.unwrap();
            replica
        })
        .await;
        assert_eq!(response, refused);
        assert!(upload.starts_with(&first.kept) && first.kept.len() >= MAX_KEPT);
    }

    #[tokio::test]
    async fn long_http1_upload_continues_without_gateway_response() {
        let upload = [&b"POST / HTTP/1.1\r\n\r\n"[..], &[b'x'; MAX_KEPT]].concat();
        let (response, first) = exchange(&upload, async |mut replica| {
            let mut read = vec![0; MAX_KEPT];
            replica.read_exact(&mut read).await.unwrap();
            replica
        })
        .await;
        assert_eq!(response, FirstResponse::Other);
        assert!(first.kept.len() >= MAX_KEPT && first.sent == first.kept.len());
    }
}
