//! Settings of the planner in a policy: rings with thresholds, the order of classes, the load metric.

use std::{collections::BTreeSet, time::Duration};

use super::{Traffic, TrafficMode};
use crate::{Invalid, Label, LoadSignal, Ring, Share};

/// Maximum number of classes that a planner distinguishes.
pub const MAX_PLANNED_CLASSES: usize = 7;
/// Maximum number of rings with thresholds.
const MAX_RINGS: usize = 16;
/// Minimum first threshold, in millionths. The planner aims a few percent below the threshold.
const LOWEST: u32 = 100_000;

/// A ring with a load threshold. Once its regions reach this utilisation, the next ring opens (ServiceRouter §3.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRing {
    /// The regions of the ring.
    pub ring: Ring,
    /// The utilisation at which the next ring opens.
    pub load: Share,
}

/// A server metric that is used as load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadMetric {
    /// The metric's name in load reports.
    pub name: String,
    /// The metric's value at a full server; at least 1.
    pub full_scale: u32,
}

impl Traffic {
    /// The rings in force, with their thresholds.
    pub fn load_rings(&self) -> Vec<LoadRing> {
        if !self.rings.is_empty() {
            return self.rings.clone();
        }
        let within = |ms| Ring::Within(Duration::from_millis(ms));
        let rings =
            [(Ring::Region, 750_000), (within(35), 800_000), (within(80), 850_000), (Ring::Any, 900_000)];
        let ring = |(ring, load)| LoadRing { ring, load: Share::of_millionths(load).unwrap_or(Share::ALL) };
        rings.map(ring).into()
    }

    pub(super) fn validate_planning(&self) -> Result<(), Invalid> {
        let has_settings = !self.rings.is_empty() || !self.classes.is_empty() || self.load.is_some();
        if self.planner.is_none() && (has_settings || self.mode == TrafficMode::Hold) {
            let hint = "write 'planner: rings' or 'planner: optimizer' beside them, or leave them out";
            return Err(Invalid::new("planner", "is missing for rings, classes, load or hold", hint));
        }
        self.validate_rings()?;
        if self.classes.len() > MAX_PLANNED_CLASSES {
            let hint = format!("list at most {MAX_PLANNED_CLASSES}");
            return Err(Invalid::new("classes", "are too many", hint));
        }
        if self.classes.iter().collect::<BTreeSet<&Label>>().len() < self.classes.len() {
            return Err(Invalid::new("classes", "repeat a name", "list each class once"));
        }
        let Some(LoadMetric { name, full_scale }) = &self.load else { return Ok(()) };
        if self.is_optimized() {
            let hint = "leave it out: the optimizer plans by CPU; or write 'planner: rings'";
            return Err(Invalid::new("load", "is a metric, and the planner is the optimizer", hint));
        }
        LoadSignal::Metric(name.clone()).validate().map_err(|e| e.within("load.metric"))?;
        match full_scale {
            0 => {
                Err(Invalid::new("load.fullScale", "is 0", "write the value of the metric at a full server"))
            }
            _ => Ok(()),
        }
    }

    fn validate_rings(&self) -> Result<(), Invalid> {
        if self.rings.len() > MAX_RINGS {
            let hint = format!("write at most {MAX_RINGS}");
            return Err(Invalid::new("rings", "are too many", hint));
        }
        for (i, LoadRing { ring, load }) in self.rings.iter().enumerate() {
            let field = format!("rings[{i}]");
            let before = self.rings[..i].last();
            let (problem, hint) = match (ring, before.map(|ring| ring.ring)) {
                _ if load.millionths() < LOWEST => ("has a load below 10%", "write 10% to 100%"),
                _ if before.is_some_and(|before| before.load > *load) => {
                    ("has a lower load than the ring before", "let farther rings open at higher loads")
                }
                (_, Some(Ring::Any)) => ("follows 'any', which includes all regions", "write 'any' last"),
                (Ring::Region, Some(_)) => ("is not the first ring", "write 'region' first"),
                (Ring::Within(outer), Some(Ring::Within(inner))) if inner >= *outer => {
                    ("is not greater than the bound before it", "order round trips ascending")
                }
                (ring, Some(before)) if before == *ring => ("is repeated", "write every ring once"),
                _ => continue,
            };
            return Err(Invalid::new(field, problem, hint));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrafficPlanner;

    fn planned(rings: &[(Ring, u32)]) -> Traffic {
        let ring = |(ring, load): &(Ring, u32)| LoadRing {
            ring: *ring,
            load: Share::of_millionths(load * 10_000).unwrap(),
        };
        let rings = rings.iter().map(ring).collect();
        Traffic { planner: Some(TrafficPlanner::Rings), rings, ..Traffic::default() }
    }

    #[test]
    fn planner_load_thresholds_must_ascend_with_their_rings() {
        let within = |ms| Ring::Within(Duration::from_millis(ms));
        let right = planned(&[(Ring::Region, 65), (within(35), 75), (within(80), 75), (Ring::Any, 90)]);
        assert_eq!(right.validate(), Ok(()));
        assert_eq!(right.load_rings(), right.rings);
        assert_eq!(planned(&[]).load_rings().len(), 4);
        for (rings, problem) in [
            (vec![(Ring::Region, 75), (Ring::Any, 70)], "lower load"),
            (vec![(Ring::Any, 75), (within(35), 80)], "follows 'any'"),
            (vec![(within(35), 75), (Ring::Region, 80)], "not the first"),
            (vec![(within(35), 75), (within(20), 80)], "not greater"),
            (vec![(Ring::Region, 5)], "below 10%"),
        ] {
            let refusal = planned(&rings).validate().unwrap_err().to_string();
            assert!(refusal.contains(problem), "{refusal}");
        }
    }

    #[test]
    fn traffic_planner_settings_require_planner() {
        let metric = |name: &str, full_scale| Some(LoadMetric { name: name.to_owned(), full_scale });
        let with = |load| Traffic { load, ..planned(&[]) };
        assert_eq!(with(metric("queue", 100)).validate(), Ok(()));
        assert!(with(metric("queue", 0)).validate().is_err());
        assert!(with(metric("a queue", 1)).validate().is_err());
        assert!(Traffic { planner: None, ..with(metric("queue", 100)) }.validate().is_err());
        let class = Label::new("bulk").unwrap();
        let twice = Traffic { classes: vec![class.clone(), class], ..planned(&[]) };
        assert!(twice.validate().is_err());
    }
}
