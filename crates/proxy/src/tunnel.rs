//! Connections that carry bytes and no messages: after an upgrade, after `CONNECT`, and over TCP.
//!
//! Each keeps its place among the connections of programs, and counts at its endpoint as a stream (Uber, assisted balancing). When the proxy
//! stops, one that pauses is ended, so that its program connects anew, elsewhere; no other protocol than HTTP has words for it.

pub(crate) mod connect;
pub(crate) mod copy;
pub(crate) mod metrics;
pub(crate) mod prefixed_io;
pub(crate) mod tcp_proxy;
pub(crate) mod upgrade;

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_client::Tunnel;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, interval_at, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    lifecycle::shutdown::Shutdown,
    limits::Limits,
    listen::connection_permit::ConnectionPermit,
    metrics::ProxyMetrics,
    observe::counter::{GaugeGuard, increment},
    tunnel::{copy::BidirectionalCopy, upgrade::ClientUpgrade},
};

/// How long a tunnel must be quiet to be ended when the proxy stops.
const DRAIN_IDLE: Duration = Duration::from_secs(1);
/// How often a tunnel is looked at within the time for which it may be quiet; one ends that much too late at most.
const IDLE_CHECKS: u32 = 4;

/// What tunnels share.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    limits: Limits,
    metrics: Arc<ProxyMetrics>,
    shutdown: Arc<Shutdown>,
    tasks: TaskTracker,
}

/// How a tunnel ended.
#[derive(Debug)]
enum TunnelEnd {
    /// Both sides have said all.
    Closed,
    /// One of them broke.
    Failed,
    /// Nothing came for too long.
    Idle,
}

impl Tunnels {
    pub(crate) fn new(
        limits: Limits,
        metrics: Arc<ProxyMetrics>,
        shutdown: Arc<Shutdown>,
        tasks: TaskTracker,
    ) -> Self {
        Self { limits, metrics, shutdown, tasks }
    }

    /// Carries what follows the answer that `program` waits for. A task of its own, since that is yet to be sent, and over HTTP/2
    /// further requests share the program's connection.
    pub(crate) fn spawn(&self, client: ClientUpgrade, server: Tunnel, permit: Arc<ConnectionPermit>) {
        let this = self.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            // A program that never takes the answer must not keep a server waiting.
            let idle_timeout = this.limits.idle_timeout;
            match timeout(idle_timeout, client.upgraded()).await {
                Ok(Some(client)) => this.carry(client, server).await,
                _ => increment(&this.metrics.tunnels.failed),
            }
        });
    }

    /// Carries bytes between a program and a server until both have said all, one breaks, or neither says anything.
    pub(crate) async fn carry(
        &self,
        client: impl AsyncRead + AsyncWrite,
        server: impl AsyncRead + AsyncWrite,
    ) {
        let metrics = &self.metrics;
        increment(&metrics.tunnels.opened);
        let _open = GaugeGuard::new(&metrics.tunnels.open);
        let mut copy = pin!(BidirectionalCopy::new(client, server));
        let ended = tokio::select! {
            ended = copy_until_idle(copy.as_mut(), self.limits.tunnel_idle) => Ok(ended),
            deadline = self.shutdown.deadline() => Err(deadline),
        };
        let counter = match ended {
            Ok(TunnelEnd::Closed) => None,
            Ok(TunnelEnd::Failed) => Some(&metrics.tunnels.failed),
            Ok(TunnelEnd::Idle) => Some(&metrics.tunnels.idle_timeouts),
            Err(deadline) => match timeout_at(deadline, copy_until_idle(copy.as_mut(), DRAIN_IDLE)).await {
                Ok(TunnelEnd::Closed | TunnelEnd::Idle) => None,
                Ok(TunnelEnd::Failed) => Some(&metrics.tunnels.failed),
                Err(_) => Some(&metrics.connections.drain_timeouts),
            },
        };
        counter.into_iter().for_each(increment);
        metrics.tunnels.add_bytes(copy.copied());
    }
}

/// Copies until both sides have ended or nothing was carried for this long.
async fn copy_until_idle<A, B>(
    mut copy: std::pin::Pin<&mut BidirectionalCopy<A, B>>,
    idle_timeout: Duration,
) -> TunnelEnd
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    // Looks are counted, so that no piece that is carried has to read a clock.
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
