//! Reports the counts of calls that the server processed or denied.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{CountedInterval, CpuBy, CpuPath, CpuUser, Region, ServiceName};
use fairmesh_rib::settle_counts;
use fairmesh_signals::{CountMeter, CountOutbox, CpuDivision};
use fairmesh_wire::v1;
use tonic::Code;

use crate::{
    ConnectionAuthorizer, RegistryClient, RegistryError,
    authorization::Authorizer,
    layer::{LayerState, caller_counts::CallerCounts},
};

/// Maximum number of reports that are sent back to back.
const MAX_REPORTS: usize = 4;

/// A server's counts that are still to be sent to its agent.
pub(super) struct CountReports {
    callers: Arc<CallerCounts>,
    authorizer: Arc<Authorizer>,
    meter: CountMeter,
    division: CpuDivision,
    /// Attributed CPU time since the last interval, in microseconds.
    cpu: BTreeMap<(CpuBy, CpuUser), u64>,
    outbox: CountOutbox,
    read_at_ms: u64,
}

impl CountReports {
    /// Creates reports of the counts of a server layer.
    pub(super) fn of(layer: &LayerState) -> Self {
        Self::new(Arc::clone(&layer.callers), Arc::clone(&layer.authorizer))
    }

    /// Creates reports of the counts made in front of a program.
    pub(super) fn of_front(front: &ConnectionAuthorizer) -> Self {
        Self::new(Arc::clone(&front.callers), Arc::clone(&front.authorizer))
    }

    fn new(callers: Arc<CallerCounts>, authorizer: Arc<Authorizer>) -> Self {
        let outbox = CountOutbox::new(RandomState::new().hash_one("counts"));
        let (meter, division, cpu) = Default::default();
        Self { callers, authorizer, meter, division, cpu, outbox, read_at_ms: 0 }
    }

    /// Attributes to callers the CPU time that the program used since the previous call of this function. `used_us`
    /// is a total in microseconds, comparable within an epoch.
    pub(super) fn divide_cpu(&mut self, epoch: u32, used_us: u64) {
        for (user, part) in self.division.read((epoch, used_us), self.callers.in_flight()) {
            *self.cpu.entry(user).or_default() += part;
        }
    }

    /// Reads the counts since the last reading.
    pub(super) fn read(&mut self, service: &ServiceName, region: &Region, now_ms: u64) {
        let calls = self.meter.read(self.callers.read(service, region));
        let denied = self.authorizer.denied.take(service);
        let path = |(by, user)| CpuPath { service: service.clone(), by, user };
        let cpu: BTreeMap<_, _> =
            std::mem::take(&mut self.cpu).into_iter().map(|(user, part)| (path(user), part)).collect();
        let span = Duration::from_millis(now_ms.saturating_sub(self.read_at_ms));
        self.read_at_ms = now_ms;
        let interval = CountedInterval { span, calls, denied, cpu, ..CountedInterval::default() };
        if interval.rows() > 0 {
            self.outbox.add(interval, now_ms);
        }
    }

    /// Sends pending reports. Returns the time until the next report in milliseconds, if the receiver requests one.
    pub(super) async fn send(&mut self, registry: &RegistryClient, now_ms: u64) -> Option<u64> {
        let mut asked = None;
        for _ in 0..MAX_REPORTS {
            let Some(report) = self.outbox.next(now_ms) else { break };
            let report = v1::ReportSignalsRequest { counts: Some(report.into()), ..Default::default() };
            let result = registry.report_signals(report).await.map_err(|error| match error {
                RegistryError::Refused { status, .. } => status.code(),
                _ => Code::Unavailable,
            });
            asked = settle_counts(&mut self.outbox, result)?;
        }
        asked
    }
}
