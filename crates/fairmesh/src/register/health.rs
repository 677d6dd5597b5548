/// Failed looks in a row after which a program that answered does no longer: one lost packet is no outage.
const PATIENCE: u32 = 3;

/// Whether a program answers, judged by looking at it again and again.
#[derive(Debug, Default)]
pub(super) struct Health {
    answers: bool,
    failures: u32,
}

/// What a look changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It answers, for the first time or again.
    Answers,
    /// It does not answer any more.
    Lost,
}

impl Health {
    /// Takes in one look.
    pub(super) fn observe(&mut self, answered: bool) -> Option<Change> {
        if answered {
            self.failures = 0;
            return (!std::mem::replace(&mut self.answers, true)).then_some(Change::Answers);
        }
        self.failures += 1;
        let lost = self.answers && self.failures >= PATIENCE;
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
    fn three_failures_in_a_row_lose_a_program_and_one_answer_brings_it_back() {
        let mut health = Health::default();
        let looks = [false, true, true, false, false, true, false, false, false, false, true];
        let changes = looks.map(|answered| health.observe(answered));
        let mut expected = [None; 11];
        expected[1] = Some(Change::Answers);
        expected[8] = Some(Change::Lost);
        expected[10] = Some(Change::Answers);
        assert_eq!(changes, expected);
    }
}
