use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_imbalance::{AddOutcome, Minute};
use fairmesh_model::{InstanceId, Invalid, Location, RecordKey, ServiceName};
use fairmesh_rib::Node;
use fairmesh_wire::{
    identity_of,
    v1::{self, imbalance_server::Imbalance as Service},
};
use tonic::{Request, Response, Status};

use super::{Imbalance, convert, now, query::ReportQuery};
use crate::{caller_numbers::CallerNumbers, traffic::TrafficController};

/// Maximum of instance-minutes in one request; agents send at most 2,000.
const MAX_MINUTES: usize = 10_000;

/// The gRPC service `Imbalance`.
#[derive(Clone, Debug)]
pub(crate) struct ImbalanceService {
    pub(crate) imbalance: Arc<Imbalance>,
    /// Existing services and endpoints: reports of others are refused.
    pub(crate) node: Node,
    /// Takes reports of calls and load.
    pub(crate) traffic: Arc<TrafficController>,
    pub(crate) reporters: CallerNumbers,
}

#[tonic::async_trait]
impl Service for ImbalanceService {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let identity = identity_of(&request);
        let v1::ReportUsageRequest { usages, mut traffic } = request.into_inner();
        if let Some(report) = &mut traffic {
            report.reporter = self.reporters.of(&identity, report.reporter);
        }
        let told = traffic.map(|report| self.traffic.record(report)).transpose().map_err(|e| invalid(&e))?;
        let minutes: usize = usages.iter().map(|usage| usage.minutes.len()).sum();
        if minutes > MAX_MINUTES || usages.len() > MAX_MINUTES {
            let problem = format!("has {} minutes of {} instances", minutes, usages.len());
            return Err(invalid(&Invalid::new("usages", problem, format!("send at most {MAX_MINUTES}"))));
        }
        let mut dropped = 0;
        for (i, usage) in usages.into_iter().enumerate() {
            dropped += self.record(usage).map_err(|e| invalid(&e.within(format!("usages[{i}]"))))?;
        }
        Ok(Response::new(v1::ReportUsageResponse { dropped, ..told.unwrap_or_default() }))
    }

    async fn read(
        &self,
        request: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        let v1::ReadImbalanceRequest { service, by, window_minutes } = request.into_inner();
        let query = ReportQuery::of(&service, &by, window_minutes).map_err(|e| invalid(&e))?;
        let report = self.imbalance.cached_report(query).await.map_err(Status::unavailable)?;
        Ok(Response::new(convert::report(&report)))
    }
}

impl ImbalanceService {
    /// Records a report; returns how many of its minutes were refused.
    fn record(&self, usage: v1::InstanceUsage) -> Result<u32, Invalid> {
        let service: ServiceName = usage.service.try_into().map_err(|e: Invalid| e.within("service"))?;
        let instance: InstanceId = usage.instance.try_into().map_err(|e: Invalid| e.within("instance"))?;
        let location = usage.location.ok_or_else(|| Invalid::new("location", "is missing", "send it"))?;
        let location: Location = location.try_into().map_err(|e: Invalid| e.within("location"))?;
        let mut dropped = 0;
        if let Err(refusals) = self.admit(&service, &instance, &location) {
            let minutes = u32::try_from(usage.minutes.len()).unwrap_or(u32::MAX);
            refusals.fetch_add(minutes.into(), Relaxed);
            return Ok(minutes);
        }
        for minute_usage in usage.minutes {
            let minute = Minute(minute_usage.minute);
            let taken = self.imbalance.record(
                (&service, &instance, &location),
                (minute, convert::usage(minute_usage)),
                now(),
            );
            dropped += u32::from(!matches!(taken, AddOutcome::Counted | AddOutcome::Known));
        }
        Ok(dropped)
    }

    /// Admits declared services only, and instances that are registered or reported before: the last minute of an
    /// instance arrives after it has left.
    ///
    /// # Errors
    /// The counter of this kind of refusal.
    fn admit(
        &self,
        service: &ServiceName,
        instance: &InstanceId,
        location: &Location,
    ) -> Result<(), &AtomicU64> {
        let is_there = |key: RecordKey| self.node.get(&key.to_string()).is_some();
        if !is_there(RecordKey::Service(service.clone())) {
            return Err(&self.imbalance.counts.undeclared);
        }
        let endpoint = RecordKey::Endpoint(service.clone(), location.region.clone(), instance.clone());
        match self.imbalance.open().contains(service, instance) || is_there(endpoint) {
            true => Ok(()),
            false => Err(&self.imbalance.counts.unregistered),
        }
    }
}

fn invalid(problem: &Invalid) -> Status {
    Status::invalid_argument(problem.to_string())
}
