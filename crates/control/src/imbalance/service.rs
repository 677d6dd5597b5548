use std::sync::Arc;

use fairmesh_imbalance::{Minute, Taken};
use fairmesh_model::{InstanceId, Invalid, Location, ServiceName};
use fairmesh_wire::v1::{self, imbalance_server::Imbalance as Service};
use tonic::{Request, Response, Status};

use super::{Imbalance, message, now, reading::Question};

/// The collector over gRPC.
#[derive(Clone, Debug)]
pub(crate) struct ImbalanceService {
    pub(crate) imbalance: Arc<Imbalance>,
}

#[tonic::async_trait]
impl Service for ImbalanceService {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let mut dropped = 0;
        for (i, usage) in request.into_inner().usages.into_iter().enumerate() {
            dropped += self.take(usage).map_err(|e| invalid(&e.within(format!("usages[{i}]"))))?;
        }
        Ok(Response::new(v1::ReportUsageResponse { dropped }))
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        let v1::ReadImbalanceRequest { service, by, window_minutes } = request.into_inner();
        let question = Question::of(&service, &by, window_minutes).map_err(|e| invalid(&e))?;
        let report = self.imbalance.report(&question, now()).await;
        let report = report.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(message::report(&report)))
    }
}

impl ImbalanceService {
    /// How many of its minutes were not taken.
    fn take(&self, usage: v1::InstanceUsage) -> Result<u32, Invalid> {
        let service: ServiceName = usage.service.try_into().map_err(|e: Invalid| e.within("service"))?;
        let instance: InstanceId = usage.instance.try_into().map_err(|e: Invalid| e.within("instance"))?;
        let place = usage.location.ok_or_else(|| Invalid::new("location", "is missing", "send it"))?;
        let place: Location = place.try_into().map_err(|e: Invalid| e.within("location"))?;
        let mut dropped = 0;
        for said in usage.minutes {
            let minute = Minute(said.minute);
            let taken =
                self.imbalance.take((&service, &instance, &place), (minute, message::usage(said)), now());
            dropped += u32::from(!matches!(taken, Taken::Counted | Taken::Known));
        }
        Ok(dropped)
    }
}

fn invalid(problem: &Invalid) -> Status {
    Status::invalid_argument(problem.to_string())
}
