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
        let next = traffic.transpose().map_err(|e| Status::invalid_argument(e.to_string()))?;
        if next.is_some() && request.get_ref().usages.is_empty() {
            let next_traffic_ms = next.unwrap_or_default();
            return Ok(Response::new(v1::ReportUsageResponse { dropped: 0, next_traffic_ms }));
        }
        let mut response = Imbalance::report(&self.forward, request).await?;
        response.get_mut().next_traffic_ms = next.unwrap_or_default();
        Ok(response)
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Imbalance::read(&self.forward, request).await
    }
}
