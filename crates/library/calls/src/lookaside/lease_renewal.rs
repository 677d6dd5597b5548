//! The task that renews the leases of one lease set.

use std::{
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use fairmesh_wire::lookaside::v1::{
    Load, PickRequest, PickResponse, ReportRequest, Result as LeaseResult, lookaside_client::LookasideClient,
};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status};

use super::{
    lease_set::{LeaseKey, LeaseSet},
    lease_table::LeaseTable,
    lookaside_connection::LookasideConnection,
};
use crate::discovery::{EndpointTransport as _, ServiceState};

/// Number of endpoints leased at a time: enough for balancing and retries.
const ENDPOINTS: u32 = 4;
/// Timeout of the lookaside's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Backoff after the first failure. It doubles up to the maximum.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(5);
/// Minimum and maximum time between two picks, regardless of the lookaside's request.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Time for which unused leases are still renewed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Renews the leases of a set from its first call until the set leaves the index or the lookaside's connection
/// closes. Keeps neither the set nor the mesh alive.
pub(super) fn run(
    lookaside: &Arc<LookasideConnection>,
    set: &Arc<LeaseSet>,
    key: LeaseKey,
) -> impl Future<Output = ()> + 'static {
    let (renew, set) = (Arc::clone(&set.renew), Arc::downgrade(set));
    let (closing, lookaside) = (lookaside.closing.clone(), Arc::downgrade(lookaside));
    let mut renewal = Renewal { table: None, backoff: RETRY_BACKOFF, unused: Duration::ZERO, key };
    async move {
        let mut renew_at = None;
        loop {
            tokio::select! {
                () = renew.notified() => {}
                () = until(renew_at) => {}
                () = closing.cancelled() => {}
            }
            let (Some(lookaside), Some(set)) = (lookaside.upgrade(), set.upgrade()) else { return };
            if closing.is_cancelled() {
                return renewal.end(&lookaside, &set).await;
            }
            if renew_at.is_some_and(|at| at <= Instant::now()) || set.needs_renewal() {
                match renewal.renew(&lookaside, &set).await {
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

/// State of the renewal task.
struct Renewal {
    key: LeaseKey,
    /// The leases in use.
    table: Option<LeaseTable>,
    /// The wait after the next failure.
    backoff: Duration,
    /// Time without any call to the set.
    unused: Duration,
}

impl Renewal {
    /// Reports results and picks again. Returns the time of the next renewal, or `None` if the leases are no longer
    /// used.
    async fn renew(&mut self, lookaside: &LookasideConnection, set: &Arc<LeaseSet>) -> Option<Instant> {
        let began = Instant::now();
        let calls = set.begin_renewal();
        if calls > 0 {
            self.unused = Duration::ZERO;
        }
        if self.unused >= IDLE_TIMEOUT {
            self.retire(lookaside, set);
            return None;
        }
        self.report(lookaside, set, calls).await;
        let good_for = match self.pick(lookaside).await {
            Ok(response) => self.publish(lookaside, set, response),
            Err(status) => Err(status),
        };
        Some(began + self.next_interval(lookaside, set, good_for))
    }

    /// Sends the last report. A call that waits for the first leases gets none.
    async fn end(&mut self, lookaside: &LookasideConnection, set: &LeaseSet) {
        let calls = set.begin_renewal();
        self.report(lookaside, set, calls).await;
        if matches!(*set.subscription.state(), ServiceState::Waiting) {
            set.subscription.publish(ServiceState::Unavailable("the mesh is closed".to_owned()));
        }
    }

    /// Removes an unused set from the index and closes its connections. A later call creates another set.
    fn retire(&self, lookaside: &LookasideConnection, set: &Arc<LeaseSet>) {
        lookaside.index().remove(&self.key, set);
        if let ServiceState::Ready(ready) = &*set.subscription.state() {
            ready.opened_transports().for_each(|transport| transport.retire());
        }
    }

    async fn pick(&self, lookaside: &LookasideConnection) -> Result<PickResponse, Status> {
        let LeaseKey { service, role, key } = &self.key;
        let request = PickRequest {
            service: service.to_string(),
            key: key.map_or_else(Default::default, |key| bytes::Bytes::copy_from_slice(&key.0.to_be_bytes())),
            role: role.as_ref().map(ToString::to_string).unwrap_or_default(),
            endpoints: ENDPOINTS,
            avoid: Vec::new(),
        };
        let mut client = LookasideClient::new(lookaside.channel.clone());
        let late = |_| Status::deadline_exceeded("the lookaside does not respond");
        timeout(RESPONSE_TIMEOUT, client.pick(request)).await.map_err(late)?.map(tonic::Response::into_inner)
    }

    /// Reports the results of the leases in use, which ends these leases. If a report is lost, its calls are not
    /// counted, without further effects.
    async fn report(&mut self, lookaside: &LookasideConnection, set: &LeaseSet, calls: u32) {
        let (Some(table), ServiceState::Ready(ready)) = (self.table.take(), &*set.subscription.state())
        else {
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
            Some(LeaseResult {
                lease: id,
                calls: each,
                failures: candidate.consecutive_failures,
                load,
                done: true,
            })
        });
        let request = ReportRequest { results: results.collect() };
        let mut client = LookasideClient::new(lookaside.channel.clone());
        let _ = timeout(RESPONSE_TIMEOUT, client.report(request)).await;
    }

    /// Publishes new leases. Returns the time for which to use them.
    fn publish(
        &mut self,
        lookaside: &LookasideConnection,
        set: &Arc<LeaseSet>,
        response: PickResponse,
    ) -> Result<Duration, Status> {
        let ttl = Duration::from_millis(response.ttl_ms.into());
        let calls = response.calls.saturating_mul(u32::try_from(response.leases.len()).unwrap_or(1));
        let table = LeaseTable::read(response).map_err(|problem| Status::internal(problem.to_string()))?;
        lookaside.index().extend(&self.key, set, table.keys);
        let requires_mtls = lookaside.transport.secures_mesh();
        table.publish(&set.subscription, &lookaside.client_id, requires_mtls);
        // Renewed when a third of the calls is left, so that no call waits for the response.
        set.set_renew_after(calls - calls / 3);
        self.table = Some(table);
        Ok(ttl - ttl / 3)
    }

    /// Time until the next renewal, given the result of this one.
    fn next_interval(
        &mut self,
        lookaside: &LookasideConnection,
        set: &LeaseSet,
        good_for: Result<Duration, Status>,
    ) -> Duration {
        let interval = match good_for {
            Ok(good_for) => {
                lookaside.record_response(None);
                self.backoff = RETRY_BACKOFF;
                good_for.clamp(MIN_INTERVAL, MAX_INTERVAL)
            }
            Err(status) => {
                let responded =
                    !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
                lookaside.record_response((!responded).then(|| status.message().to_owned()));
                publish_failure(set, &status);
                let backoff = self.backoff;
                self.backoff = (backoff * 2).min(MAX_RETRY_BACKOFF);
                backoff
            }
        };
        self.unused += interval;
        interval
    }
}

/// Publishes the reason for having no leases, if there never were any or the service no longer exists.
fn publish_failure(set: &LeaseSet, status: &Status) {
    let subscription = &set.subscription;
    match (status.code(), &*subscription.state()) {
        (Code::NotFound, _) => subscription.publish(ServiceState::Unknown),
        (_, ServiceState::Ready(_)) => {
            tracing::warn!(service = %subscription.name(), %status, "leases are not renewed; calls use the old ones");
        }
        _ => {
            subscription.publish(ServiceState::Unavailable(format!("the lookaside: {}", status.message())));
        }
    }
}
