//! The leases of one service or shard, and the task that renews them.

use std::{
    future::{Future, pending},
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Role, ServiceName, ShardKey};
use fairmesh_wire::lookaside::v1::{
    Load, PickRequest, PickResponse, ReportRequest, Result as Told, lookaside_client::LookasideClient,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tonic::{Code, Status};

use super::{Shared, table::Table};
use crate::{
    core::{Lane as _, Subscription, View, nanos},
    transport::Line,
};

/// How many endpoints are leased at a time: enough to balance over and to turn to.
const ENDPOINTS: u32 = 4;
/// How long the lookaside may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The first wait after a failure; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The shortest and the longest time between two picks, whatever the lookaside says.
const BETWEEN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10 * 60));
/// How long leases are renewed that nobody calls by.
const UNUSED: Duration = Duration::from_secs(10 * 60);

/// Which leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) service: ServiceName,
    pub(crate) role: Option<Role>,
    pub(crate) key: Option<ShardKey>,
}

/// The leases in use.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) subscription: Arc<Subscription<Arc<Line>>>,
    made: Instant,
    /// Calls begun since the last pick.
    begun: AtomicU32,
    /// After how many of them to ask again.
    good_for: AtomicU32,
    /// Whether a server said that they are old.
    expired: AtomicBool,
    /// When the last pick followed on calls, in nanoseconds since the cell was made.
    used: AtomicU64,
    /// Apart, so that the task can wait for a call without keeping the cell.
    renew: Arc<Notify>,
}

impl Drop for Cell {
    fn drop(&mut self) {
        // The task finds out that it is gone.
        self.renew.notify_one();
    }
}

impl Cell {
    pub(crate) fn new(service: ServiceName) -> Self {
        Self {
            subscription: Arc::new(Subscription::new(service)),
            made: Instant::now(),
            begun: AtomicU32::new(0),
            good_for: AtomicU32::new(0),
            expired: AtomicBool::new(false),
            used: AtomicU64::new(0),
            renew: Arc::default(),
        }
    }

    /// A call begins. The one by which the leases are used up is told to the task; while there are none, that is the first.
    pub(crate) fn count(&self) {
        if self.begun.fetch_add(1, Relaxed) == self.good_for.load(Relaxed) {
            self.renew.notify_one();
        }
    }

    /// The leases were found to be old.
    pub(crate) fn expire(&self) {
        self.expired.store(true, Relaxed);
        self.renew.notify_one();
    }

    fn is_used_up(&self) -> bool {
        self.expired.load(Relaxed) || self.begun.load(Relaxed) > self.good_for.load(Relaxed)
    }

    pub(super) fn last_used(&self) -> Instant {
        self.made + Duration::from_nanos(self.used.load(Relaxed))
    }
}

