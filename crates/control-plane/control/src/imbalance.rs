//! Collects servers' reports of CPU usage, stores their sums for years, and computes how much CPU is wasted
//! and where.
//!
//! A minute stays open for 15 minutes, because agents report late after an outage. When a minute is closed,
//! each service's part of it becomes a row, which is added to the rows of its hour and day in the same write.
//! Open minutes are also saved once a minute, so that a restart loses less than a minute of reports. Nothing
//! is counted twice: a row is made once, from all that is known of its minute. Differences of growing
//! counters were rejected: each delay and restart becomes a spike, and a p99 finds spikes.
//!
//! No failure here stops the control plane: without its file, the indicator keeps the last hour in memory.

mod convert;
mod history_file;
mod http;
mod metrics;
mod query;
mod report_cache;
mod service;
mod trusted_clock;
mod usage_intake;

use std::{
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_imbalance::{AddOutcome, MAX_WRITE_DELAY, MeasuredInstance, Minute, Moment, OpenMinutes, Usage};
use fairmesh_store::{StoreError, WriteError};
use tokio::{
    sync::RwLock,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::wall_clock::now_ms;
pub(crate) use fairmesh_imbalance::ReportQuery;
use history_file::HistoryFile;
pub(crate) use http::router;
use report_cache::ReportCache;
pub(crate) use service::ImbalanceService;
use trusted_clock::{TrustedClock, TrustedTime};

/// Interval at which changed minutes are saved and expired minutes are closed.
const WRITE_INTERVAL: Duration = Duration::from_mins(1);
/// Time limit of the last write after a stop request. Agents repeat their reports of the last minutes, so unwritten
/// minutes are not all lost.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_millis(700);

/// Maximum number of services in one write.
const MAX_SERVICES_PER_WRITE: usize = 1_000;

/// The imbalance indicator of a control plane.
#[derive(Debug)]
pub(crate) struct Imbalance {
    open: Mutex<OpenMinutes>,
    /// The file with the history; `None` if it cannot be used.
    history: Option<HistoryFile>,
    /// Write-locked while a minute is being closed, because the minute is then briefly neither open nor in the file.
    closing: RwLock<()>,
    report_cache: ReportCache,
    counts: Counts,
}

/// Counters of reports by outcome, and of failures.
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

/// Reason why the file cannot be written or read.
#[derive(Debug, thiserror::Error)]
enum HistoryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Imbalance {
    /// Restores the indicator from the file at `path`. A file that cannot be used is reported and left
    /// unchanged.
    pub(crate) async fn start(path: &Path) -> Self {
        let mut open = OpenMinutes::default();
        let history = match HistoryFile::open(path, &mut open).await {
            Ok(history) => Some(history),
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot use the file of the imbalance indicator; it has only the last hour, in memory, until \
                     this is fixed and the control plane is started again; routing is not affected"
                );
                None
            }
        };
        Self::of(open, history)
    }

    /// Verifies the checksums of the file, as at startup.
    ///
    /// # Errors
    /// The damage, or the reason why the file cannot be read.
    pub(crate) async fn verify(&self) -> Result<(), StoreError> {
        match &self.history {
            Some(history) => history.verify().await,
            None => Ok(()),
        }
    }

    fn of(open: OpenMinutes, history: Option<HistoryFile>) -> Self {
        let (closing, report_cache, counts) = (RwLock::default(), ReportCache::default(), Counts::default());
        Self { open: Mutex::new(open), history, closing, report_cache, counts }
    }

    /// Saves and closes minutes until `stopping`, and once more afterwards within [`FINAL_WRITE_TIMEOUT`].
    pub(crate) async fn run(&self, stopping: CancellationToken) {
        let mut ticks = interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (began, mut clock) = (Instant::now(), TrustedClock::default());
        let mut stop = false;
        while !stop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopping.cancelled() => stop = true,
            }
            let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            let trusted = clock.read(Moment { elapsed_ms, clock_ms: now_ms() });
            if let Some(ms) = trusted.jumped_ms {
                self.counts.clock_jumps.fetch_add(1, Relaxed);
                tracing::warn!(
                    ahead_s = ms / 1_000,
                    "the clock jumped ahead; check the time of this machine: in an hour it is trusted, and data \
                     that it expires is deleted"
                );
            }
            let overdue = async {
                stopping.cancelled().await;
                sleep(FINAL_WRITE_TIMEOUT).await;
            };
            let written = tokio::select! {
                written = self.round(trusted) => written,
                () = overdue => {
                    tracing::warn!("last minutes of the imbalance indicator not written: out of time");
                    return;
                }
            };
            if let Err(error) = written {
                self.counts.write_failures.fetch_add(1, Relaxed);
                tracing::warn!(%error, "cannot write the imbalance indicator; retrying in a minute");
            }
        }
    }

    async fn round(&self, trusted: TrustedTime) -> Result<(), HistoryError> {
        self.save_and_close(trusted.now).await?;
        if trusted.steady { self.delete_expired(trusted.now).await } else { Ok(()) }
    }

    fn open(&self) -> MutexGuard<'_, OpenMinutes> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one report.
    fn record(&self, instance: MeasuredInstance<'_>, said: (Minute, Usage), now: Minute) -> AddOutcome {
        let taken = self.open().add(instance, said, now);
        self.counts.of(taken).fetch_add(1, Relaxed);
        taken
    }

    /// Saves changed minutes and closes due ones.
    async fn save_and_close(&self, now: Minute) -> Result<(), HistoryError> {
        let saved = match &self.history {
            Some(history) => self.write(history, now).await,
            None => Ok(()),
        };
        // Limits memory if minutes cannot be closed. Only minutes with reports are closed: while the clock is
        // wrong for a time, future minutes must not be closed.
        let mut open = self.open();
        if let Some(last) =
            open.minutes().into_iter().rfind(|minute| *minute <= now.before(MAX_WRITE_DELAY + 1))
        {
            open.close(last);
        }
        drop(open);
        saved
    }

    async fn write(&self, history: &HistoryFile, now: Minute) -> Result<(), HistoryError> {
        let due = self.open().due(now);
        for minute in due {
            let rows = self.open().rows(minute);
            let _closing = self.closing.write().await;
            history.close(minute, rows).await?;
            self.open().close(minute);
        }
        let changed: Vec<_> = self.open().take_changed().into_iter().collect();
        let mut failed = Ok(());
        for changed in changed.chunks(MAX_SERVICES_PER_WRITE) {
            if failed.is_ok() {
                let usages = changed.iter().map(|(minute, service)| {
                    (*minute, service.clone(), self.open().usages(*minute, service))
                });
                failed = history.save_open(usages.collect()).await;
            }
            if failed.is_err() {
                let mut open = self.open();
                changed.iter().for_each(|(minute, service)| open.still_changed(*minute, service.clone()));
            }
        }
        failed?;
        history.enforce_max_bytes().await
    }

    /// Deletes expired rows.
    async fn delete_expired(&self, now: Minute) -> Result<(), HistoryError> {
        match &self.history {
            Some(history) => history.delete_expired(now).await,
            None => Ok(()),
        }
    }
}

/// The current minute.
fn now() -> Minute {
    Minute::of_ms(now_ms())
}

/// The newest minute that reports and metrics include.
fn newest_complete() -> Minute {
    Minute::newest_complete(now_ms())
}

#[cfg(test)]
mod tests;
