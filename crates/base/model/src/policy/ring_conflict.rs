use super::{Policy, Ring};

impl Policy {
    /// A message that says how the planner's rings contradict the policy's locality; `None` if they agree.
    ///
    /// While a planner's table is in force, calls are divided by the planner's rings. Otherwise they are divided by
    /// the rings of the locality.
    pub fn ring_conflict(&self) -> Option<String> {
        let traffic = self.traffic.as_ref().filter(|traffic| traffic.is_planned())?;
        if self.locality.local_only {
            return Some(
                "localOnly keeps calls in their region, so that the planner has nothing to plan".to_owned(),
            );
        }
        let without_own = |rings: &mut dyn Iterator<Item = Ring>| -> Vec<Ring> {
            rings.filter(|ring| *ring != Ring::Region).collect()
        };
        let planned = without_own(&mut traffic.load_rings().into_iter().map(|ring| ring.ring));
        if planned.is_empty() {
            return Some(
                "the planner opens no ring but the region itself: calls above its load are dropped, even while other regions have room; \
                 add rings, such as {within: any, load: 90%}"
                    .to_owned(),
            );
        }
        let local = without_own(&mut self.locality.rings.iter().copied());
        if self.locality.has_default_rings() || planned == local {
            return None;
        }
        let words = |rings: &[Ring]| rings.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Some(format!(
            "the planner opens the rings [{}] and locality.rings are [{}]: calls go elsewhere once the planner is gone; write the same in both",
            words(&planned),
            words(&local)
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{LoadRing, Locality, Share, Traffic, TrafficPlanner};

    fn policy(planned: &[Ring], local: &[Ring]) -> Policy {
        let ring = |ring: &Ring| LoadRing { ring: *ring, load: Share::ALL };
        let rings = planned.iter().map(ring).collect();
        let traffic = Traffic { planner: Some(TrafficPlanner::Rings), rings, ..Traffic::default() };
        let locality = Locality { rings: local.into(), ..Locality::default() };
        Policy { traffic: Some(Box::new(traffic)), locality, ..Policy::default() }
    }

    #[test]
    fn conflict_of_planner_rings_with_locality_rings_is_reported() {
        let near = Ring::Within(Duration::from_millis(35));
        assert_eq!(policy(&[Ring::Region, near, Ring::Any], &[near, Ring::Any]).ring_conflict(), None);
        assert_eq!(policy(&[Ring::Region, Ring::Any], &Locality::default_rings()).ring_conflict(), None);
        let conflict = policy(&[Ring::Region, Ring::Any], &[Ring::Region, near]).ring_conflict().unwrap();
        assert!(conflict.contains("[any]") && conflict.contains("[35ms]"), "{conflict}");
        let alone = policy(&[Ring::Region], &Locality::default_rings()).ring_conflict().unwrap();
        assert!(alone.contains("are dropped"), "{alone}");
        let mut local_only = policy(&[], &[]);
        local_only.locality.local_only = true;
        assert!(local_only.ring_conflict().is_some());
        local_only.traffic = None;
        assert_eq!(local_only.ring_conflict(), None);
    }
}
