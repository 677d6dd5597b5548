use std::collections::BTreeMap;

use fairmesh_model::Label;
use fairmesh_planner::{LatencyFit, PoolFit, WorkFit};
use fairmesh_wire::v1;

/// Number of microseconds in a second.
const MICROS: f64 = 1e6;

/// Encodes the fits of a pool, with their ages.
pub(super) fn write(pool: PoolFit, now_ms: u64) -> v1::PoolFit {
    let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
    let mut written = v1::PoolFit {
        service: pool.service.to_string(),
        region: pool.region.to_string(),
        classes: classes(pool.work.as_ref(), pool.latency.as_ref()),
        ..v1::PoolFit::default()
    };
    if let Some(work) = pool.work {
        written.background_cores = work.background;
        (written.work_error, written.work_age_ms) = (Some(work.error), ago(work.at_ms));
    }
    if let Some(latency) = pool.latency {
        (written.sensitivity, written.latency_error) = (Some(latency.sensitivity), latency.error);
        written.latency_age_ms = ago(latency.fitted_at_ms);
        written.shifted_age_ms = ago(latency.changed_at_ms);
    }
    written
}

fn classes(work: Option<&WorkFit>, latency: Option<&LatencyFit>) -> Vec<v1::ClassFit> {
    let mut classes = BTreeMap::<Option<&Label>, v1::ClassFit>::new();
    for (class, work) in work.iter().flat_map(|work| &work.classes) {
        let written = classes.entry(class.as_ref()).or_default();
        (written.work_us, written.work_error_us) = (work.seconds * MICROS, work.error * MICROS);
    }
    for (class, base) in latency.iter().flat_map(|latency| &latency.bases) {
        classes.entry(class.as_ref()).or_default().base_us = Some(*base);
    }
    let name = |(class, written): (Option<&Label>, v1::ClassFit)| v1::ClassFit {
        class: class.map(ToString::to_string).unwrap_or_default(),
        ..written
    };
    classes.into_iter().map(name).collect()
}
