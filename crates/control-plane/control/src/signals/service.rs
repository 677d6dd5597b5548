use std::sync::Arc;

use fairmesh_model::Invalid;
use fairmesh_rib::Node;
use fairmesh_wire::{
    identity_of,
    v1::{self, signals_server::Signals},
};
use tonic::{Request, Response, Status};

use super::TrafficReports;
use crate::{caller_numbers::CallerNumbers, imbalance::Imbalance};

/// Maximum of instance-minutes in one report; agents send at most 2,000.
const MAX_MINUTES: usize = 10_000;

/// The gRPC service `Signals`. Whether the caller may report a row is judged before, by the needs of the method. Clones share
/// their state.
#[derive(Clone, Debug)]
pub(crate) struct SignalsService {
    /// Takes minutes.
    pub(crate) imbalance: Arc<Imbalance>,
    /// Takes rates.
    pub(crate) traffic: Arc<TrafficReports>,
    /// Existing services and endpoints: minutes of others are refused.
    pub(crate) node: Node,
    pub(crate) reporters: CallerNumbers,
}

#[tonic::async_trait]
impl Signals for SignalsService {
    async fn report(
        &self,
        request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let identity = identity_of(&request);
        let mut report = request.into_inner();
        if let Some(sender) = &mut report.sender {
            sender.reporter = self.reporters.of(&identity, sender.reporter);
        }
        if let Some(counts) = &mut report.counts {
            counts.reporter = self.reporters.of(&identity, counts.reporter);
        }
        let taken = self.take(report).map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Response::new(taken))
    }
}

impl SignalsService {
    fn take(&self, mut report: v1::ReportSignalsRequest) -> Result<v1::ReportSignalsResponse, Invalid> {
        if let Some(counts) = report.take_counts()? {
            return Ok(self.traffic.counts.record(counts));
        }
        let rates = report.take_rates()?;
        let mut response = rates.map(|rates| self.traffic.record(rates)).unwrap_or_default();
        let usages = report.usages;
        let minutes: usize = usages.iter().map(|usage| usage.minutes.len()).sum();
        if minutes > MAX_MINUTES || usages.len() > MAX_MINUTES {
            let problem = format!("has {} minutes of {} instances", minutes, usages.len());
            return Err(Invalid::new("usages", problem, format!("send at most {MAX_MINUTES}")));
        }
        for (i, usage) in usages.into_iter().enumerate() {
            let dropped =
                self.imbalance.take(usage, &self.node).map_err(|e| e.within(format!("usages[{i}]")))?;
            response.dropped_minutes += dropped;
        }
        Ok(response)
    }
}
