/// How long a peak is remembered at least, and half of how long at most.
const SPAN_MS: u64 = 20_000;

/// The greatest of the latest values of a number: of the last 20 s, and at most 40 s.
///
/// Two spans; the older one is forgotten as a whole: exact windows would need a list of values for each number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Peak {
    /// Of the present span, and of the one before it.
    present: f64,
    before: f64,
    began_ms: u64,
}

impl Peak {
    /// Takes a value.
    pub(crate) fn observe(&mut self, value: f64, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.began_ms);
        if elapsed >= SPAN_MS {
            self.before = if elapsed >= 2 * SPAN_MS { value } else { self.present };
            (self.present, self.began_ms) = (value, now_ms);
        }
        self.present = self.present.max(value);
    }

    /// The greatest value that is remembered.
    pub(crate) fn value(&self) -> f64 {
        self.present.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_peak_is_forgotten_after_one_to_two_spans() {
        let mut peak = Peak::default();
        let start = 1_000_000;
        peak.observe(5.0, start);
        assert_eq!(peak.value(), 5.0, "the first value is all that is known");
        peak.observe(9.0, start + 1_000);
        for at in (2_000..=SPAN_MS).step_by(1_000) {
            peak.observe(5.0, start + at);
            assert_eq!(peak.value(), 9.0, "{at} ms");
        }
        peak.observe(5.0, start + 2 * SPAN_MS);
        assert_eq!(peak.value(), 5.0);
        peak.observe(3.0, start + 10 * SPAN_MS);
        assert_eq!(peak.value(), 3.0, "what was before a pause says nothing");
    }
}
