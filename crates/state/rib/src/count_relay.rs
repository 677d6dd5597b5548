//! Aggregates the counts reported by downstream processes, and reports the sums upstream.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{CountReport, Invalid};
use fairmesh_signals::{
    CountInbox, CountOutbox, IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, ReportSource, SumLimits,
};
use fairmesh_wire::{LogLimiter, v1};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::follower::FollowerHandle;

/// Time limit for one report to the upstream.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of reports sent back to back. Further counts wait for the next interval.
const MAX_REPORTS: usize = 32;

/// Aggregated counts of an agent's or replica's downstream processes. Clones share state.
#[derive(Clone, Debug)]
pub struct CountRelay {
    shared: Arc<RelayState>,
}

#[derive(Debug)]
struct RelayState {
    upstream: FollowerHandle,
    began: Instant,
    counts: Mutex<Counts>,
    /// Interval requested by the upstream, in milliseconds.
    interval_ms: AtomicU64,
}

#[derive(Debug)]
struct Counts {
    inbox: CountInbox,
    outbox: CountOutbox,
}

impl CountRelay {
    /// Creates a relay that reports to `upstream` the counts of as many processes as `limits` permit.
    pub fn new(upstream: FollowerHandle, limits: SumLimits) -> Self {
        let began = Instant::now();
        let outbox = CountOutbox::new(RandomState::new().hash_one(began));
        let counts = Mutex::new(Counts { inbox: CountInbox::new(limits), outbox });
        let interval_ms = AtomicU64::new(IDLE_INTERVAL_MS);
        Self { shared: Arc::new(RelayState { upstream, began, counts, interval_ms }) }
    }

    /// Takes the counts out of a report of `source`. Passes them to `observe` unless the report is a repetition. Returns the
    /// response, which says when the sender should report again; `None` for a report without counts.
    ///
    /// # Errors
    /// If the counts are invalid.
    pub fn take(
        &self,
        source: &ReportSource,
        report: &mut v1::ReportSignalsRequest,
        observe: impl FnOnce(&CountReport),
    ) -> Result<Option<v1::ReportSignalsResponse>, Invalid> {
        let Some((report, refused_rows)) = report.take_counts()? else { return Ok(None) };
        let now_ms = self.shared.now_ms();
        let mut counts = self.shared.counts();
        if counts.inbox.is_new(source, &report, now_ms) {
            observe(&report);
            counts.outbox.leave_out(report.left_out);
            for interval in report.intervals {
                counts.outbox.add(interval, now_ms);
            }
        }
        let next_report_ms = u32::try_from(self.shared.interval_ms.load(Relaxed)).unwrap_or(u32::MAX);
        Ok(Some(v1::ReportSignalsResponse { next_report_ms, refused_rows, ..Default::default() }))
    }

    /// Reports at the interval until `stopping`, then reports the remaining counts.
    pub async fn run(self, stopping: CancellationToken) {
        let mut is_stopping = false;
        while !is_stopping {
            let interval = Duration::from_millis(self.shared.interval_ms.load(Relaxed));
            is_stopping = tokio::select! {
                () = stopping.cancelled() => true,
                () = sleep(interval) => false,
            };
            if let Some(asked) = self.shared.send().await {
                let asked = asked.clamp(REPORT_INTERVAL_MS, 2 * IDLE_INTERVAL_MS);
                self.shared.interval_ms.store(asked, Relaxed);
            }
        }
    }
}

impl RelayState {
    async fn send(&self) -> Option<u64> {
        let mut asked = None;
        for _ in 0..MAX_REPORTS {
            let report = self.counts().outbox.next(self.now_ms());
            let Some(report) = report else { break };
            let result = send_report(&self.upstream, report.into()).await;
            asked = settle_counts(&mut self.counts().outbox, result)?;
        }
        asked
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Sends the pending counts. Returns the interval that the upstream requests, in milliseconds, if any. Unacknowledged
/// counts stay in the outbox. `now_ms` is the outbox's clock.
pub async fn send_counts(
    upstream: &FollowerHandle,
    outbox: &mut CountOutbox,
    now_ms: impl Fn() -> u64,
) -> Option<u64> {
    let mut asked = None;
    for _ in 0..MAX_REPORTS {
        let Some(report) = outbox.next(now_ms()) else { break };
        let result = send_report(upstream, report.into()).await;
        asked = settle_counts(outbox, result)?;
    }
    asked
}

/// Applies the result of the report in flight to the outbox. Returns the interval that the upstream requests, in
/// milliseconds, if any. The outer `None` means that no further report may be sent now.
pub fn settle_counts(
    outbox: &mut CountOutbox,
    result: Result<v1::ReportSignalsResponse, Code>,
) -> Option<Option<u64>> {
    match result {
        Ok(response) => {
            outbox.acknowledge();
            log_refused_rows(response.refused_rows);
            Some(Some(response.next_report_ms.into()).filter(|asked| *asked > 0))
        }
        Err(code) => {
            if is_final(code) {
                outbox.discard();
            }
            None
        }
    }
}

async fn send_report(
    upstream: &FollowerHandle,
    counts: v1::CountReport,
) -> Result<v1::ReportSignalsResponse, Code> {
    let connection = upstream.connection().ok_or(Code::Unavailable)?;
    let report = v1::ReportSignalsRequest { counts: Some(counts), ..Default::default() };
    let sent = timeout(REPORT_TIMEOUT, connection.report_signals(report)).await;
    let sent = sent.map_err(|_| Code::DeadlineExceeded)?;
    sent.map_err(|status| {
        tracing::debug!(reason = status.message(), "counts could not be reported");
        status.code()
    })
}

/// Logs refused rows. The other rows of the report were counted; the upstream shows the refused rows as left out.
fn log_refused_rows(rows: u64) {
    static REFUSED: LogLimiter = LogLimiter::new();
    if rows > 0
        && let Some(suppressed) = REFUSED.next()
    {
        tracing::warn!(
            rows,
            suppressed,
            "counts of calls are left out: they may not be reported from here, or are not plausible"
        );
    }
}

/// Whether a retry of the same report would be refused again.
fn is_final(code: Code) -> bool {
    use Code::{InvalidArgument, NotFound, OutOfRange, PermissionDenied, Unimplemented};
    // tonic returns OutOfRange for a message that is too large.
    matches!(code, InvalidArgument | PermissionDenied | NotFound | Unimplemented | OutOfRange)
}
