/// Number of consecutive failed probes after which a program counts as lost, so that one lost packet is no outage.
const FAILURE_THRESHOLD: u32 = 3;

/// Health of a program, derived from consecutive probes.
#[derive(Debug, Default)]
pub(super) struct Health {
    answers: bool,
    failures: u32,
}

/// Effect of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The program responds, for the first time or again.
    Responds,
    /// The program has stopped responding.
    Lost,
}

impl Health {
    /// Whether the program responds.
    pub(super) fn responds(&self) -> bool {
        self.answers
    }

    /// Adds the result of a probe.
    pub(super) fn observe(&mut self, responded: bool) -> Option<Change> {
        if responded {
            self.failures = 0;
            return (!std::mem::replace(&mut self.answers, true)).then_some(Change::Responds);
        }
        self.failures += 1;
        let lost = self.answers && self.failures >= FAILURE_THRESHOLD;
        if lost {
            self.answers = false;
        }
        lost.then_some(Change::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_unhealthy_after_three_failed_probes_until_one_succeeds() {
        let mut health = Health::default();
        let looks = [false, true, true, false, false, true, false, false, false, false, true];
        let changes = looks.map(|responded| health.observe(responded));
        let mut expected = [None; 11];
        expected[1] = Some(Change::Responds);
        expected[8] = Some(Change::Lost);
        expected[10] = Some(Change::Responds);
        assert_eq!(changes, expected);
    }
}
