use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_imbalance::{AddOutcome, Minute};
use fairmesh_model::{InstanceId, Invalid, Location, RecordKey, ServiceName};
use fairmesh_rib::Node;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance as Service};
use tonic::{Request, Response, Status};

use super::{Imbalance, message, now, reading::Question};

/// Minutes of instances in one report; agents send at most 2,000.
const MAX_MINUTES: usize = 10_000;

/// The collector over gRPC.
#[derive(Clone, Debug)]
pub(crate) struct ImbalanceService {
    pub(crate) imbalance: Arc<Imbalance>,
    /// Which services and endpoints there are: figures of others are not taken.
    pub(crate) node: Node,
}

#[tonic::async_trait]
impl Service for ImbalanceService {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let usages = request.into_inner().usages;
        let minutes: usize = usages.iter().map(|usage| usage.minutes.len()).sum();
        if minutes > MAX_MINUTES || usages.len() > MAX_MINUTES {
            let problem = format!("there are {} minutes of {} instances", minutes, usages.len());
            return Err(invalid(&Invalid::new("usages", problem, format!("send at most {MAX_MINUTES}"))));
        }
        let mut dropped = 0;
        for (i, usage) in usages.into_iter().enumerate() {
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
        let report = self.imbalance.recent(question).await.map_err(Status::unavailable)?;
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
        if let Err(refusals) = self.admit(&service, &instance, &place) {
            let minutes = u32::try_from(usage.minutes.len()).unwrap_or(u32::MAX);
            refusals.fetch_add(minutes.into(), Relaxed);
            return Ok(minutes);
        }
        for said in usage.minutes {
            let minute = Minute(said.minute);
            let taken =
                self.imbalance.take((&service, &instance, &place), (minute, message::usage(said)), now());
            dropped += u32::from(!matches!(taken, AddOutcome::Counted | AddOutcome::Known));
        }
        Ok(dropped)
    }

    /// Takes figures of declared services only, and of instances that are registered, or were when they reported before: the last
    /// minute of one that has left comes after it.
    ///
    /// # Errors
    /// What counts the refusals of this kind.
    fn admit(
        &self,
        service: &ServiceName,
        instance: &InstanceId,
        place: &Location,
    ) -> Result<(), &AtomicU64> {
        let is_there = |key: RecordKey| self.node.get(&key.to_string()).is_some();
        if !is_there(RecordKey::Service(service.clone())) {
            return Err(&self.imbalance.counts.undeclared);
        }
        let endpoint = RecordKey::Endpoint(service.clone(), place.region.clone(), instance.clone());
        match self.imbalance.open().contains(service, instance) || is_there(endpoint) {
            true => Ok(()),
            false => Err(&self.imbalance.counts.unregistered),
        }
    }
}

fn invalid(problem: &Invalid) -> Status {
    Status::invalid_argument(problem.to_string())
}
