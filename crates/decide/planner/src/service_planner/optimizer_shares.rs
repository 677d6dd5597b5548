//! Shares of the optimizer instead of those of the rings planner.

use fairmesh_model::Region;
use fairmesh_te::{ClassShares, MILLIONTHS, RegionTable, Tables};

use super::{ServicePlanner, ShiftNote};
use crate::optimizer::{Fallback, ServicePlan, Verdict};

/// A change of shares below this, in ten-thousandths, is not noted.
const NOTED: u32 = 100;

impl ServicePlanner {
    /// The optimizer's plan, if it fits the present classes and regions.
    pub(super) fn optimized(&self) -> Option<(&ServicePlan, Tables)> {
        let Some(Verdict::Optimized(plan)) = &self.verdict else { return None };
        if plan.classes != self.classes {
            return None;
        }
        let sources = self.regions.iter().zip(&self.state.tables().sources);
        let sources = sources.map(|(region, present)| match plan.regions.binary_search(region) {
            Ok(at) => self.adapt(plan, &plan.tables.sources[at]),
            // Callers that the plan does not know yet go on as they do.
            Err(_) => Some(present.clone()),
        });
        Some((plan, Tables { sources: sources.collect::<Option<_>>()? }))
    }

    /// A table by the positions of this planner's regions; `None` if calls go to a region that it does not have.
    fn adapt(&self, plan: &ServicePlan, table: &RegionTable) -> Option<RegionTable> {
        let position = |region: &Region| self.regions.binary_search(region).ok();
        let class = |planned: &ClassShares| {
            let mut shares = vec![0; self.regions.len()];
            for (region, share) in plan.regions.iter().zip(&planned.shares).filter(|(_, share)| **share > 0) {
                shares[position(region)?] = *share;
            }
            Some(ClassShares { shares, dropped: planned.dropped })
        };
        Some(RegionTable { classes: table.classes.iter().map(class).collect::<Option<_>>()? })
    }

    /// Puts shares of the optimizer into the plan of this round, and notes what they change. Without any that fit, rings plan, and the
    /// verdict says so.
    pub(super) fn take_optimized(&mut self, before: &Tables, now_ms: u64) -> bool {
        let Some((plan, tables)) = self.optimized() else {
            if let Some(verdict @ Verdict::Optimized(_)) = &mut self.verdict {
                let text = "the last plan is for other classes or regions than there are";
                *verdict = Verdict::Rings(Fallback::new("unsolved", text));
            }
            return false;
        };
        let load = |region: &Region| plan.regions.binary_search(region).map_or(0.0, |at| plan.loads[at]);
        let predicted = self.regions.iter().map(load).collect();
        let notes = self.changes(plan, (before, &tables), now_ms);
        let empty = fairmesh_te::PlannerState::new(0, 1);
        self.state = std::mem::replace(&mut self.state, empty).with_tables(tables);
        self.predicted = predicted;
        notes.into_iter().for_each(|note| self.shifts.push_front(note));
        true
    }

    /// A note for each row that changes, with what the plan expects of its calls.
    fn changes(&self, plan: &ServicePlan, (before, after): (&Tables, &Tables), at_ms: u64) -> Vec<ShiftNote> {
        let mut notes = Vec::new();
        for (source, from) in self.regions.iter().enumerate() {
            for class in 0..=self.classes.len() {
                let (old, new) = (before.of(source, class), after.of(source, class));
                let changes: Vec<String> = self.share_changes(old, new).collect();
                let Ok(at) = plan.regions.binary_search(from) else { continue };
                if changes.is_empty() {
                    continue;
                }
                let expected = &plan.expected[at][class];
                let text = format!(
                    "{}: the optimizer expects {:.1} ms a call",
                    changes.join(", "),
                    expected.latency_ms
                );
                let class = class.checked_sub(1).map(|class| self.classes[class].clone());
                notes.push(ShiftNote { at_ms, from: from.clone(), class, text });
            }
        }
        notes
    }

    /// Such as "us 0 % to 35 %".
    fn share_changes<'a>(
        &'a self,
        before: &'a ClassShares,
        after: &'a ClassShares,
    ) -> impl Iterator<Item = String> + 'a {
        let names = self.regions.iter().map(Region::as_ref).chain(["dropped"]);
        let shares = |row: &'a ClassShares| row.shares.iter().copied().chain([row.dropped]);
        let percent = |of_whole: u32| f64::from(of_whole * MILLIONTHS) / 1e4;
        let rows = names.zip(shares(before).zip(shares(after)));
        let changed = rows.filter(|(_, (before, after))| before.abs_diff(*after) >= NOTED);
        changed.map(move |(name, (before, after))| {
            format!("{name} {:.0} % to {:.0} %", percent(before), percent(after))
        })
    }
}