/// Renews the leases of a cell while it has a place, from its first call on. Neither it nor the mesh is kept meanwhile.
pub(super) fn follow(
    shared: Weak<Shared>,
    cell: &Arc<Cell>,
    wanted: Wanted,
) -> impl Future<Output = ()> + 'static {
    let (renew, cell) = (Arc::clone(&cell.renew), Arc::downgrade(cell));
    let mut task = Task { table: None, wait: FIRST_WAIT, unused: Duration::ZERO, wanted };
    async move {
        let mut renew_at = None;
        loop {
            tokio::select! {
                () = renew.notified() => {}
                () = until(renew_at) => {}
            }
            let (Some(shared), Some(cell)) = (shared.upgrade(), cell.upgrade()) else { return };
            if renew_at.is_some_and(|at| at <= Instant::now()) || cell.is_used_up() {
                match task.round(&shared, &cell).await {
                    Some(at) => renew_at = Some(at),
                    None => return,
                }
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// What the task of a cell knows.
struct Task {
    wanted: Wanted,
    /// The leases in use.
    table: Option<Table>,
    /// How long to wait after the next failure.
    wait: Duration,
    /// How long nobody has called.
    unused: Duration,
}

impl Task {
    /// Reports and picks once; says when to do so again, unless nobody calls any more.
    async fn round(&mut self, shared: &Shared, cell: &Arc<Cell>) -> Option<Instant> {
        let began = Instant::now();
        cell.expired.store(false, Relaxed);
        let calls = cell.begun.swap(0, Relaxed);
        if calls > 0 {
            self.unused = Duration::ZERO;
            cell.used.store(nanos(cell.made.elapsed()), Relaxed);
        }
        if self.unused >= UNUSED {
            self.rest(shared, cell);
            return None;
        }
        self.report(shared, cell, calls).await;
        let taken = match self.pick(shared).await {
            Ok(response) => self.take(shared, cell, response),
            Err(status) => Err(status),
        };
        Some(began + self.until_next(shared, cell, taken))
    }

    /// Nobody calls: the place and the connections go. Whoever calls again gets another cell.
    fn rest(&self, shared: &Shared, cell: &Arc<Cell>) {
        shared.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.wanted, cell);
        if let View::Ready(ready) = &*cell.subscription.view() {
            ready.open_lanes().for_each(|lane| lane.retire());
        }
    }

    async fn pick(&self, shared: &Shared) -> Result<PickResponse, Status> {
        let Wanted { service, role, key } = &self.wanted;
        let request = PickRequest {
            service: service.to_string(),
            key: key.map_or_else(Default::default, |key| bytes::Bytes::copy_from_slice(&key.0.to_be_bytes())),
            role: role.as_ref().map(ToString::to_string).unwrap_or_default(),
            endpoints: ENDPOINTS,
            avoid: Vec::new(),
        };
        let mut lookaside = LookasideClient::new(shared.channel.clone());
        let late = |_| Status::deadline_exceeded("the lookaside does not answer");
        timeout(PATIENCE, lookaside.pick(request)).await.map_err(late)?.map(tonic::Response::into_inner)
    }

    /// Tells what came of the leases in use, which end with that. Whether it arrives changes nothing here.
    async fn report(&mut self, shared: &Shared, cell: &Cell, calls: u32) {
        let (Some(table), View::Ready(ready)) = (self.table.take(), &*cell.subscription.view()) else {
            return;
        };
        let each = calls / u32::try_from(table.leases.len()).unwrap_or(1).max(1);
        let results = ready.upstream.candidates().filter_map(|candidate| {
            let id = *table.leases.get(&candidate.target.instance)?;
            let load = candidate.report.map(|reported| Load {
                requests: reported.load.requests,
                streams: reported.load.streams,
                cpu: reported.load.cpu.map(u32::from),
                metric: reported.load.metric,
            });
            Some(Told { lease: id, calls: each, failures: candidate.consecutive_failures, load, done: true })
        });
        let request = ReportRequest { results: results.collect() };
        let mut lookaside = LookasideClient::new(shared.channel.clone());
        let _ = timeout(PATIENCE, lookaside.report(request)).await;
    }

    /// Publishes new leases; how long they are good for.
    fn take(
        &mut self,
        shared: &Shared,
        cell: &Arc<Cell>,
        response: PickResponse,
    ) -> Result<Duration, Status> {
        let ttl = Duration::from_millis(response.ttl_ms.into());
        let calls = response.calls.saturating_mul(u32::try_from(response.leases.len()).unwrap_or(1));
        let table = Table::read(response).map_err(|problem| Status::internal(problem.to_string()))?;
        shared.places.lock().unwrap_or_else(PoisonError::into_inner).extend(&self.wanted, cell, table.keys);
        table.publish(&cell.subscription, &shared.client_id);
        // Asked for again when a third is left, so that nobody waits for the answer.
        cell.good_for.store(calls - calls / 3, Relaxed);
        self.table = Some(table);
        Ok(ttl - ttl / 3)
    }

    /// When to ask again, after what became of the last time.
    fn until_next(&mut self, shared: &Shared, cell: &Cell, taken: Result<Duration, Status>) -> Duration {
        let until = match taken {
            Ok(until) => {
                shared.heard(None);
                self.wait = FIRST_WAIT;
                until.clamp(BETWEEN.0, BETWEEN.1)
            }
            Err(status) => {
                let answered =
                    !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
                shared.heard((!answered).then(|| status.message().to_owned()));
                despair(cell, &status);
                let wait = self.wait;
                self.wait = (wait * 2).min(LONGEST_WAIT);
                wait
            }
        };
        self.unused += until;
        until
    }
}

/// Tells callers why there are no leases, where there never were any, or the service is gone.
fn despair(cell: &Cell, status: &Status) {
    match (status.code(), &*cell.subscription.view()) {
        (Code::NotFound, _) => cell.subscription.publish(View::Unknown),
        (_, View::Ready(_)) => {
            tracing::warn!(service = %cell.subscription.name(), %status, "leases are not renewed; calls go on by the old ones");
        }
        _ => cell.subscription.publish(View::Unavailable(format!("the lookaside: {}", status.message()))),
    }
}
