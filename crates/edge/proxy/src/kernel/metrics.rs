//! Counters of the eBPF programs.

use std::sync::{Mutex, PoisonError};

use fairmesh_kernel::Counters;
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Counters of the programs, set while connections are redirected to this proxy.
#[derive(Debug, Default)]
pub(crate) struct KernelMetrics(Mutex<Option<Counters>>);

impl KernelMetrics {
    /// Sets the counters to show; `None` shows none.
    pub(super) fn set(&self, counters: Option<Counters>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    /// Whether connections are redirected to this proxy.
    pub(crate) fn is_attached(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Ok(counts)) = counters.as_ref().map(Counters::read) else { return };
        let help = "Connections, requests and responses of the kernel form, by what became of them";
        let rows = counts.into_iter().map(|(counter, count)| ([("event", counter.name().into())], count));
        registry.counters("kernel_events", help, rows);
    }
}
