use std::sync::Arc;

use fairmesh_gateway_control::GatewayLoads;
use fairmesh_model::Invalid;
use fairmesh_rib::{
    Node,
    access::{AccessControl, Caller, CallerNumbers, RefusedRows},
};
use fairmesh_signals::ReportSource;
use fairmesh_wire::{
    identity_of,
    v1::{self, signals_server::Signals},
};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};

use super::TrafficReports;
use crate::imbalance::Imbalance;

/// Maximum number of instance-minutes in one report. Agents send at most 2,000.
const MAX_MINUTES: usize = 10_000;

/// The gRPC service `Signals`. Access control has already checked that the caller may report each row. Clones
/// share their state.
#[derive(Clone, Debug)]
pub(crate) struct SignalsService {
    /// Receives CPU minutes.
    pub(crate) imbalance: Arc<Imbalance>,
    /// Receives rates of calls and load.
    pub(crate) traffic: Arc<TrafficReports>,
    /// The existing services and endpoints. CPU minutes of other services and endpoints are refused.
    pub(crate) node: Node,
    /// Decides whose room a report takes, and what its response may name.
    pub(crate) access: AccessControl,
    pub(crate) reporters: CallerNumbers,
    /// Receives the loads of the gateway's replicas.
    pub(crate) gateway: GatewayLoads,
}

#[tonic::async_trait]
impl Signals for SignalsService {
    async fn report(
        &self,
        request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let (identity, refused) = (identity_of(&request), RefusedRows::of(&request));
        let sender = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        let source = self.access.report_source(&sender);
        let mut report = request.into_inner();
        if let Some(sender) = &mut report.sender {
            sender.reporter = self.reporters.of(&identity, sender.reporter);
        }
        if let Some(counts) = &mut report.counts {
            counts.reporter = self.reporters.of(&identity, counts.reporter);
        }
        let invalid = |e: Invalid| Status::invalid_argument(e.to_string());
        if let Some((counts, implausible)) = report.take_counts().map_err(invalid)? {
            let traffic = Arc::clone(&self.traffic);
            let turn = traffic.counts.turn().await;
            // Recording may wait while a view is read. It keeps its turn even if the caller no longer waits.
            let recorded = spawn_blocking(move || {
                let _turn = turn;
                traffic.record_counts(&source, counts)
            });
            let recorded = recorded.await;
            let stopping = |_| Status::unavailable("the control plane is stopping; retry");
            let refused_rows = refused + implausible;
            let response = v1::ReportSignalsResponse { refused_rows, ..recorded.map_err(stopping)? };
            return Ok(Response::new(response));
        }
        let mut response = self.take(&source, report).map_err(invalid)?;
        self.access.keep_visible(&sender, &mut response.watched);
        Ok(Response::new(response))
    }

    async fn report_gateway(
        &self,
        request: Request<v1::ReportGatewayRequest>,
    ) -> Result<Response<v1::ReportGatewayResponse>, Status> {
        self.gateway.exchange(request.into_inner()).map(Response::new)
    }
}

impl SignalsService {
    /// Records rates and CPU minutes.
    fn take(
        &self,
        source: &ReportSource,
        mut report: v1::ReportSignalsRequest,
    ) -> Result<v1::ReportSignalsResponse, Invalid> {
        let rates = report.take_rates()?;
        let mut response = rates.map(|rates| self.traffic.record(source, rates)).unwrap_or_default();
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
