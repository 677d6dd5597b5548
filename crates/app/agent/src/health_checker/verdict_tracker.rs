use fairmesh_model::{HealthCheck, Verdict, VerdictEffect};

/// Derives verdicts from the probes of one endpoint. Pure.
#[derive(Clone, Debug, Default)]
pub(super) struct VerdictTracker {
    samples: u32,
    last: bool,
    consecutive: u32,
    /// The current verdict, if any: whether the endpoint is healthy, and how this affects picks.
    found: Option<(bool, VerdictEffect)>,
}

/// A change of an endpoint's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) healthy: bool,
    /// Confidence, in thousandths.
    pub(super) confidence: u32,
    /// Whether the health itself changed, not only the confidence.
    pub(super) turned: bool,
}

impl VerdictTracker {
    /// Adds the result of one probe. Returns the resulting change of the verdict, if any.
    pub(super) fn sample(&mut self, good: bool, check: &HealthCheck) -> Option<Finding> {
        self.consecutive = if good == self.last { self.consecutive.saturating_add(1) } else { 1 };
        self.last = good;
        self.samples = self.samples.saturating_add(1);
        let needed = if good { check.rise } else { check.fall };
        if self.samples < check.minimum_samples || self.consecutive < needed {
            return None;
        }
        let confidence = Verdict::confidence_of(self.consecutive);
        let verdict = Verdict { healthy: good, since_ms: 0, confidence, cause: String::new(), stale: false };
        let found = (good, verdict.effect());
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
        let mut judge = VerdictTracker::default();
        let probes = probes.bytes().enumerate();
        let found = probes.filter_map(|(i, probe)| Some((i + 1, judge.sample(probe == b'+', check)?)));
        found.map(|(i, finding)| (i, finding.healthy, finding.confidence)).collect()
    }

    fn check(rise: u32, fall: u32, minimum_samples: u32) -> HealthCheck {
        HealthCheck { rise, fall, minimum_samples, ..HealthCheck::new(Probe::Tcp) }
    }

    #[test]
    fn health_verdict_needs_consecutive_results_and_minimum_samples() {
        assert_eq!(findings(&check(2, 3, 3), "+++"), [(3, true, 750)]);
        assert_eq!(findings(&check(2, 3, 3), "---"), [(3, false, 750)]);
        assert_eq!(findings(&check(2, 3, 5), "-----"), [(5, false, 833)]);
        assert_eq!(findings(&check(1, 2, 1), "+--+"), [(1, true, 500), (3, false, 666), (4, true, 500)]);
    }

    #[test]
    fn flapping_probe_results_do_not_change_health_verdict() {
        assert_eq!(findings(&check(2, 3, 3), "+++--+-+--+"), [(3, true, 750)]);
    }

    #[test]
    fn health_verdict_is_reported_again_at_full_confidence() {
        let found = findings(&check(2, 3, 3), "--------------------++");
        assert_eq!(found, [(3, false, 750), (9, false, 900), (22, true, 666)]);
    }
}
