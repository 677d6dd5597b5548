//! Handles the reports of local programs. Minutes of CPU usage are queued and forwarded. Counts are added up, and so
//! are the latest rates of the programs.

mod call_sums;
mod usage_forwarder;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairmesh_model::{CountReport, Invalid, Region};
use fairmesh_rib::{CountRelay, Forwarder, ReportRelay, access::RefusedRows};
use fairmesh_signals::{ReportSource, SumLimits};
use fairmesh_wire::v1::{self, imbalance_server::Imbalance, signals_server::Signals};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use call_sums::CallSums;
use usage_forwarder::UsageForwarder;

use crate::authorization::ReportSender;

/// The gRPC services `Signals` and `Imbalance` of the agent, and the loops that report upstream.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) usages: UsageForwarder,
    pub(crate) rates: ReportRelay,
    pub(crate) counts: CountRelay,
    /// Forwards reports that this agent does not aggregate.
    forward: Forwarder,
    calls: Arc<Mutex<CallSums>>,
    began: Instant,
    /// Addresses of the control plane, for error messages.
    upstreams: String,
}

impl Reports {
    /// Creates the services, which report to the upstream of `forward` for programs in `region`. Error messages name
    /// the addresses in `upstreams`.
    pub(crate) fn new(forward: Forwarder, upstreams: String, region: Region) -> Self {
        let upstream = forward.upstream();
        let rates = ReportRelay::new(upstream.clone(), Some(region), SumLimits::AGENT);
        let counts = CountRelay::new(upstream.clone(), SumLimits::AGENT);
        let usages = UsageForwarder::new(upstream.clone());
        Self { usages, rates, counts, forward, calls: Arc::default(), began: Instant::now(), upstreams }
    }

    /// Runs until both tokens are cancelled. Rates are reported until `stopping`, since programs report them
    /// elsewhere from then on. Counts are reported until `served`, because programs that stop together with the agent
    /// report their last counts while it drains.
    pub(crate) async fn run(self, stopping: CancellationToken, served: CancellationToken) {
        tokio::join!(self.usages.run(served.clone()), self.rates.run(stopping), self.counts.run(served));
    }

    /// Registers the totals of calls by caller and callee.
    pub(crate) fn register_calls(&self, registry: &mut Registry) {
        self.calls().register(registry, self.now_ms());
    }

    fn calls(&self) -> MutexGuard<'_, CallSums> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take(
        &self,
        source: &ReportSource,
        mut report: v1::ReportSignalsRequest,
    ) -> Result<v1::ReportSignalsResponse, Invalid> {
        let add = |counts: &CountReport| self.calls().add(counts, self.now_ms());
        if let Some(response) = self.counts.take(source, &mut report, add)? {
            return Ok(response);
        }
        let response = self.rates.take_rates(source, &mut report)?;
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
        let refused = RefusedRows::of(&request);
        let sender = request.extensions().get::<ReportSender>().cloned();
        let source = sender.as_ref().map_or_else(ReportSource::of_mesh, ReportSender::source);
        let taken = self.take(&source, request.into_inner());
        let mut taken = taken.map_err(|e| Status::invalid_argument(e.to_string()))?;
        taken.refused_rows += refused;
        if let Some(sender) = sender {
            sender.keep_visible(&mut taken.watched).await;
        }
        Ok(Response::new(taken))
    }

    async fn report_gateway(
        &self,
        request: Request<v1::ReportGatewayRequest>,
    ) -> Result<Response<v1::ReportGatewayResponse>, Status> {
        self.forward.report_gateway(request).await
    }
}

#[tonic::async_trait]
impl Imbalance for Reports {
    /// Handles a report in the format of the previous release.
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
pub(crate) mod tests;
