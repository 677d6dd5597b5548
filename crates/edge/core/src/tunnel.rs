//! Tunnels: connections that carry bytes instead of messages, after an upgrade, after `CONNECT`, and over TCP.
//!
//! A tunnel keeps its connection permit, and counts as a stream at its endpoint (Uber, assisted balancing).
//! When the proxy stops, a tunnel is closed as soon as it pauses, so that its client reconnects elsewhere;
//! unlike in HTTP, there is no way to announce the end.

pub mod client_upgrade;
pub mod copy;
pub mod prefixed_io;

use std::{
    future::pending,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use fairmesh_calls::Body;
use http::{Response, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, interval_at, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    counter::{GaugeGuard, increment},
    forward::{error_response, hop_by_hop},
    limits::Limits,
    metrics::EdgeMetrics,
    shutdown::Shutdown,
    tunnel::{
        client_upgrade::{ClientUpgrade, UpgradeRequest, set_upgrade_headers},
        copy::{BidirectionalCopy, BytesCopied},
    },
};

/// Time without traffic after which a tunnel is closed while the proxy stops.
const DRAIN_IDLE: Duration = Duration::from_secs(1);
/// Number of checks per idle timeout. A tunnel is closed at most one check late.
const IDLE_CHECKS: u32 = 4;

/// Starts tunnels, with the limits, counters and tasks that they share.
#[derive(Clone, Debug)]
pub struct Tunnels {
    limits: Limits,
    metrics: Arc<EdgeMetrics>,
    shutdown: Arc<Shutdown>,
    tasks: TaskTracker,
}

/// How a tunnel ended.
#[derive(Debug)]
enum TunnelEnd {
    /// Both sides have closed.
    Closed,
    /// One side failed.
    Failed,
    /// The tunnel was idle for too long.
    Idle,
}

impl Tunnels {
    /// Creates tunnels with these limits and this shutdown. They run as tasks of `tasks`.
    pub fn new(
        limits: Limits,
        metrics: Arc<EdgeMetrics>,
        shutdown: Arc<Shutdown>,
        tasks: TaskTracker,
    ) -> Self {
        Self { limits, metrics, shutdown, tasks }
    }

    /// Starts the tunnel once the client has been sent its response. The tunnel is a separate task, since the
    /// response is yet to be sent, and since over HTTP/2 other requests share the connection. The tunnel ends early
    /// when `revoked` resolves. `revoked` and everything it holds are dropped when the tunnel ends.
    pub fn spawn<S, R>(&self, client: ClientUpgrade, server: S, revoked: R)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let this = self.clone();
        self.tasks.spawn(async move {
            // A client that never reads the response must not hold a server.
            let idle_timeout = this.limits.idle_timeout;
            match timeout(idle_timeout, client.upgraded()).await {
                Ok(Some(client)) => drop(this.carry_until(client, server, revoked).await),
                _ => increment(&this.metrics.tunnels.failed),
            }
        });
    }

    /// Starts the tunnel after a 101 response of the server, whose connection is `server`. Returns the
    /// response for the client. For `revoked` see [`spawn`](Self::spawn).
    pub fn switch_protocols<S, R>(
        &self,
        mut response: Response<()>,
        (upgrade, server): (Option<UpgradeRequest>, Option<S>),
        revoked: R,
    ) -> Response<Body>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let protocol = response.headers().get(header::UPGRADE).cloned();
        hop_by_hop::strip_response(response.headers_mut());
        match (upgrade, server, protocol) {
            (Some(UpgradeRequest { client, .. }), Some(server), Some(protocol)) => {
                set_upgrade_headers(response.headers_mut(), protocol);
                self.spawn(client, server, revoked);
                response.map(|()| Body::empty())
            }
            // Only requested upgrades are forwarded, and a 101 without a protocol is invalid.
            _ => {
                let message = "the server switched protocols without naming one\n".to_owned();
                error_response::plain_text(StatusCode::BAD_GATEWAY, message)
            }
        }
    }

    /// Copies bytes between client and server until both sides close, one fails, or both are idle. Returns the number
    /// of copied bytes.
    pub async fn carry(
        &self,
        client: impl AsyncRead + AsyncWrite,
        server: impl AsyncRead + AsyncWrite,
    ) -> BytesCopied {
        self.carry_until(client, server, pending()).await
    }

    /// Like [`carry`](Self::carry), but ends when `revoked` resolves.
    async fn carry_until(
        &self,
        client: impl AsyncRead + AsyncWrite,
        server: impl AsyncRead + AsyncWrite,
        revoked: impl Future<Output = ()>,
    ) -> BytesCopied {
        let metrics = &self.metrics;
        increment(&metrics.tunnels.opened);
        let _open = GaugeGuard::new(&metrics.tunnels.open);
        let mut copy = pin!(BidirectionalCopy::new(client, server));
        let mut revoked = pin!(revoked);
        let ended = tokio::select! {
            ended = copy_until_idle(copy.as_mut(), self.limits.tunnel_idle) => Ok(ended),
            () = revoked.as_mut() => Ok(TunnelEnd::Closed),
            deadline = self.shutdown.deadline() => Err(deadline),
        };
        let counter = match ended {
            Ok(TunnelEnd::Closed) => None,
            Ok(TunnelEnd::Failed) => Some(&metrics.tunnels.failed),
            Ok(TunnelEnd::Idle) => Some(&metrics.tunnels.idle_timeouts),
            Err(deadline) => tokio::select! {
                drained = timeout_at(deadline, copy_until_idle(copy.as_mut(), DRAIN_IDLE)) => match drained {
                    Ok(TunnelEnd::Closed | TunnelEnd::Idle) => None,
                    Ok(TunnelEnd::Failed) => Some(&metrics.tunnels.failed),
                    Err(_) => Some(&metrics.connections.drain_timeouts),
                },
                () = revoked => None,
            },
        };
        counter.into_iter().for_each(increment);
        let copied = copy.copied();
        metrics.tunnels.add_bytes(copied.up, copied.down);
        copied
    }
}

