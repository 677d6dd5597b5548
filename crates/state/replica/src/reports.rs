use fairmesh_rib::{
    CountRelay, Forwarder, ReportRelay,
    access::{AccessControl, Caller, RefusedRows},
};
use fairmesh_signals::ReportSource;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance, signals_server::Signals};
use tonic::{Request, Response, Status};

/// The gRPC services `Signals` and `Imbalance`. Rates and counts are aggregated here; CPU usage per minute is
/// forwarded.
#[derive(Clone, Debug)]
pub(crate) struct Reports {
    pub(crate) forward: Forwarder,
    pub(crate) rates: ReportRelay,
    pub(crate) counts: CountRelay,
    /// Decides whose room a report takes, and what its response may name.
    pub(crate) access: AccessControl,
}

impl Reports {
    /// Takes the rates out of a report and aggregates them. The response names only services that the sender may see.
    fn take_rates(
        &self,
        sender: Option<&Caller>,
        report: &mut v1::ReportSignalsRequest,
    ) -> Result<Option<v1::ReportSignalsResponse>, Status> {
        let taken = self.rates.take_rates(&self.source(sender), report);
        let mut response = taken.map_err(|e| Status::invalid_argument(e.to_string()))?;
        if let (Some(sender), Some(response)) = (sender, &mut response) {
            self.access.keep_visible(sender, &mut response.watched);
        }
        Ok(response)
    }

    /// The source of a report. Senders are known only in a mesh with a trust domain.
    fn source(&self, sender: Option<&Caller>) -> ReportSource {
        sender.map_or_else(ReportSource::of_mesh, |sender| self.access.report_source(sender))
    }
}

#[tonic::async_trait]
impl Signals for Reports {
    async fn report(
        &self,
        mut request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let refused = RefusedRows::of(&request);
        let sender = request.extensions().get::<Caller>().cloned();
        let report = request.get_mut();
        let counted = self.counts.take(&self.source(sender.as_ref()), report, |_| {});
        let counted = counted.map_err(|e| Status::invalid_argument(e.to_string()))?;
        if let Some(mut response) = counted {
            response.refused_rows += refused;
            return Ok(Response::new(response));
        }
        if report.sender.is_some() && !report.usages.is_empty() {
            // Without its rates, the report would not match the signature of its sender.
            return Err(Status::invalid_argument("usages: are in a report with rates; report them apart"));
        }
        match self.take_rates(sender.as_ref(), report)? {
            Some(response) => Ok(Response::new(response)),
            None => Signals::report(&self.forward, request).await,
        }
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
    /// Handles a report in the format of the previous release. The rest of the report is forwarded with the same
    /// method, because the sender signed the method.
    async fn report(
        &self,
        mut request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let sender = request.extensions().get::<Caller>().cloned();
        let rates = request.get_mut().traffic.take().map(v1::ReportSignalsRequest::from);
        let take = |mut rates| self.take_rates(sender.as_ref(), &mut rates);
        let answered = rates.map(take).transpose()?.flatten();
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
