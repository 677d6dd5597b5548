//! Counters of the eBPF programs.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use fairmesh_kernel::{Counter, Counters};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Registry,
};

/// Counters of the programs, while connections are redirected to this proxy.
#[derive(Debug, Default)]
pub(crate) struct KernelMetrics(Mutex<Option<Counters>>);

impl KernelMetrics {
    /// Shows these counters from now on.
    pub(super) fn set(&self, counters: Option<Counters>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Ok(counts)) = counters.as_ref().map(Counters::read) else { return };
        let help = "Connections, requests and responses of the kernel form, by what became of them";
        registry.register("kernel_events", help, Events(counts));
    }
}

/// One series for each counter.
#[derive(Debug)]
struct Events(Vec<(Counter, u64)>);

impl EncodeMetric for Events {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(counter, count)| {
            let labels = [("event", counter.name())];
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)
        })
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
