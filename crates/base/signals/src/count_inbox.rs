use std::collections::HashMap;

use fairmesh_model::CountReport;

/// How long the number of a reporter's last report is remembered, in milliseconds. Reporters repeat a report for a
/// shorter time.
const REMEMBERED_MS: u64 = 600_000;

/// The number of each reporter's last report of counts. Detects repeated reports.
#[derive(Debug)]
pub struct CountInbox {
    most: usize,
    last: HashMap<u64, (u64, u64)>,
}

impl CountInbox {
    /// Creates an inbox that remembers at most `most` reporters.
    pub fn new(most: usize) -> Self {
        Self { most, last: HashMap::new() }
    }

    /// Whether `report` has not arrived before. `now_ms` comes from a monotonic clock.
    ///
    /// With too many reporters, the one that was silent longest is forgotten. If it repeats its report, the report
    /// counts twice. This error is smaller than ignoring the counts of other reporters.
    pub fn is_new(&mut self, report: &CountReport, now_ms: u64) -> bool {
        if let Some((number, at_ms)) = self.last.get_mut(&report.reporter) {
            let is_new = report.number > *number;
            *number = report.number.max(*number);
            *at_ms = now_ms;
            return is_new;
        }
        if self.last.len() >= self.most {
            self.last.retain(|_, (_, at_ms)| now_ms.saturating_sub(*at_ms) < REMEMBERED_MS);
        }
        if self.last.len() >= self.most {
            let oldest = self.last.iter().min_by_key(|(_, (_, at_ms))| *at_ms).map(|(reporter, _)| *reporter);
            oldest.and_then(|reporter| self.last.remove(&reporter));
        }
        self.last.insert(report.reporter, (report.number, now_ms));
        true
    }

    /// The number of remembered reporters.
    pub fn reporters(&self) -> usize {
        self.last.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_inbox_detects_repeated_reports_and_bounds_reporters() {
        let mut inbox = CountInbox::new(2);
        let mut is_new = |reporter, number, now_ms| {
            inbox.is_new(&CountReport { reporter, number, ..CountReport::default() }, now_ms)
        };
        assert!(is_new(1, 5, 0) && !is_new(1, 5, 1) && is_new(1, 6, 2));
        assert!(is_new(2, 1, 3) && is_new(3, 1, 4), "the first is forgotten");
        assert!(!is_new(2, 1, 5) && is_new(1, 6, 6));
        assert_eq!(inbox.reporters(), 2);
    }
}
