use std::collections::HashMap;

use fairmesh_model::CountReport;

use crate::{ReportOwner, SumLimits, report_shares::ReportShares};

/// Time for which the number of a reporter's last report is remembered, in milliseconds. Reporters repeat a report
/// for a shorter time.
const REMEMBERED_MS: u64 = 600_000;

/// The number of each reporter's last report of counts. Detects repeated reports.
#[derive(Debug)]
pub struct CountInbox {
    places: ReportShares,
    /// A reporter chooses its number, so it counts for its owner only.
    last: HashMap<(ReportOwner, u64), (u64, u64)>,
}

impl CountInbox {
    /// Creates an inbox that remembers as many reporters as `limits` permit.
    pub fn new(limits: SumLimits) -> Self {
        Self { places: limits.shares(limits.reporters), last: HashMap::new() }
    }

    /// Whether `report` has not arrived before. `now_ms` comes from a monotonic clock.
    ///
    /// With too many reporters, the owner with the most of them loses the one that was silent longest. If that one
    /// repeats its report, the report counts twice. This error is smaller than ignoring the counts of other reporters.
    pub fn is_new(&mut self, owner: &ReportOwner, report: &CountReport, now_ms: u64) -> bool {
        let key = (owner.clone(), report.reporter);
        if let Some((number, at_ms)) = self.last.get_mut(&key) {
            let is_new = report.number > *number;
            *number = report.number.max(*number);
            *at_ms = now_ms;
            return is_new;
        }
        if self.places.check(owner, 0, 1).is_err() {
            let is_silent = |at_ms: u64| now_ms.saturating_sub(at_ms) >= REMEMBERED_MS;
            let silent = self.last.iter().filter(|(_, (_, at_ms))| is_silent(*at_ms));
            let silent: Vec<_> = silent.map(|(key, _)| key.clone()).collect();
            silent.iter().for_each(|key| self.forget(key));
        }
        while let Err(loser) = self.places.check(owner, 0, 1) {
            let of_loser = self.last.iter().filter(|((other, _), _)| *other == loser);
            match of_loser.min_by_key(|(_, (_, at_ms))| *at_ms).map(|(key, _)| key.clone()) {
                Some(oldest) => self.forget(&oldest),
                None => return true,
            }
        }
        self.places.take(owner, 1);
        self.last.insert(key, (report.number, now_ms));
        true
    }

    fn forget(&mut self, key: &(ReportOwner, u64)) {
        if self.last.remove(key).is_some() {
            self.places.free(&key.0, 1);
        }
    }

    /// The number of remembered reporters.
    pub fn reporters(&self) -> usize {
        self.last.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report_shares::tests::limited;

    const FEW: SumLimits = SumLimits { reporters: 2, rows: 0, served: 0, limited_percent: 50 };

    fn report(reporter: u64, number: u64) -> CountReport {
        CountReport { reporter, number, ..CountReport::default() }
    }

    #[test]
    fn count_inbox_detects_repeated_reports_and_bounds_reporters() {
        let mut inbox = CountInbox::new(FEW);
        let mut is_new = |reporter, number, now_ms| {
            inbox.is_new(&ReportOwner::of_mesh(), &report(reporter, number), now_ms)
        };
        assert!(is_new(1, 5, 0) && !is_new(1, 5, 1) && is_new(1, 6, 2));
        assert!(is_new(2, 1, 3) && is_new(3, 1, 4), "the first is forgotten");
        assert!(!is_new(2, 1, 5) && is_new(1, 6, 6));
        assert_eq!(inbox.reporters(), 2);
    }

    #[test]
    fn limited_sender_with_many_numbers_makes_inbox_forget_no_other_reporter() {
        let mut inbox = CountInbox::new(SumLimits { reporters: 8, ..FEW });
        let (agent, red) = (ReportOwner::of_mesh(), limited("red"));
        let blue = limited("blue");
        assert!(inbox.is_new(&agent, &report(1, 5), 0) && inbox.is_new(&blue, &report(1, 5), 0));
        for number in 0..100 {
            assert!(inbox.is_new(&red, &report(number, 9), 1 + number));
        }
        assert_eq!(inbox.reporters(), 5, "limited senders have half of the places");
        assert!(!inbox.is_new(&agent, &report(1, 5), 200) && !inbox.is_new(&blue, &report(1, 5), 200));
    }
}
