use std::{collections::HashMap, sync::Arc};

use fairmesh_model::CountReport;

use crate::{ReportOwner, ReportSource, SumLimits, report_shares::ReportShares};

/// Time for which the number of a reporter's last report is remembered, in milliseconds. Reporters repeat a report
/// for a shorter time.
const REMEMBERED_MS: u64 = 600_000;

/// The number of each reporter's last report of counts. Detects repeated reports.
#[derive(Debug)]
pub struct CountInbox {
    places: ReportShares,
    /// By sender and the number of its reporter. A sender chooses the number, so it counts for that sender only. The
    /// owner is not part of the key: a report repeated after a change of the sender's rights would count twice.
    last: HashMap<(Arc<str>, u64), LastReport>,
}

#[derive(Debug)]
struct LastReport {
    owner: ReportOwner,
    number: u64,
    at_ms: u64,
}

impl CountInbox {
    /// Creates an inbox that remembers as many reporters as `limits` permit.
    pub fn new(limits: SumLimits) -> Self {
        Self { places: limits.shares(limits.reporters), last: HashMap::new() }
    }

    /// Whether `report` has not arrived before. `now_ms` comes from a monotonic clock.
    ///
    /// With too many reporters, the owner with the most of them loses one: of its sender with the most, the one that was
    /// silent longest. If that one
    /// repeats its report, the report counts twice. This error is smaller than ignoring the counts of other reporters.
    pub fn is_new(&mut self, source: &ReportSource, report: &CountReport, now_ms: u64) -> bool {
        let (owner, key) = (&source.owner, (Arc::clone(&source.sender), report.reporter));
        if let Some(last) = self.last.get_mut(&key) {
            if last.owner != *owner {
                self.places.free((&last.owner, &source.sender), 1);
                self.places.take(source.holder(), 1);
                last.owner = owner.clone();
            }
            let is_new = report.number > last.number;
            last.number = report.number.max(last.number);
            last.at_ms = now_ms;
            return is_new;
        }
        if self.places.check(source.holder(), 0, 1).is_err() {
            let is_silent = |last: &LastReport| now_ms.saturating_sub(last.at_ms) >= REMEMBERED_MS;
            let silent = self.last.iter().filter(|(_, last)| is_silent(last));
            let silent: Vec<_> = silent.map(|(key, _)| key.clone()).collect();
            silent.iter().for_each(|key| self.forget(key));
        }
        while let Err(loser) = self.places.check(source.holder(), 0, 1) {
            let of_owner = self.last.iter().filter(|(_, last)| last.owner == loser.owner);
            // A sender without a place takes one of its owner, if each sender has no more than it would have.
            let order = |(key, last): &(&(Arc<str>, u64), &LastReport)| (key.0 != loser.sender, last.at_ms);
            match of_owner.min_by_key(order).map(|(key, _)| key.clone()) {
                Some(oldest) => self.forget(&oldest),
                None => return true,
            }
        }
        self.places.take(source.holder(), 1);
        self.last.insert(key, LastReport { owner: owner.clone(), number: report.number, at_ms: now_ms });
        true
    }

    fn forget(&mut self, key: &(Arc<str>, u64)) {
        if let Some(last) = self.last.remove(key) {
            self.places.free((&last.owner, &key.0), 1);
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
            inbox.is_new(&ReportSource::of_mesh(), &report(reporter, number), now_ms)
        };
        assert!(is_new(1, 5, 0) && !is_new(1, 5, 1) && is_new(1, 6, 2));
        assert!(is_new(2, 1, 3) && is_new(3, 1, 4), "the first is forgotten");
        assert!(!is_new(2, 1, 5) && is_new(1, 6, 6));
        assert_eq!(inbox.reporters(), 2);
    }

    #[test]
    fn limited_sender_with_many_numbers_makes_inbox_forget_no_other_reporter() {
        let mut inbox = CountInbox::new(SumLimits { reporters: 8, ..FEW });
        let (agent, red, blue) = (ReportSource::of_mesh(), limited("red"), limited("blue"));
        assert!(inbox.is_new(&agent, &report(1, 5), 0) && inbox.is_new(&blue, &report(1, 5), 0));
        for number in 0..100 {
            assert!(inbox.is_new(&red, &report(number, 9), 1 + number));
        }
        assert_eq!(inbox.reporters(), 8, "limited senders use the places that others need not");
        for number in 2..5 {
            assert!(inbox.is_new(&agent, &report(number, 9), 100 + number), "and give them back");
        }
        assert_eq!(inbox.reporters(), 8);
        let mut is_known = |source, number| !inbox.is_new(source, &report(number, 5), 200);
        assert!(is_known(&blue, 1) && (1..5).all(|number| is_known(&agent, number)));
    }

    #[test]
    fn report_repeated_after_change_of_rights_counts_once() {
        let mut inbox = CountInbox::new(SumLimits { reporters: 8, ..FEW });
        let before = limited("red");
        let after = ReportSource { sender: before.sender.clone(), ..limited("blue,red") };
        assert!(inbox.is_new(&before, &report(1, 5), 0));
        assert!(!inbox.is_new(&after, &report(1, 5), 1));
        assert_eq!(inbox.places.used(), 1, "its place is that of the other owner");
    }
}
