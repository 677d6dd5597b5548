//! The begin of a captured connection: which replica of the gateway it goes to.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use bytes::BytesMut;
use fairmesh_edge::{
    forward::misdirected::{FirstResponse, read_first},
    tunnel::prefixed_io::PrefixedIo,
};
use fairmesh_model::ServiceName;
use fairmesh_wire::{
    proxy_protocol::{Addresses, ConnectionId, write_with_id},
    transport::Stream,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep_until},
};

use crate::{gateways::Gateways, placements::Placements, pods::Pod};

/// The most bytes of a pod that are kept to be sent to another replica: a longer request is not repeated.
const MAX_KEPT: usize = 16 * 1024;
/// How long the first response is waited for. A replica refuses a service as soon as it knows which one is called.
const FIRST_RESPONSE: Duration = Duration::from_secs(10);
/// Replicas that refuse the service of one connection, until it is given up.
const MAX_MISDIRECTED: usize = 4;

/// A captured connection that is to be opened to a gateway.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    pub(crate) gateways: &'a Gateways,
    pub(crate) placements: Option<&'a Placements>,
    pub(crate) pod: &'a Pod,
    pub(crate) addresses: Addresses,
    pub(crate) id: ConnectionId,
}

/// A connection to a replica that does not refuse the service.
#[derive(Debug)]
pub(crate) struct Opened {
    /// It begins with what was read of the first response.
    pub(crate) gateway: PrefixedIo<Stream>,
    /// Bytes of the pod that the gateway has already.
    pub(crate) sent: u64,
}

/// The first bytes in both directions.
#[derive(Debug)]
struct FirstBytes {
    sent: BytesMut,
    answer: BytesMut,
}

impl Opening<'_> {
    /// Opens the connection, and says within it what was captured. Where the gateway has backends, the first bytes are exchanged here: a
    /// replica that does not serve the service has not processed its request, which goes to another one.
    ///
    /// # Errors
    /// No replica accepts the connection, or each of those that were tried serves other services.
    pub(crate) async fn open(&self, pod: &mut TcpStream) -> io::Result<Opened> {
        let service = self.placements.and_then(|all| all.service_at(self.addresses.destination));
        let (mut service, mut refused, mut sent) = (service, BTreeSet::new(), BytesMut::new());
        for _ in 0..MAX_MISDIRECTED {
            let replicas = self.replicas(service.as_ref(), &refused);
            let (replica, mut gateway) = self.gateways.connect(&self.pod.transport, replicas).await?;
            let header = write_with_id(self.addresses, self.id);
            send(&mut gateway, &[&header[..], &sent[..]].concat()).await?;
            let mut first = FirstBytes { sent, answer: BytesMut::new() };
            let response = match self.placements.is_some_and(Placements::are_used) {
                true => exchange_first(pod, &mut gateway, &mut first).await,
                false => FirstResponse::Other,
            };
            let FirstResponse::Misdirected(placed) = response else {
                let sent = first.sent.len() as u64;
                return Ok(Opened { gateway: PrefixedIo::new(first.answer, gateway), sent });
            };
            refused.insert(replica);
            service = placed.or(service);
            sent = first.sent;
        }
        Err(io::Error::other(
            "replicas of the gateway serve other services; look at 'fairmesh gateway status'",
        ))
    }

    /// The replicas to try: those that serve the service, or those of the configuration if it has no placement.
    fn replicas(&self, service: Option<&ServiceName>, refused: &BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
        let turn = self.gateways.turn();
        let placed = self.placements.zip(service).map(|(all, service)| all.replicas_of(service, turn));
        let mut replicas =
            placed.filter(|placed| !placed.is_empty()).unwrap_or_else(|| self.gateways.configured(turn));
        replicas.retain(|replica| !refused.contains(replica));
        replicas
    }
}

/// Exchanges bytes until the first response is known, the pod has sent more than is kept, or the response takes long. Ends and failures are
/// left to whoever reads next.
async fn exchange_first(pod: &mut TcpStream, gateway: &mut Stream, first: &mut FirstBytes) -> FirstResponse {
    let FirstBytes { sent, answer } = first;
    let deadline = Instant::now() + FIRST_RESPONSE;
    while sent.len() < MAX_KEPT {
        let before = sent.len();
        tokio::select! {
            read = gateway.read_buf(answer) => match (read, read_first(answer)) {
                (Ok(1..), FirstResponse::Incomplete) => {}
                (Ok(1..), response) => return response,
                _ => break,
            },
            read = pod.read_buf(sent) => {
                if !matches!(read, Ok(1..)) || send(gateway, &sent[before..]).await.is_err() {
                    break;
                }
            }
            () = sleep_until(deadline) => break,
        }
    }
    FirstResponse::Other
}

async fn send(gateway: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    gateway.write_all(bytes).await?;
    gateway.flush().await
}
