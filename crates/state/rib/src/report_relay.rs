//! Aggregates the rates reported by downstream processes, and reports the sums upstream.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Invalid, Region, TrafficReport};
use fairmesh_signals::{
    IDLE_INTERVAL_MS, MAX_WATCHED_SERVICES, REPORT_INTERVAL_MS, ReportParts, ReportSource, ReportSums,
    SumLimits, Taken, WATCHED_FOR_MS, bound,
};
use fairmesh_wire::{handshake::Connection, v1};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::follower::FollowerHandle;

/// Interval of a relay while a service is planned. It is half of a program's interval, because each level of relays
/// adds up to one interval of delay.
const RELAY_INTERVAL: Duration = Duration::from_millis(REPORT_INTERVAL_MS / 2);
/// Time limit for one report to the upstream.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Parts of a report that are sent at the same time.
const MAX_SENDING: usize = 32;

/// Aggregated reports of an agent's or replica's downstream processes. Clones share state.
#[derive(Clone, Debug)]
pub struct ReportRelay {
    shared: Arc<RelayState>,
}

#[derive(Debug)]
struct RelayState {
    upstream: FollowerHandle,
    /// Region of an agent. Every report names the region, even if it contains no calls.
    region: Option<Region>,
    /// Random number that identifies this process in its reports.
    id: u64,
    began: Instant,
    sums: Mutex<ReportSums>,
    parts: Mutex<ReportParts>,
    /// Interval requested by the upstream, in milliseconds.
    interval_ms: AtomicU32,
    /// Services that operators watch, as last reported by the upstream, and the time of that report.
    watched: Mutex<Option<(Instant, Vec<String>)>>,
    /// Number of reports refused because too many processes report.
    full: AtomicU64,
}

impl ReportRelay {
    /// Creates a relay that reports to `upstream`. An agent passes its `region`; reports then name the region even
    /// without calls, which tells planners that the region has none.
    pub fn new(upstream: FollowerHandle, region: Option<Region>, limits: SumLimits) -> Self {
        let began = Instant::now();
        let shared = RelayState {
            upstream,
            region,
            id: RandomState::new().hash_one(began),
            began,
            sums: Mutex::new(ReportSums::new(limits)),
            parts: Mutex::default(),
            // Starts with the short interval, so that a planned service is noticed at once.
            interval_ms: AtomicU32::new(REPORT_INTERVAL_MS as u32),
            watched: Mutex::default(),
            full: AtomicU64::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the number of processes whose reports are aggregated.
    pub fn reporters(&self) -> usize {
        self.sums().reporters()
    }

    /// Returns the number of reports refused because too many processes report.
    pub fn left_out(&self) -> &AtomicU64 {
        &self.shared.full
    }

    /// Takes the rates out of a report of `source` and leaves its CPU minutes. Returns the response, which says when the sender
    /// should report again and which services it should report besides planned ones; `None` for a report without
    /// rates.
    ///
    /// # Errors
    /// If the rates are invalid.
    pub fn take_rates(
        &self,
        source: &ReportSource,
        report: &mut v1::ReportSignalsRequest,
    ) -> Result<Option<v1::ReportSignalsResponse>, Invalid> {
        let Some(rates) = report.take_rates()? else { return Ok(None) };
        let now_ms = self.now_ms();
        if self.sums().record(source, rates, now_ms) == Taken::Full {
            self.shared.full.fetch_add(1, Relaxed);
        }
        let next_report_ms = self.shared.interval_ms.load(Relaxed);
        let watched = self.watched();
        Ok(Some(v1::ReportSignalsResponse { next_report_ms, watched, ..Default::default() }))
    }

    /// Reports the sum until `stopping`, then an empty sum: downstream processes then report elsewhere, and would
    /// otherwise be counted twice until this process's last report expires. A failed report is not repeated, since
    /// the next one replaces it.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(RELAY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sent_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = stopping.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let is_due = sent_at.is_none_or(|at| at.elapsed() + RELAY_INTERVAL / 2 >= self.send_interval());
            if is_due && self.send().await {
                sent_at = Some(Instant::now());
            }
        }
        if sent_at.is_some()
            && let Some(connection) = self.shared.upstream.connection()
        {
            let nothing = TrafficReport { reporter: self.shared.id, ..TrafficReport::default() };
            self.send_parts(&connection, nothing).await;
        }
    }

