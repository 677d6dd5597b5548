//! The planned stop: the registry first, then the callers, then the calls, then the connections (ServiceRouter §3.2).

use std::{env, future, sync::Arc, time::Duration};

use fairmesh_model::{Invalid, spec};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{Drained, Inner, Server, load::Load};

/// How long a planned stop may take where nobody says otherwise: below the 30 s after which cluster managers kill.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(25);

/// No call for this long, after all callers have moved, means that none is on its way any more. Well above the longest
/// round trip (ServiceRouter §3.4.1), since a call may have been sent, over a new connection even, just before its caller moved.
const QUIET: Duration = Duration::from_millis(500);

/// Where a server is on its way out.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It serves.
    Running,
    /// Callers are leaving, calls are finishing.
    Draining,
    /// Connections are to close, at the latest at this time.
    Closing(Instant),
    /// The endpoint is out of the registry.
    Gone(Drained),
}

impl Phase {
    /// Whether connections are to close.
    pub(super) fn closes(&self) -> bool {
        matches!(self, Self::Closing(_) | Self::Gone(_))
    }
}

impl Server {
    /// Starts the drain, unless it has started.
    pub(super) fn begin_drain(&self) {
        let begins = self.inner.phase.send_if_modified(|phase| {
            let begins = matches!(phase, Phase::Running);
            if begins {
                *phase = Phase::Draining;
            }
            begins
        });
        if begins {
            // A task of its own, so that a caller who stops waiting does not stop the drain.
            tokio::spawn(drain(Arc::clone(&self.inner)));
        }
    }
}

async fn drain(server: Arc<Inner>) {
    let (begin, total) = (Instant::now(), server.drain_deadline);
    let load = &server.layer.shared.load;
    // Six tenths for callers to move and two for their calls leaves two for connections and streams.
    let drained = server.lease.drain(total * 6 / 10).await;
    if !matches!(drained, Drained::Untold(_)) {
        quiet(load, begin + total * 8 / 10, QUIET.min(total / 10)).await;
    }
    tracing::info!(?drained, outstanding = ?load.outstanding(), "callers have moved; closing connections");
    let end = begin + total;
    server.phase.send_replace(Phase::Closing(end));
    // Streams end when their connections are asked to close.
    while load.outstanding() != Default::default() && Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
    }
    if let Err(error) = server.lease.leave().await {
        tracing::warn!(%error, "the endpoint could not be taken out; its lease runs out by itself");
    }
    server.phase.send_replace(Phase::Gone(drained));
}

/// Waits until no call was under way for `quiet`, at most until `end`. Looks now and then, instead of having every call
/// on every day tell a drain that is not there.
async fn quiet(load: &Load, end: Instant, quiet: Duration) {
    let mut since = Instant::now();
    let mut seen = load.activity();
    while Instant::now() < end {
        sleep((quiet / 10).max(Duration::from_millis(1))).await;
        let now = load.activity();
        if now != seen || load.outstanding().calls > 0 {
            (since, seen) = (Instant::now(), now);
        } else if since.elapsed() >= quiet {
            return;
        }
    }
}

/// Resolves at SIGTERM or SIGINT, which from then on do not end the program by themselves.
///
/// Where the system refuses to hand over a signal, that one keeps its usual effect.
pub async fn terminated() {
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
    }
}

/// How long a planned stop may take: `given`, else `FAIRMESH_DRAIN_DEADLINE` (such as `25s`), else 25 s.
pub fn drain_deadline(given: Option<Duration>) -> Result<Duration, Invalid> {
    const NAME: &str = "FAIRMESH_DRAIN_DEADLINE";
    match (given, env::var(NAME)) {
        (Some(given), _) => Ok(given),
        (None, Ok(text)) => spec::read_duration(&text).map_err(|e| e.within(NAME)),
        (None, Err(_)) => Ok(DEFAULT_DEADLINE),
    }
}
