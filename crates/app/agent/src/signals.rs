//! Takes the reports of local programs. Minutes of CPU usage are queued and forwarded. Rates are added up, since only the
//! last ones count.

mod usage_forwarder;

use fairmesh_model::{Invalid, Region};
use fairmesh_rib::{ReportRelay, follower::FollowerHandle};
use fairmesh_signals::SumLimits;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance, signals_server::Signals};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use usage_forwarder::UsageForwarder;

/// The gRPC services `Signals` and `Imbalance` of the agent, and the loops that report upstream.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) usages: UsageForwarder,
    pub(crate) rates: ReportRelay,
    /// Addresses of the control plane, for messages.
    upstreams: String,
}

impl Reports {
    /// Reports to `upstream` for programs in `region`. Messages name the addresses in `upstreams`.
    pub(crate) fn new(upstream: FollowerHandle, upstreams: String, region: Region) -> Self {
        let rates = ReportRelay::new(upstream.clone(), Some(region), SumLimits::AGENT);
        Self { usages: UsageForwarder::new(upstream), rates, upstreams }
    }

    /// Reports until `stopping`.
    pub(crate) async fn run(self, stopping: CancellationToken) {
        tokio::join!(self.usages.run(stopping.clone()), self.rates.run(stopping));
    }

    fn take(&self, mut report: v1::ReportSignalsRequest) -> Result<v1::ReportSignalsResponse, Invalid> {
        let response = self.rates.take_rates(&mut report)?;
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
