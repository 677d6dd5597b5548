//! Connections that carry bytes and no messages: after an upgrade, after `CONNECT`, and over TCP.
//!
//! Each keeps its place among the connections of programs, and counts at its endpoint as a stream (Uber, assisted balancing). When the proxy
//! stops, one that pauses is ended, so that its program connects anew, elsewhere; no other protocol than HTTP has words for it.

mod asked;
mod copy;

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_client::Tunnel;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, interval_at, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use self::copy::Copying;
pub(crate) use self::{
    asked::{Program, Switch, mark},
    copy::Carried,
};
use crate::{
    Limits,
    metrics::{Held, Metrics, count},
    place::Place,
    stopping::Stopping,
};

/// How long a tunnel must be quiet to be ended when the proxy stops.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a tunnel is looked at within the time for which it may be quiet; one ends that much too late at most.
const LOOKS: u32 = 4;

/// What tunnels share.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    limits: Limits,
    metrics: Arc<Metrics>,
    stopping: Arc<Stopping>,
    tasks: TaskTracker,
}

/// How a tunnel ended.
#[derive(Debug)]
enum End {
    /// Both sides have said all.
    Whole,
    /// One of them broke.
    Broken,
    /// Nothing came for too long.
    Quiet,
}

impl Tunnels {
    pub(crate) fn new(
        limits: Limits,
        metrics: Arc<Metrics>,
        stopping: Arc<Stopping>,
        tasks: TaskTracker,
    ) -> Self {
        Self { limits, metrics, stopping, tasks }
    }

    /// Carries what follows the answer that `program` waits for. A task of its own, since that is yet to be sent, and over HTTP/2
    /// further requests share the program's connection.
    pub(crate) fn begin(&self, program: Program, server: Tunnel, place: Arc<Place>) {
        let this = self.clone();
        self.tasks.spawn(async move {
            let _place = place;
            // A program that never takes the answer must not keep a server waiting.
            let patience = this.limits.head;
            match timeout(patience, program.begun()).await {
                Ok(Some(program)) => this.carry(program, server).await,
                _ => count(&this.metrics.tunnels_broken),
            }
        });
    }

    /// Carries bytes between a program and a server until both have said all, one breaks, or neither says anything.
    pub(crate) async fn carry(
        &self,
        program: impl AsyncRead + AsyncWrite,
        server: impl AsyncRead + AsyncWrite,
    ) {
        let metrics = &self.metrics;
        count(&metrics.tunnels);
        let _open = Held::new(&metrics.tunnels_open);
        let mut copying = pin!(Copying::new(program, server));
        let ended = tokio::select! {
            ended = until_quiet(copying.as_mut(), self.limits.tunnel_idle) => Ok(ended),
            deadline = self.stopping.begun() => Err(deadline),
        };
        let counter = match ended {
            Ok(End::Whole) => None,
            Ok(End::Broken) => Some(&metrics.tunnels_broken),
            Ok(End::Quiet) => Some(&metrics.tunnels_idle),
            Err(deadline) => match timeout_at(deadline, until_quiet(copying.as_mut(), PAUSE)).await {
                Ok(End::Whole | End::Quiet) => None,
                Ok(End::Broken) => Some(&metrics.tunnels_broken),
                Err(_) => Some(&metrics.cut),
            },
        };
        counter.into_iter().for_each(count);
        metrics.carried(copying.carried());
    }
}

/// Copies until both sides have ended or nothing was carried for this long.
async fn until_quiet<A, B>(mut copying: std::pin::Pin<&mut Copying<A, B>>, quiet: Duration) -> End
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    // Looks are counted, so that no piece that is carried has to read a clock.
    let every = (quiet / LOOKS).max(Duration::from_millis(1));
    let mut looks = interval_at(Instant::now() + every, every);
    let (mut before, mut in_vain) = (copying.carried(), 0);
    loop {
        tokio::select! {
            ended = copying.as_mut() => return ended.map_or(End::Broken, |()| End::Whole),
            _ = looks.tick() => {
                let carried = copying.carried();
                in_vain = if carried == before { in_vain + 1 } else { 0 };
                before = carried;
                if in_vain == LOOKS {
                    return End::Quiet;
                }
            }
        }
    }
}
