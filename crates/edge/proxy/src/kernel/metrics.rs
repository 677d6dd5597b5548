//! Counters of the kernel form.

use std::sync::{Mutex, PoisonError};

use fairmesh_kernel::Counters;
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

use crate::kernel::sidecar_bypass_calls::SidecarBypassCalls;

/// Counters of the programs, and of calls that listeners in front of servers do not see.
#[derive(Debug, Default)]
pub(crate) struct KernelMetrics {
    /// Set while connections are redirected to this proxy.
    counters: Mutex<Option<Counters>>,
    pub(crate) in_place: SidecarBypassCalls,
}

impl KernelMetrics {
    /// Sets the counters to show; `None` shows none.
    pub(super) fn set(&self, counters: Option<Counters>) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    /// Whether connections are redirected to this proxy.
    pub(crate) fn is_attached(&self) -> bool {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        self.in_place.register(registry);
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Ok(counts)) = counters.as_ref().map(Counters::read) else { return };
        let help = "Connections, requests and responses of the kernel form, by what became of them";
        let rows = counts.into_iter().map(|(counter, count)| ([("event", counter.name().into())], count));
        registry.counters("kernel_events", help, rows);
    }
}
