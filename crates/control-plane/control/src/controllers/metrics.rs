use fairmesh_controllers::{ControllerStatus, Statuses, Totals};
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Registers the current metrics of all controllers.
pub(crate) fn register(statuses: &Statuses, control: &mut Registry) {
    let statuses = statuses.read();
    register_rounds(&statuses, control);
    register_changes(&statuses, control);
    fn rows<T>(
        statuses: &[ControllerStatus],
        value: impl Fn(&ControllerStatus) -> T,
    ) -> impl Iterator<Item = ([(&'static str, std::borrow::Cow<'static, str>); 1], T)> {
        statuses.iter().map(move |status| ([("controller", status.name.into())], value(status)))
    }
    let help = "Rounds of a controller in a row that failed";
    control.gauges("controller_consecutive_failures", help, rows(&statuses, |status| status.failures));
    let help = "Changes that the last round of a controller refused to make";
    let refused = |status: &ControllerStatus| status.last.as_ref().map_or(0, |last| last.refused_total);
    control.gauges("controller_refused", help, rows(&statuses, refused));
    let help = "1 for a controller in shadow mode, which decides and changes nothing";
    control.gauges("controller_shadow", help, rows(&statuses, |status| status.is_shadow));
    let help = "Time that the last round of a controller took";
    let took = |status: &ControllerStatus| status.last.as_ref().map_or(0.0, |last| last.took.as_secs_f64());
    control.gauges("controller_last_round_seconds", help, rows(&statuses, took));
}

fn register_rounds(statuses: &[ControllerStatus], control: &mut Registry) {
    let rows = statuses.iter().flat_map(|ControllerStatus { name, totals, .. }| {
        let Totals { done, conflicts, failed, overdue, panicked, without_lease, .. } = *totals;
        let outcomes = [
            ("done", done),
            ("conflict", conflicts),
            ("failed", failed),
            ("overdue", overdue),
            ("panicked", panicked),
            ("without_lease", without_lease),
        ];
        outcomes
            .map(|(outcome, count)| ([("controller", (*name).into()), ("outcome", outcome.into())], count))
    });
    control.counters("controller_rounds", "Rounds of controllers, by outcome", rows);
}

fn register_changes(statuses: &[ControllerStatus], control: &mut Registry) {
    let rows = statuses.iter().flat_map(|ControllerStatus { name, totals, .. }| {
        let kinds = [("record", totals.writes), ("effect", totals.effects)];
        kinds.map(|(kind, count)| ([("controller", (*name).into()), ("kind", kind.into())], count))
    });
    let help = "Changes that controllers made: records written or deleted, and effects in this process";
    control.counters("controller_changes", help, rows);
}