/// Holds a value until the tunnel ends, and never resolves. For tunnels that nothing revokes.
pub(crate) async fn hold<H>(_held: H) {
    pending().await
}

/// Copies until both sides have closed, or no byte was copied for `idle_timeout`.
async fn copy_until_idle<A, B>(
    mut copy: Pin<&mut BidirectionalCopy<A, B>>,
    idle_timeout: Duration,
) -> TunnelEnd
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    // Checks are counted, so that copying needs no clock.
    let period = (idle_timeout / IDLE_CHECKS).max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + period, period);
    let (mut before, mut idle_checks) = (copy.copied(), 0);
    loop {
        tokio::select! {
            ended = copy.as_mut() => return ended.map_or(TunnelEnd::Failed, |()| TunnelEnd::Closed),
            _ = ticks.tick() => {
                let copied = copy.copied();
                idle_checks = if copied == before { idle_checks + 1 } else { 0 };
                before = copied;
                if idle_checks == IDLE_CHECKS {
                    return TunnelEnd::Idle;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn tunnel_ends_when_caller_is_no_longer_allowed() {
        let tunnels = Tunnels::new(Limits::default(), Arc::default(), Arc::default(), TaskTracker::new());
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let (revoke, revoked) = tokio::sync::oneshot::channel::<()>();
        let carried = tunnels.carry_until(near, far, async { drop(revoked.await) });
        let traffic = async {
            client.write_all(b"tea").await.unwrap();
            let mut read = [0; 3];
            server.read_exact(&mut read).await.unwrap();
            revoke.send(()).unwrap();
            // Neither side closes here, so only the tunnel itself can end.
            (client.read(&mut read).await.unwrap(), server.read(&mut [0; 3]).await.unwrap())
        };
        let (copied, ended) = tokio::join!(carried, traffic);
        assert_eq!((copied.up, ended), (3, (0, 0)));
    }
}
