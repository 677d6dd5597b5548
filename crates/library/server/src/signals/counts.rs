//! Reports the counts of calls that the server processed or denied.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{CountedInterval, Region, ServiceName};
use fairmesh_rib::settle_counts;
use fairmesh_signals::{CountMeter, CountOutbox};
use fairmesh_wire::v1;
use tonic::Code;

use crate::{RegistryClient, RegistryError, layer::LayerState};

/// The most reports that are sent at once.
const MAX_REPORTS: usize = 4;

/// What a server counted, on its way to its agent.
pub(super) struct CountReports {
    layer: Counted,
    meter: CountMeter,
    outbox: CountOutbox,
    read_at_ms: u64,
}

/// The parts of the layer that count.
struct Counted {
    callers: Arc<crate::layer::caller_counts::CallerCounts>,
    authorizer: Arc<crate::authorization::Authorizer>,
}

impl CountReports {
    pub(super) fn of(layer: &LayerState) -> Self {
        let counted =
            Counted { callers: Arc::clone(&layer.callers), authorizer: Arc::clone(&layer.authorizer) };
        let outbox = CountOutbox::new(RandomState::new().hash_one("counts"));
        Self { layer: counted, meter: CountMeter::default(), outbox, read_at_ms: 0 }
    }

    /// Reads what was counted since the last time.
    pub(super) fn read(&mut self, service: &ServiceName, region: &Region, now_ms: u64) {
        let calls = self.meter.read(self.layer.callers.read(service, region));
        let denied = self.layer.authorizer.denied.take(service);
        let span = Duration::from_millis(now_ms.saturating_sub(self.read_at_ms));
        self.read_at_ms = now_ms;
        if !calls.is_empty() || !denied.is_empty() {
            let interval = CountedInterval { span, calls, denied, ..CountedInterval::default() };
            self.outbox.add(interval, now_ms);
        }
    }

    /// Sends what waits; the time until the next report in milliseconds, if the receiver asks for one.
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
