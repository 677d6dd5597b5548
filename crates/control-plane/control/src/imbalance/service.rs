use std::sync::Arc;

use fairmesh_model::Invalid;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance as Service, signals_server::Signals as _};
use tonic::{Request, Response, Status};

use super::{Imbalance, ReportQuery, convert};
use crate::reports::SignalsService;

/// The gRPC service `Imbalance`.
#[derive(Clone, Debug)]
pub(crate) struct ImbalanceService {
    pub(crate) imbalance: Arc<Imbalance>,
    /// Handles the reports that agents of the previous release send here.
    pub(crate) signals: SignalsService,
}

#[tonic::async_trait]
impl Service for ImbalanceService {
    /// Receives a report from an agent of the previous release.
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        Ok(self.signals.report(request.map(Into::into)).await?.map(Into::into))
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        let v1::ReadImbalanceRequest { service, by, window_minutes } = request.into_inner();
        let invalid = |problem: Invalid| Status::invalid_argument(problem.to_string());
        let query = ReportQuery::of(&service, &by, window_minutes).map_err(invalid)?;
        let report = self.imbalance.cached_report(query).await.map_err(Status::unavailable)?;
        Ok(Response::new(convert::report(&report)))
    }
}
