//! Services with too few callers for the callers' subsets to cover all endpoints.

use fairmesh_console::view_reader::View;
use fairmesh_model::{EndpointState, Prefix, ServiceKind};
use fairmesh_wire::{handshake::Connection, v1::WatchersRequest};

use crate::findings_report::{Level, Report};

/// Checks services that have more serving endpoints than the subset of one caller.
pub(super) async fn check(connection: &Connection, view: &View, report: &mut Report) {
    for (name, one) in &view.services {
        let is_replicated = one.service.as_ref().is_some_and(|at| at.value.kind == ServiceKind::Replicated);
        let serving = one.endpoints.iter().filter(|at| at.value.state == EndpointState::Serving).count();
        let subset = one.effective_policy().balancing.subset as usize;
        if !is_replicated || subset == 0 || serving <= subset {
            continue;
        }
        let request = WatchersRequest { prefix: Prefix::endpoints(name, None).to_string() };
        let Ok(answer) = connection.rib().watchers(request).await else { return };
        let callers = answer.into_inner().watchers.len();
        let uncalled = uncalled(serving, subset, callers);
        if callers > 0 && uncalled > 0 {
            report.add(
                "service.subset",
                Level::Note,
                format!(
                    "about {uncalled} of the {serving} endpoints of {name} get no call, if each of its {callers} followers is one \
                     caller: each calls {subset} of them, and others get a multiple of their share"
                ),
                format!("set 'balancing.subset' in the policy of {name}, to 0 where each caller may call all endpoints"),
            );
        }
    }
}

/// Expected number of endpoints in no subset, rounded. Each caller chooses its subset independently and pseudorandomly
/// (rendezvous hashing), so all callers miss an endpoint with probability (1 - subset / endpoints) ^ callers.
fn uncalled(endpoints: usize, subset: usize, callers: usize) -> usize {
    let missed = 1.0 - subset.min(endpoints) as f64 / endpoints.max(1) as f64;
    (endpoints as f64 * missed.powi(i32::try_from(callers).unwrap_or(i32::MAX))).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_counts_endpoints_outside_all_caller_subsets() {
        assert_eq!(uncalled(60, 20, 3), 18, "19 in a trial");
        assert_eq!(uncalled(60, 20, 30), 0);
        assert_eq!(uncalled(20, 20, 1), 0);
        assert_eq!(uncalled(0, 20, 1), 0);
    }
}
