use fairmesh_model::Zone;

/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// The endpoints of a service in one region.
///
/// Sums are integers: endpoints may come and go in any order, and the sums stay exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionEndpoints {
    /// Number of all endpoints, in whatever state.
    registered: u32,
    /// Serving endpoints by zone, in the order of names; `None` stands for endpoints without a zone. No map: most regions have one
    /// entry for each service, and there are many of both.
    zones: Vec<(Option<Zone>, ZoneEndpoints)>,
}

/// The serving endpoints of a service in one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ZoneEndpoints {
    serving: u32,
    /// In thousandths of an ordinary host.
    power: u64,
}

impl RegionEndpoints {
    /// Number of serving endpoints.
    pub fn serving(&self) -> u32 {
        self.zones.iter().fold(0, |sum, (_, zone)| sum.saturating_add(zone.serving))
    }

    /// Power of the serving endpoints: weight times speed, 1 for an ordinary host.
    pub fn power(&self) -> f64 {
        let sum = self.zones.iter().fold(0, |sum: u64, (_, zone)| sum.saturating_add(zone.power));
        sum as f64 / MILLI
    }

    /// The same by zone. A zone without a serving endpoint is not listed; `None` is those without one.
    pub fn zones(&self) -> impl Iterator<Item = (Option<&Zone>, f64)> {
        self.zones.iter().map(|(zone, endpoints)| (zone.as_ref(), endpoints.power as f64 / MILLI))
    }

    /// Whether there is no endpoint in any state.
    pub fn is_empty(&self) -> bool {
        self.registered == 0
    }

    /// Adds an endpoint: its zone, and its power in thousandths if it serves.
    pub fn add(&mut self, zone: Option<&Zone>, power: Option<u32>) {
        self.registered = self.registered.saturating_add(1);
        if let Some(power) = power {
            let at = self.position(zone).unwrap_or_else(|at| {
                self.zones.reserve_exact(1);
                self.zones.insert(at, (zone.cloned(), ZoneEndpoints::default()));
                at
            });
            let (_, sums) = &mut self.zones[at];
            sums.serving = sums.serving.saturating_add(1);
            sums.power = sums.power.saturating_add(power.into());
        }
    }

    /// Removes an endpoint that was added with the same zone and power.
    pub fn remove(&mut self, zone: Option<&Zone>, power: Option<u32>) {
        self.registered = self.registered.saturating_sub(1);
        if let (Some(power), Ok(at)) = (power, self.position(zone)) {
            let (_, sums) = &mut self.zones[at];
            sums.serving = sums.serving.saturating_sub(1);
            sums.power = sums.power.saturating_sub(power.into());
            if sums.serving == 0 {
                self.zones.remove(at);
            }
        }
    }

    /// Where a zone is, or would be.
    fn position(&self, zone: Option<&Zone>) -> Result<usize, usize> {
        self.zones.binary_search_by(|(known, _)| known.as_ref().cmp(&zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_sums_are_exact_after_removals_in_any_order() {
        let zone = |name: &str| Zone::new(name).unwrap();
        let (a, b) = (zone("a"), zone("b"));
        let mut region = RegionEndpoints::default();
        let mut rest = RegionEndpoints::default();
        rest.add(Some(&b), Some(3));
        rest.add(None, None);
        for (zone, power) in [(Some(&a), Some(1)), (Some(&b), Some(3)), (None, None), (Some(&a), Some(700))] {
            region.add(zone, power);
        }
        assert_eq!((region.serving(), region.power()), (3, 0.704));
        region.remove(Some(&a), Some(700));
        region.remove(Some(&a), Some(1));
        assert_eq!(region, rest);
        region.remove(Some(&b), Some(3));
        assert_eq!((region.serving(), region.power(), region.is_empty()), (0, 0.0, false));
        region.remove(None, None);
        assert!(region.is_empty());
    }
}
