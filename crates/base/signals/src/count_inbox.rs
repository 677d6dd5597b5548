use std::collections::HashMap;

use fairmesh_model::CountReport;

/// How long the number of a reporter's last report is remembered. Reporters repeat a report for less.
const REMEMBERED_MS: u64 = 600_000;

/// The numbers of the last reports of counts, by reporter: tells repetitions.
#[derive(Debug)]
pub struct CountInbox {
    most: usize,
    last: HashMap<u64, (u64, u64)>,
}

impl CountInbox {
    /// Remembers this many reporters.
    pub fn new(most: usize) -> Self {
        Self { most, last: HashMap::new() }
    }

    /// Whether a report is none that arrived before. `now_ms` is of a clock that only advances.
    ///
    /// With too many reporters, the one that was silent for the longest is forgotten: its repetitions would count twice, which is
    /// less wrong than no counts of others.
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

    /// The number of reporters.
    pub fn reporters(&self) -> usize {
        self.last.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_told_and_reporters_bounded() {
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
