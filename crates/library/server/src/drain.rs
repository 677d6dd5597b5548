//! Graceful stop, in this order: registry, callers, calls, connections (ServiceRouter §3.2).

use std::{env, future, sync::Arc, time::Duration};

use fairmesh_model::{Invalid, read_duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, sleep_until},
};

use crate::{Drained, Inner, MeshServer, Outstanding, RegistrationState, layer::server_load::ServerLoad};

/// Default time for a graceful stop: below the 30 s after which cluster managers kill a process.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(25);

/// Time without calls after which no call can be in flight, once all callers have moved. It is well above the longest
/// round trip (ServiceRouter §3.4.1), since a caller may have sent a call, perhaps over a new connection, just before
/// it moved.
const QUIET: Duration = Duration::from_millis(500);

/// Time before the drain deadline at which unfinished calls are counted. At the deadline itself, connections close
/// and their calls are gone.
const COUNT_BEFORE: Duration = Duration::from_millis(10);

/// Progress of a graceful stop.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The endpoint is serving.
    Running,
    /// Callers are moving and calls are finishing.
    Draining,
    /// Connections must be closed by this time.
    Closing(Instant),
    /// The endpoint is deregistered.
    Deregistered(Drained),
}

impl Phase {
    /// Whether connections must close.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self, Self::Closing(_) | Self::Deregistered(_))
    }
}

impl MeshServer {
    /// Starts the drain, unless it has started.
    pub(crate) fn begin_drain(&self) {
        if self.leaves_running() {
            // A separate task, so that a cancelled caller does not cancel the drain.
            tokio::spawn(drain(Arc::clone(&self.inner)));
        }
    }

    /// Registers the endpoint after [`register_later`](crate::ServerBuilder::register_later). Returns once the registry
    /// has the endpoint.
    #[doc(hidden)]
    pub async fn register(&self) {
        self.inner.lease.begin();
        let mut state = self.registration_state();
        // The sender is owned by `self`.
        let _ = state.wait_for(|now| matches!(now, RegistrationState::Registered(_))).await;
    }

    /// Closes connections gracefully and leaves the registration to a successor, which has registered the same
    /// instance at the same address and accepts connections there. Callers are not asked to move. A caller with an
    /// idle connection does not know that the connection will end, so it may still use it for `grace`.
    #[doc(hidden)]
    pub fn hand_over(&self, grace: Duration) {
        if self.leaves_running() {
            tokio::spawn(hand_over(Arc::clone(&self.inner), grace));
        }
    }

    /// Leaves the serving phase. Returns `false` if it was left earlier.
    fn leaves_running(&self) -> bool {
        self.inner.phase.send_if_modified(|phase| {
            let leaves = matches!(phase, Phase::Running);
            if leaves {
                *phase = Phase::Draining;
            }
            leaves
        })
    }
}

async fn drain(server: Arc<Inner>) {
    let (begin, total) = (Instant::now(), server.drain_deadline);
    let load = &server.layer.shared.load;
    // 6/10 of the time for callers to move and 2/10 for their calls leave 2/10 for connections and streams.
    let drained = server.lease.drain(total * 6 / 10).await;
    if !matches!(drained, Drained::Unreported(_)) {
        quiet(load, begin + total * 8 / 10, QUIET.min(total / 10)).await;
    }
    let outstanding = load.outstanding();
    match &drained {
        Drained::CallersMoved | Drained::Unfinished(_) => {
            tracing::info!(?outstanding, "callers have moved; closing connections")
        }
        Drained::Behind(callers) => {
            tracing::warn!(
                ?callers,
                ?outstanding,
                "some callers have not moved in time; closing connections"
            );
        }
        Drained::Unreported(why) => {
            tracing::warn!(
                why,
                ?outstanding,
                "could not learn whether callers have moved; closing connections"
            );
        }
    }
    let end = begin + total;
    server.phase.send_replace(Phase::Closing(end));
    let unfinished = unfinished(load, end).await;
    if let Err(error) = server.lease.leave().await {
        tracing::warn!(%error, "the endpoint could not be deregistered; its lease will expire");
    }
    let drained = match (drained, unfinished) {
        (Drained::CallersMoved, Some(unfinished)) => Drained::Unfinished(unfinished),
        (drained, _) => drained,
    };
    close(&server, drained).await;
}

async fn hand_over(server: Arc<Inner>, grace: Duration) {
    let end = Instant::now() + server.drain_deadline;
    server.lease.hand_over().await;
    server.phase.send_replace(Phase::Closing(end));
    sleep_until((Instant::now() + grace).min(end)).await;
    let drained = match unfinished(&server.layer.shared.load, end).await {
        Some(unfinished) => Drained::Unfinished(unfinished),
        None => Drained::CallersMoved,
    };
    close(&server, drained).await;
}

/// Ends everything that the server follows and reports.
async fn close(server: &Inner, drained: Drained) {
    let policy = async {
        if let Some(policy) = &server.policy {
            policy.close().await;
        }
    };
    let identity = async {
        if !server.shares_identity {
            server.transport.close().await;
        }
    };
    tokio::join!(server.shards.close(), server.signals.close(), policy, identity);
    server.phase.send_replace(Phase::Deregistered(drained));
}

/// Waits until calls and streams have ended, at most until `end`. Returns the unfinished ones, which are then cut
/// off.
async fn unfinished(load: &ServerLoad, end: Instant) -> Option<Outstanding> {
    let count_at = end.checked_sub(COUNT_BEFORE).unwrap_or(end);
    // Streams end only when their connections are asked to close.
    while load.outstanding() != Outstanding::default() && Instant::now() < count_at {
        sleep_until((Instant::now() + Duration::from_millis(20)).min(count_at)).await;
    }
    let unfinished = Some(load.outstanding()).filter(|left| *left != Outstanding::default())?;
    let Outstanding { calls, streams } = unfinished;
    tracing::warn!(
        calls,
        streams,
        "the drain deadline has come before calls and streams in flight have ended: they are broken off"
    );
    sleep_until(end).await;
    Some(unfinished)
}

/// Waits until no call was in flight for `quiet`, at most until `end`. Polls, since notifications would add a cost to
/// every call.
async fn quiet(load: &ServerLoad, end: Instant, quiet: Duration) {
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

/// Resolves at SIGTERM or SIGINT. From the call on, these signals no longer end the program by themselves.
///
/// If a signal handler cannot be installed, that signal keeps its default effect.
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

/// Returns the time for a graceful stop: `given`, otherwise `FAIRMESH_DRAIN_DEADLINE` (such as `25s`) unless it is
/// empty, otherwise 25 s.
///
/// # Errors
/// `FAIRMESH_DRAIN_DEADLINE` is malformed.
pub fn drain_deadline(given: Option<Duration>) -> Result<Duration, Invalid> {
    const NAME: &str = "FAIRMESH_DRAIN_DEADLINE";
    read_deadline(given, env::var(NAME).ok().as_deref()).map_err(|e| e.within(NAME))
}

fn read_deadline(given: Option<Duration>, variable: Option<&str>) -> Result<Duration, Invalid> {
    match (given, variable) {
        (Some(given), _) => Ok(given),
        (None, Some(text)) if !text.is_empty() => read_duration(text),
        (None, _) => Ok(DEFAULT_DEADLINE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_drain_variable_counts_as_unset() {
        assert_eq!(read_deadline(None, Some("")).unwrap(), DEFAULT_DEADLINE);
        assert_eq!(read_deadline(None, Some("7s")).unwrap(), Duration::from_secs(7));
        assert!(read_deadline(None, Some("soon")).is_err());
    }
}
