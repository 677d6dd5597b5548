use fairmesh_rib::{Forwarder, ReportRelay};
use fairmesh_wire::v1::{self, imbalance_server::Imbalance, signals_server::Signals};
use tonic::{Request, Response, Status};

/// The gRPC services `Signals` and `Imbalance`: rates are added up, and minutes of CPU are forwarded.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) forward: Forwarder,
    pub(crate) rates: ReportRelay,
}

impl Reports {
    /// Takes the rates out of a report.
    fn take_rates(
        &self,
        report: &mut v1::ReportSignalsRequest,
    ) -> Result<Option<v1::ReportSignalsResponse>, Status> {
        self.rates.take_rates(report).map_err(|e| Status::invalid_argument(e.to_string()))
    }
}

#[tonic::async_trait]
impl Signals for Reports {
    async fn report(
        &self,
        mut request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let answered = self.take_rates(request.get_mut())?;
        let has_usages = !request.get_ref().usages.is_empty();
        let mut response = match answered {
            Some(response) if !has_usages => return Ok(Response::new(response)),
            answered => answered.unwrap_or_default(),
        };
        let forwarded = Signals::report(&self.forward, request).await?.into_inner();
        response.dropped_minutes = forwarded.dropped_minutes;
        Ok(Response::new(response))
    }
}

#[tonic::async_trait]
impl Imbalance for Reports {
    /// A report of the release before. What is forwarded of it stays one: its maker signed the method.
    async fn report(
        &self,
        mut request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let rates = request.get_mut().traffic.take().map(v1::ReportSignalsRequest::from);
        let answered = rates.map(|mut rates| self.take_rates(&mut rates)).transpose()?.flatten();
        let has_usages = !request.get_ref().usages.is_empty();
        let mut response = match answered {
            Some(response) if !has_usages => return Ok(Response::new(response.into())),
            answered => v1::ReportUsageResponse::from(answered.unwrap_or_default()),
        };
        response.dropped = Imbalance::report(&self.forward, request).await?.into_inner().dropped;
        Ok(Response::new(response))
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Imbalance::read(&self.forward, request).await
    }
}
