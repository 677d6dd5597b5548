use fairmesh_rib::{Forwarder, ReportRelay};
use fairmesh_wire::v1::{self, imbalance_server::Imbalance};
use tonic::{Request, Response, Status};

/// The gRPC service `Imbalance`: CPU usage is forwarded, and traffic is added up.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) forward: Forwarder,
    pub(crate) traffic: ReportRelay,
}

#[tonic::async_trait]
impl Imbalance for Reports {
    async fn report(
        &self,
        mut request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let traffic = request.get_mut().traffic.take().map(|report| self.traffic.record(report));
        let told = traffic.transpose().map_err(|e| Status::invalid_argument(e.to_string()))?;
        let has_usages = !request.get_ref().usages.is_empty();
        let mut told = match told {
            Some(told) if !has_usages => return Ok(Response::new(told)),
            told => told.unwrap_or_default(),
        };
        told.dropped = Imbalance::report(&self.forward, request).await?.into_inner().dropped;
        Ok(Response::new(told))
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Imbalance::read(&self.forward, request).await
    }
}
