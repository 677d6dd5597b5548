//! Takes the reports of local programs. Minutes of CPU usage are queued and forwarded. Rates are added up, since only the
//! last ones count.

mod call_sums;
mod usage_forwarder;

use std::sync::{Arc, Mutex, PoisonError};

use fairmesh_model::{Invalid, Region};
use fairmesh_rib::{CountRelay, ReportRelay, follower::FollowerHandle};
use fairmesh_signals::SumLimits;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance, signals_server::Signals};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use call_sums::{CallSums, ReportedCalls};
use usage_forwarder::UsageForwarder;

/// The gRPC services `Signals` and `Imbalance` of the agent, and the loops that report upstream.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) usages: UsageForwarder,
    pub(crate) rates: ReportRelay,
    pub(crate) counts: CountRelay,
    calls: Arc<Mutex<CallSums>>,
    began: Instant,
    /// Addresses of the control plane, for messages.
    upstreams: String,
}

impl Reports {
    /// Reports to `upstream` for programs in `region`. Messages name the addresses in `upstreams`.
    pub(crate) fn new(upstream: FollowerHandle, upstreams: String, region: Region) -> Self {
        let rates = ReportRelay::new(upstream.clone(), Some(region), SumLimits::AGENT);
        let counts = CountRelay::new(upstream.clone(), SumLimits::AGENT.reporters);
        let usages = UsageForwarder::new(upstream);
        Self { usages, rates, counts, calls: Arc::default(), began: Instant::now(), upstreams }
    }

    /// Reports until `stopping`.
    pub(crate) async fn run(self, stopping: CancellationToken) {
        tokio::join!(
            self.usages.run(stopping.clone()),
            self.rates.run(stopping.clone()),
            self.counts.run(stopping)
        );
    }

    /// Registers the totals of calls by caller and callee.
    pub(crate) fn register_calls(&self, registry: &mut Registry) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).register(registry, self.now_ms());
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take(&self, mut report: v1::ReportSignalsRequest) -> Result<v1::ReportSignalsResponse, Invalid> {
        if let Some(response) = self.counts.take(&mut report)? {
            return Ok(response);
        }
        let calls = ReportedCalls::of(&report);
        let response = self.rates.take_rates(&mut report)?;
        if let Some(calls) = calls {
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).add(calls, self.now_ms());
        }
        for (i, usage) in report.usages.into_iter().enumerate() {
            self.usages.put(usage).map_err(|e| e.within(format!("usages[{i}]")))?;
        }
        Ok(response.unwrap_or_default())
    }
}

#[tonic::async_trait]
impl Signals for Reports {
    async fn report(
        &self,
        request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let taken = self.take(request.into_inner());
        taken.map(Response::new).map_err(|e| Status::invalid_argument(e.to_string()))
    }
}

#[tonic::async_trait]
impl Imbalance for Reports {
    /// Handles a report of the previous release.
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let response = Signals::report(self, request.map(Into::into)).await?;
        Ok(response.map(Into::into))
    }

    async fn read(
        &self,
        _: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        let upstreams = &self.upstreams;
        Err(Status::failed_precondition(format!(
            "an agent knows only its own machine; query the control plane at {upstreams}"
        )))
    }
}

#[cfg(test)]
mod tests;
