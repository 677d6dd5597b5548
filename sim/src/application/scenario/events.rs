//! Effect of events on the true model.

use fairmesh_te::optimizer::Problem;

use super::{MS_PER_SECOND, Scenario};
use crate::scenario::{Action, SimTime};

/// Latency at half load, as a multiple of that of an idle pool: with slower cores, latency grows in proportion.
const AT_HALF_LOAD: f64 = 2.0;

impl Scenario {
    /// The problem under the current events: changed speeds, cores and delays.
    pub(crate) fn problem_at(&self, now: u64) -> Problem {
        let mut problem = self.problem();
        let is_in_force = |at: SimTime, action: &Action| {
            let end = action.duration().map_or(u64::MAX, |duration| at.nanos() + duration.nanos());
            (at.nanos()..end).contains(&now)
        };
        for event in self.play.events.iter().filter(|event| is_in_force(event.at, &event.action)) {
            for (service, pools) in self.services.iter().enumerate() {
                for (region, name) in self.regions().into_iter().enumerate() {
                    if event.is_of(&pools.name, name) {
                        apply(&event.action, &mut problem, (service, region));
                    }
                }
            }
        }
        problem
    }
}

fn apply(action: &Action, problem: &mut Problem, (service, region): (usize, usize)) {
    let pools = &mut problem.services[service];
    let (per_work, delay) = match action {
        Action::Speed { times, .. } => {
            pools.capacity[region] *= times;
            (AT_HALF_LOAD * pools.sensitivity * (times.recip() - 1.0), 0.0)
        }
        Action::Cores { times, .. } => {
            pools.capacity[region] *= times;
            return;
        }
        Action::Delay { by, .. } => (0.0, by.as_seconds() * MS_PER_SECOND),
        _ => return,
    };
    problem.corrections.resize(problem.nodes.len() * problem.regions, 0.0);
    for (node, of) in problem.nodes.iter().enumerate().filter(|(_, of)| of.service == service) {
        let correction = (per_work * of.work + delay).max(-of.latency);
        problem.corrections[node * problem.regions + region] += correction;
    }
}
