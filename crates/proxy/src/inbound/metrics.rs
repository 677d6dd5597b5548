//! Counters of the calls to the program.

use fairmesh_server::Admission;
use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// Registers the state of the concurrency limit.
pub(crate) fn register(registry: &mut Registry, admission: &Admission) {
    let limit = ConstGauge::new(u64::from(admission.limit.unwrap_or(u32::MAX)));
    registry.register("inbound_limit", "Requests that the program gets at one time now", limit);
    let in_flight = ConstGauge::new(u64::from(admission.outstanding.calls));
    registry.register("inbound_under_way", "Requests that the program works on, without streams", in_flight);
    let counters = [
        ("inbound_refused", "Requests refused since the program had as many as it takes", admission.refused),
        ("inbound_late", "Requests cut off since their callers' time had passed", admission.late),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
}