    /// Returns the services that operators watch, if recently known.
    fn watched(&self) -> Vec<String> {
        let watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = watched.as_ref().filter(|(at, _)| at.elapsed() < Duration::from_millis(WATCHED_FOR_MS));
        lately.map(|(_, names)| names.clone()).unwrap_or_default()
    }

    fn send_interval(&self) -> Duration {
        let asked = u64::from(self.shared.interval_ms.load(Relaxed));
        match asked <= REPORT_INTERVAL_MS {
            true => RELAY_INTERVAL,
            false => Duration::from_millis(asked),
        }
    }

    /// Sends the sum. Returns whether the upstream accepted it.
    async fn send(&self) -> bool {
        let Some(connection) = self.shared.upstream.connection() else { return false };
        let mut report = self.sums().sum_of_all(self.now_ms());
        report.reporter = self.shared.id;
        report.interval = self.send_interval();
        report.regions.extend(self.shared.region.clone());
        if report.regions.is_empty() && report.servers.is_empty() {
            return false;
        }
        self.send_parts(&connection, report).await;
        true
    }

    /// Sends the messages of a report: first those that say what may be missing meanwhile, the last of which is the first part,
    /// and then the other parts.
    async fn send_parts(&self, connection: &Connection, report: TrafficReport) {
        let (parts, names) = {
            let mut dividing = self.parts();
            (dividing.divide(report), dividing.names())
        };
        let mut parts = parts.into_iter().map(bound);
        let names: Vec<_> = parts.by_ref().take(names).collect();
        let mut all_taken = self.send_several(connection, names.into_iter()).await;
        let Some(first) = parts.next() else { return };
        all_taken &= self.report(connection.clone(), first).await;
        all_taken &= self.send_several(connection, parts).await;
        if all_taken {
            self.parts().delivered();
        }
    }

    /// Sends several messages at a time, since the upstream may be far away. Returns whether it has taken all.
    async fn send_several(
        &self,
        connection: &Connection,
        mut messages: impl Iterator<Item = TrafficReport>,
    ) -> bool {
        let (mut all_taken, mut sending) = (true, JoinSet::new());
        loop {
            while sending.len() < MAX_SENDING
                && let Some(message) = messages.next()
            {
                let (relay, connection) = (self.clone(), connection.clone());
                sending.spawn(async move { relay.report(connection, message).await });
            }
            let Some(taken) = sending.join_next().await else { return all_taken };
            all_taken &= taken.unwrap_or_default();
        }
    }

    /// Sends a report; returns whether the upstream has taken it.
    async fn report(&self, connection: Connection, report: TrafficReport) -> bool {
        match timeout(REPORT_TIMEOUT, connection.report_signals(report.into())).await {
            Ok(Ok(response)) => {
                let v1::ReportSignalsResponse { next_report_ms: asked, mut watched, .. } = response;
                watched.truncate(MAX_WATCHED_SERVICES);
                let mut known = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
                *known = Some((Instant::now(), watched));
                drop(known);
                // A control plane of the previous release requests no interval.
                let asked = if asked == 0 { IDLE_INTERVAL_MS as u32 } else { asked };
                self.shared.interval_ms.store(asked, Relaxed);
                return true;
            }
            Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => {
                tracing::warn!(reason = status.message(), "the process above refuses the report of rates");
            }
            Ok(Err(status)) => tracing::debug!(reason = status.message(), "rates could not be reported"),
            Err(_) => tracing::debug!("the process above did not take the report in time"),
        }
        false
    }

    fn parts(&self) -> MutexGuard<'_, ReportParts> {
        self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sums(&self) -> MutexGuard<'_, ReportSums> {
        self.shared.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
