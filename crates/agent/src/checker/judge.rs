use fairmesh_model::{Force, HealthCheck, Verdict};

/// What the probes of one endpoint amount to. Pure.
#[derive(Clone, Debug, Default)]
pub(super) struct Judge {
    samples: u32,
    last: bool,
    in_a_row: u32,
    /// What is to be told, as far as it was found: whether it is healthy, and with how much force.
    found: Option<(bool, Force)>,
}

/// Something new about an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) healthy: bool,
    /// How sure it is, in thousandths.
    pub(super) confidence: u32,
    /// Whether the endpoint was otherwise before, and not only less surely so.
    pub(super) turned: bool,
}

impl Judge {
    /// Takes one probe in; what is new after it, if anything.
    pub(super) fn sample(&mut self, good: bool, check: &HealthCheck) -> Option<Finding> {
        self.in_a_row = if good == self.last { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = good;
        self.samples = self.samples.saturating_add(1);
        let needed = if good { check.rise } else { check.fall };
        if self.samples < check.minimum_samples || self.in_a_row < needed {
            return None;
        }
        let confidence = Verdict::confidence_of(self.in_a_row);
        let verdict = Verdict { healthy: good, since_ms: 0, confidence, cause: String::new(), stale: false };
        let found = (good, verdict.force());
        let before = self.found.replace(found);
        let turned = before.is_none_or(|(healthy, _)| healthy != good);
        (before != Some(found)).then_some(Finding { healthy: good, confidence, turned })
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Probe;

    use super::*;

    fn findings(check: &HealthCheck, probes: &str) -> Vec<(usize, bool, u32)> {
        let mut judge = Judge::default();
        let probes = probes.bytes().enumerate();
        let found = probes.filter_map(|(i, probe)| Some((i + 1, judge.sample(probe == b'+', check)?)));
        found.map(|(i, finding)| (i, finding.healthy, finding.confidence)).collect()
    }

    fn check(rise: u32, fall: u32, minimum_samples: u32) -> HealthCheck {
        HealthCheck { rise, fall, minimum_samples, ..HealthCheck::new(Probe::Tcp) }
    }

    #[test]
    fn a_verdict_takes_so_many_in_a_row_and_so_many_in_all() {
        assert_eq!(findings(&check(2, 3, 3), "+++"), [(3, true, 750)]);
        assert_eq!(findings(&check(2, 3, 3), "---"), [(3, false, 750)]);
        assert_eq!(findings(&check(2, 3, 5), "-----"), [(5, false, 833)]);
        assert_eq!(findings(&check(1, 2, 1), "+--+"), [(1, true, 500), (3, false, 666), (4, true, 500)]);
    }

    #[test]
    fn what_flaps_is_not_judged_anew() {
        assert_eq!(findings(&check(2, 3, 3), "+++--+-+--+"), [(3, true, 750)]);
    }

    #[test]
    fn it_is_told_once_more_when_it_becomes_certain() {
        let found = findings(&check(2, 3, 3), "--------------------++");
        assert_eq!(found, [(3, false, 750), (9, false, 900), (22, true, 666)]);
    }
}
