use fairmesh_controllers::{ControllerStatus, Statuses, Totals};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use std::sync::atomic::AtomicU64;

type Name = [(&'static str, &'static str); 1];
type Outcome = [(&'static str, &'static str); 2];
type Seconds = Family<Name, Gauge<f64, AtomicU64>>;

/// Registers the metrics of all controllers as they are now.
pub(crate) fn register(statuses: &Statuses, control: &mut Registry) {
    let statuses = statuses.read();
    register_rounds(&statuses, control);
    register_changes(&statuses, control);
    let (failures, refused, shadow) = (
        Family::<Name, Gauge>::default(),
        Family::<Name, Gauge>::default(),
        Family::<Name, Gauge>::default(),
    );
    let took = Seconds::default();
    for status in &statuses {
        let name = [("controller", status.name)];
        failures.get_or_create(&name).set(i64::from(status.failures));
        shadow.get_or_create(&name).set(i64::from(status.is_shadow));
        let last = status.last.as_ref();
        let count = last.map_or(0, |last| last.refused_total);
        refused.get_or_create(&name).set(i64::try_from(count).unwrap_or(i64::MAX));
        took.get_or_create(&name).set(last.map_or(0.0, |last| last.took.as_secs_f64()));
    }
    let help = "Rounds of a controller in a row that failed";
    control.register("controller_consecutive_failures", help, failures);
    control.register(
        "controller_refused",
        "Changes that the last round of a controller refused to make",
        refused,
    );
    let help = "1 for a controller in shadow mode, which decides and changes nothing";
    control.register("controller_shadow", help, shadow);
    let help = "Time that the last round of a controller took";
    control.register_with_unit("controller_last_round", help, Unit::Seconds, took);
}

fn register_rounds(statuses: &[ControllerStatus], control: &mut Registry) {
    let rounds = Family::<Outcome, Counter>::default();
    for ControllerStatus { name, totals, .. } in statuses {
        let Totals { done, conflicts, failed, overdue, panicked, without_lease, .. } = *totals;
        let outcomes = [
            ("done", done),
            ("conflict", conflicts),
            ("failed", failed),
            ("overdue", overdue),
            ("panicked", panicked),
            ("without_lease", without_lease),
        ];
        for (outcome, count) in outcomes {
            rounds.get_or_create(&[("controller", name), ("outcome", outcome)]).inc_by(count);
        }
    }
    control.register("controller_rounds", "Rounds of controllers, by outcome", rounds);
}

fn register_changes(statuses: &[ControllerStatus], control: &mut Registry) {
    let changes = Family::<Outcome, Counter>::default();
    for ControllerStatus { name, totals, .. } in statuses {
        for (kind, count) in [("record", totals.writes), ("effect", totals.effects)] {
            changes.get_or_create(&[("controller", name), ("kind", kind)]).inc_by(count);
        }
    }
    let help = "Changes that controllers made: records written or deleted, and effects in this process";
    control.register("controller_changes", help, changes);
}
