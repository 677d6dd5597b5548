use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_imbalance::{AddOutcome, MeasuredInstance, Minute};
use fairmesh_model::{InstanceId, Invalid, Location, RecordKey, ServiceName};
use fairmesh_rib::Node;
use fairmesh_wire::v1;

use super::{Imbalance, convert, now};

impl Imbalance {
    /// Records the minutes of an instance, and returns how many were refused. Minutes of services and
    /// endpoints unknown to `node` are refused.
    ///
    /// # Errors
    /// A name or the location is invalid.
    pub(crate) fn take(&self, usage: v1::InstanceUsage, node: &Node) -> Result<u32, Invalid> {
        let service: ServiceName = usage.service.try_into().map_err(|e: Invalid| e.within("service"))?;
        let instance: InstanceId = usage.instance.try_into().map_err(|e: Invalid| e.within("instance"))?;
        let location = usage.location.ok_or_else(|| Invalid::new("location", "is missing", "send it"))?;
        let location: Location = location.try_into().map_err(|e: Invalid| e.within("location"))?;
        let mut dropped = 0;
        if let Err(refusals) = self.admit((&service, &instance, &location), node) {
            let minutes = u32::try_from(usage.minutes.len()).unwrap_or(u32::MAX);
            refusals.fetch_add(minutes.into(), Relaxed);
            return Ok(minutes);
        }
        for minute_usage in usage.minutes {
            let taken = self.record(
                MeasuredInstance { service: &service, instance: &instance, location: &location },
                (Minute(minute_usage.minute), convert::usage(minute_usage)),
                now(),
            );
            dropped += u32::from(!matches!(taken, AddOutcome::Counted | AddOutcome::Known));
        }
        Ok(dropped)
    }

    /// Admits only declared services, and instances that are registered or have reported before: the last
    /// minute of an instance arrives after it has left.
    ///
    /// # Errors
    /// The counter for this kind of refusal.
    fn admit(
        &self,
        (service, instance, location): (&ServiceName, &InstanceId, &Location),
        node: &Node,
    ) -> Result<(), &AtomicU64> {
        let is_there = |key: RecordKey| node.get(&key.to_string()).is_some();
        if !is_there(RecordKey::Service(service.clone())) {
            return Err(&self.counts.undeclared);
        }
        let endpoint = RecordKey::Endpoint(service.clone(), location.region.clone(), instance.clone());
        match self.open().contains(service, instance) || is_there(endpoint) {
            true => Ok(()),
            false => Err(&self.counts.unregistered),
        }
    }
}
