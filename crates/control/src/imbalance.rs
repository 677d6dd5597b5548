//! Gathers what servers say of their CPU, keeps its sums for years, and answers how much is wasted where.
//!
//! Minutes stay open for a quarter of an hour, since agents pass figures on late after an outage; then they are closed: a
//! service's minute becomes a row, which is added to its hour and its day in the same write. What is open is written
//! down once a minute too, so that a restart loses less than a minute, and counts nothing twice: rows are only ever made
//! of all that is known of a minute, once. Keeping ever-growing counters and taking differences was rejected: each delay
//! and restart on the way becomes a spike, which a p99 is made to find.
//!
//! Nothing here stops the control plane: without its file it goes on with the last hour, in memory.

mod clock;
mod file;
mod http;
mod message;
mod metrics;
mod reading;
mod recent;
mod service;

use std::{
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_imbalance::{AddOutcome, MAX_WRITE_DELAY, Minute, Moment, OpenMinutes, Usage};
use fairmesh_model::{InstanceId, Location, ServiceName};
use fairmesh_store::{StoreError, WriteError};
use tokio::{
    sync::RwLock,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::admin::now_ms;
use clock::{Believed, Clock};
use file::History;
pub(crate) use http::router;
use recent::Recent;
pub(crate) use service::ImbalanceService;

/// How often what changed is written down, and what is due closed.
const PERIOD: Duration = Duration::from_mins(1);
/// How long writing may go on once the control plane is told to stop. What is not written then is reported again in part.
const FAREWELL: Duration = Duration::from_millis(700);

/// How many services' minutes are handed to the file at once.
const NOTED_AT_ONCE: usize = 1_000;

/// The collector of a control plane.
#[derive(Debug)]
pub(crate) struct Imbalance {
    open: Mutex<OpenMinutes>,
    /// `None` where it cannot be used.
    history: Option<History>,
    /// Held by who closes minutes, since they are neither here nor there for a moment.
    closing: RwLock<()>,
    recent: Recent,
    counts: Counts,
}

/// What became of usages and minutes.
#[derive(Debug, Default)]
struct Counts {
    counted: AtomicU64,
    known: AtomicU64,
    late: AtomicU64,
    future: AtomicU64,
    unusable: AtomicU64,
    full: AtomicU64,
    undeclared: AtomicU64,
    unregistered: AtomicU64,
    write_failures: AtomicU64,
    clock_jumps: AtomicU64,
}

impl Counts {
    fn of(&self, taken: AddOutcome) -> &AtomicU64 {
        match taken {
            AddOutcome::Counted => &self.counted,
            AddOutcome::Known => &self.known,
            AddOutcome::Late => &self.late,
            AddOutcome::Future => &self.future,
            AddOutcome::Unusable(_) => &self.unusable,
            AddOutcome::Full => &self.full,
        }
    }
}

/// Why something could not be written down or read.
#[derive(Debug, thiserror::Error)]
enum HistoryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Imbalance {
    /// Takes up what the file at `path` holds. A file that cannot be used is said and left alone.
    pub(crate) async fn start(path: &Path) -> Self {
        let mut open = OpenMinutes::default();
        let history = match History::open(path, &mut open).await {
            Ok(history) => Some(history),
            Err(error) => {
                tracing::error!(
                    %error,
                    "the imbalance indicator has only the last hour, in memory, until this is mended and the control \
                     plane is started again; routing is not touched by it"
                );
                None
            }
        };
        Self::of(open, history)
    }

    fn of(open: OpenMinutes, history: Option<History>) -> Self {
        let (closing, recent, counts) = (RwLock::default(), Recent::default(), Counts::default());
        Self { open: Mutex::new(open), history, closing, recent, counts }
    }

    /// Writes down and closes until `stopping`, and then once more, as far as that is done soon.
    pub(crate) async fn run(&self, stopping: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (began, mut clock) = (Instant::now(), Clock::default());
        let mut stop = false;
        while !stop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopping.cancelled() => stop = true,
            }
            let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let believed = clock.read(Moment { elapsed_ms, clock_ms: now_ms() });
            if let Some(ms) = believed.jumped_ms {
                self.counts.clock_jumps.fetch_add(1, Relaxed);
                tracing::warn!(
                    ahead_s = ms / 1_000,
                    "the clock jumped ahead; check the time of this machine: in an hour it is believed, and figures past \
                     their time by it are deleted"
                );
            }
            let overdue = async {
                stopping.cancelled().await;
                sleep(FAREWELL).await;
            };
            let written = tokio::select! {
                written = self.round(believed) => written,
                () = overdue => {
                    tracing::warn!("the last figures of the imbalance indicator are not written: there was no time");
                    return;
                }
            };
            if let Err(error) = written {
                self.counts.write_failures.fetch_add(1, Relaxed);
                tracing::warn!(%error, "figures of the imbalance indicator could not be written; trying again in a minute");
            }
        }
    }

    async fn round(&self, believed: Believed) -> Result<(), HistoryError> {
        self.settle(believed.now).await?;
        if believed.steady { self.thin_out(believed.now).await } else { Ok(()) }
    }

    fn open(&self) -> MutexGuard<'_, OpenMinutes> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one usage.
    fn take(
        &self,
        who: (&ServiceName, &InstanceId, &Location),
        said: (Minute, Usage),
        now: Minute,
    ) -> AddOutcome {
        let taken = self.open().add(who, said, now);
        self.counts.of(taken).fetch_add(1, Relaxed);
        taken
    }

    /// Writes down what changed and closes what is due.
    async fn settle(&self, now: Minute) -> Result<(), HistoryError> {
        let settled = match &self.history {
            Some(history) => self.write(history, now).await,
            None => Ok(()),
        };
        // Where minutes cannot be closed, they do not pile up. Only what is there is closed: a clock that is wrong for a
        // while must not close what is yet to come.
        let mut open = self.open();
        if let Some(last) =
            open.minutes().into_iter().rfind(|minute| *minute <= now.before(MAX_WRITE_DELAY + 1))
        {
            open.close(last);
        }
        drop(open);
        settled
    }

    async fn write(&self, history: &History, now: Minute) -> Result<(), HistoryError> {
        let due = self.open().due(now);
        for minute in due {
            let rows = self.open().rows(minute);
            let _closing = self.closing.write().await;
            history.close(minute, rows).await?;
            self.open().close(minute);
        }
        let changed: Vec<_> = self.open().take_changed().into_iter().collect();
        let mut failed = Ok(());
        for changed in changed.chunks(NOTED_AT_ONCE) {
            if failed.is_ok() {
                let usages = changed.iter().map(|(minute, service)| {
                    (*minute, service.clone(), self.open().usages(*minute, service))
                });
                failed = history.note(usages.collect()).await;
            }
            if failed.is_err() {
                let mut open = self.open();
                changed.iter().for_each(|(minute, service)| open.still_changed(*minute, service.clone()));
            }
        }
        failed?;
        history.keep_within_bounds().await
    }

    /// Takes away what is past its time.
    async fn thin_out(&self, now: Minute) -> Result<(), HistoryError> {
        match &self.history {
            Some(history) => history.thin_out(now).await,
            None => Ok(()),
        }
    }
}

/// The minute that it is.
fn now() -> Minute {
    Minute::of_ms(now_ms())
}

#[cfg(test)]
mod tests;
