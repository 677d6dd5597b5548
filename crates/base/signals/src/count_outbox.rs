use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use fairmesh_model::{CountReport, CountedInterval, MAX_COUNT_INTERVALS, MAX_COUNT_ROWS, ServiceName};

use crate::{beyond_shares, own_service};

/// Length of a time slot, in milliseconds. Intervals whose midpoints are in the same slot are added up.
const SLOT_MS: u64 = 5_000;
/// Maximum number of slots that wait for the upstream. Beyond it the oldest slot is lost, which leaves a gap in the
/// view of the mesh.
const MAX_SLOTS: usize = 48;
/// Maximum number of waiting rows.
const MAX_ROWS: usize = 64 * 1_024;
/// Number of rows removed when `MAX_ROWS` is exceeded. Removing many at once makes removals rare.
const CUT_ROWS: usize = MAX_ROWS / 16;

/// Maximum number of rows in a report. A row has at most 1.2 KB, so a report stays below the message limit of 4 MiB.
/// Receivers accept twice as many rows.
const MAX_SENT_ROWS: usize = MAX_COUNT_ROWS / 2;

/// Counts that wait to be sent upstream. They are added up until they are sent, and sent again until they are
/// acknowledged.
///
/// Intervals that are minutes apart are not added up, so late counts still appear at the time when they were counted.
/// Without room for all rows, services that report more than their [share](beyond_shares) lose their oldest rows.
#[derive(Debug)]
pub struct CountOutbox {
    reporter: u64,
    /// Number of the report in flight, otherwise of the last report.
    number: u64,
    waiting: BTreeMap<u64, Waiting>,
    rows: usize,
    /// Intervals that were sent and not yet acknowledged. Their age keeps growing.
    in_flight: Option<VecDeque<Waiting>>,
    left_out: u64,
    /// The part of `left_out` that is in flight.
    left_out_in_flight: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    from_ms: u64,
    to_ms: u64,
    /// The counts; `age` and `span` in them are not used.
    counted: CountedInterval,
}

impl CountOutbox {
    /// Creates an outbox for the process with the random number `reporter`.
    pub fn new(reporter: u64) -> Self {
        Self {
            reporter,
            number: 0,
            waiting: BTreeMap::new(),
            rows: 0,
            in_flight: None,
            left_out: 0,
            left_out_in_flight: 0,
        }
    }

    /// Adds the counts of an interval that ended `interval.age` before `now_ms`. `now_ms` comes from a monotonic
    /// clock.
    pub fn add(&mut self, interval: CountedInterval, now_ms: u64) {
        let to_ms = now_ms.saturating_sub(millis(interval.age));
        let from_ms = to_ms.saturating_sub(millis(interval.span));
        let slot = from_ms.midpoint(to_ms) / SLOT_MS;
        let new = Waiting { from_ms, to_ms, counted: interval };
        match self.waiting.get_mut(&slot) {
            Some(waiting) => {
                self.rows -= waiting.counted.rows();
                waiting.from_ms = waiting.from_ms.min(new.from_ms);
                waiting.to_ms = waiting.to_ms.max(new.to_ms);
                waiting.counted.add(new.counted);
                self.rows += waiting.counted.rows();
            }
            None => {
                self.rows += new.counted.rows();
                self.waiting.insert(slot, new);
            }
        }
        if self.waiting.len() > MAX_SLOTS
            && let Some((_, lost)) = self.waiting.pop_first()
        {
            self.rows -= lost.counted.rows();
            self.leave_out(lost.counted.rows() as u64);
        }
        if self.rows > MAX_ROWS {
            self.cut_to_shares();
        }
    }

    /// Counts rows that were dropped for lack of room, here or in the reports that were added up.
    pub fn leave_out(&mut self, rows: u64) {
        self.left_out = self.left_out.saturating_add(rows);
    }

    /// Returns the next report to send. Returns the same report again, with a greater age, until it is
    /// [acknowledged](Self::acknowledge). `None` if nothing waits.
    pub fn next(&mut self, now_ms: u64) -> Option<CountReport> {
        if self.in_flight.is_none() {
            if self.waiting.is_empty() && self.left_out == 0 {
                return None;
            }
            self.in_flight = Some(self.take());
            self.left_out_in_flight = std::mem::take(&mut self.left_out);
            self.number += 1;
        }
        let interval = |sent: &Waiting| CountedInterval {
            age: Duration::from_millis(now_ms.saturating_sub(sent.to_ms)),
            span: Duration::from_millis(sent.to_ms - sent.from_ms),
            ..sent.counted.clone()
        };
        Some(CountReport {
            reporter: self.reporter,
            number: self.number,
            intervals: self.in_flight.iter().flatten().map(interval).collect(),
            left_out: self.left_out_in_flight,
        })
    }

    /// Removes the report in flight, which has arrived.
    pub fn acknowledge(&mut self) {
        self.in_flight = None;
        self.left_out_in_flight = 0;
    }

    /// Drops the report in flight, because the upstream refused it and would refuse it again.
    pub fn discard(&mut self) {
        let rows: usize = self.in_flight.take().into_iter().flatten().map(|sent| sent.counted.rows()).sum();
        let left_out = std::mem::take(&mut self.left_out_in_flight);
        self.leave_out(left_out.saturating_add(rows as u64));
    }

    /// Removes and returns as many waiting rows as one report has room for, oldest first.
    fn take(&mut self) -> VecDeque<Waiting> {
        let (mut taken, mut room) = (VecDeque::new(), MAX_SENT_ROWS);
        while taken.len() < MAX_COUNT_INTERVALS && room > 0 {
            let Some(mut oldest) = self.waiting.first_entry() else { break };
            let rest = split_off(&mut oldest.get_mut().counted, room);
            let sent = match rest {
                None => oldest.remove(),
                Some(rest) => {
                    let (from_ms, to_ms) = (oldest.get().from_ms, oldest.get().to_ms);
                    let rest = Waiting { from_ms, to_ms, counted: rest };
                    std::mem::replace(oldest.get_mut(), rest)
                }
            };
            room -= sent.counted.rows();
            self.rows -= sent.counted.rows();
            taken.push_back(sent);
        }
        taken
    }

    /// Removes rows of services that exceed their share, oldest first.
    fn cut_to_shares(&mut self) {
        let mut sizes = BTreeMap::<_, usize>::new();
        for own in owners(self.waiting.values().map(|waiting| &waiting.counted)) {
            *sizes.entry(own).or_default() += 1;
        }
        let shares = beyond_shares(sizes.iter().map(|(own, size)| (*own, *size)), MAX_ROWS - CUT_ROWS);
        let excess = shares.into_iter().map(|(own, share)| (own.cloned(), sizes[&own] - share));
        let mut excess: BTreeMap<Option<ServiceName>, usize> = excess.collect();
        let before = self.rows;
        let mut is_cut = |own: Option<&ServiceName>| {
            let left = excess.get_mut(&own.cloned());
            left.is_some_and(|left| std::mem::replace(left, left.saturating_sub(1)) > 0)
        };
        for waiting in self.waiting.values_mut() {
            waiting.counted.calls.retain(|path, _| !is_cut(own_service(path)));
            waiting.counted.denied.retain(|path, _| !is_cut(Some(&path.service)));
            waiting.counted.cpu.retain(|path, _| !is_cut(Some(&path.service)));
        }
        self.waiting.retain(|_, waiting| waiting.counted.rows() > 0);
        self.rows = self.waiting.values().map(|waiting| waiting.counted.rows()).sum();
        self.leave_out((before - self.rows) as u64);
    }
}

/// The reporting service of each row in `intervals`.
fn owners<'a>(
    intervals: impl Iterator<Item = &'a CountedInterval>,
) -> impl Iterator<Item = Option<&'a ServiceName>> {
    intervals.flat_map(|interval| {
        let denied = interval.denied.keys().map(|path| Some(&path.service));
        let cpu = interval.cpu.keys().map(|path| Some(&path.service));
        interval.calls.keys().map(own_service).chain(denied).chain(cpu)
    })
}

/// Splits off all rows after the first `room` rows; `None` if there are none.
fn split_off(interval: &mut CountedInterval, room: usize) -> Option<CountedInterval> {
    let mut rest = CountedInterval::default();
    if let Some(path) = interval.calls.keys().nth(room).cloned() {
        rest.calls = interval.calls.split_off(&path);
    }
    let room = room - interval.calls.len();
    if let Some(path) = interval.denied.keys().nth(room).cloned() {
        rest.denied = interval.denied.split_off(&path);
    }
    let room = room - interval.denied.len();
    if let Some(path) = interval.cpu.keys().nth(room).cloned() {
        rest.cpu = interval.cpu.split_off(&path);
    }
    (rest.rows() > 0).then_some(rest)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{CallCounts, CountedBy, CountedPath, ServiceName};
    use proptest::prelude::*;

    use super::*;
    use crate::{CountInbox, ReportSource, SumLimits};

    const LIMITS: SumLimits = SumLimits { reporters: 4, rows: 0, served: 0, limited_percent: 50 };

    fn interval(
        services: impl Iterator<Item = usize>,
        calls: u64,
        (age, span): (u64, u64),
    ) -> CountedInterval {
        let row = |service| {
            let path = CountedPath {
                service: ServiceName::new(format!("shop/s{service}")).unwrap(),
                caller: None,
                by: CountedBy::Caller,
                class: None,
                from: None,
                to: None,
                from_zone: None,
                to_zone: None,
            };
            (path, CallCounts::ZERO.with_totals([calls, 0, 0, 0, 0]))
        };
        let (age, span) = (Duration::from_millis(age), Duration::from_millis(span));
        CountedInterval { age, span, calls: services.map(row).collect(), ..CountedInterval::default() }
    }

    fn calls(report: &CountReport) -> u64 {
        let rows = report.intervals.iter().flat_map(|interval| interval.calls.values());
        rows.map(CallCounts::calls).sum()
    }

    #[test]
    fn count_report_is_repeated_until_acknowledged_and_its_age_grows() {
        let mut outbox = CountOutbox::new(7);
        assert_eq!(outbox.next(0), None);
        outbox.add(interval(0..1, 5, (0, 5_000)), 10_000);
        let first = outbox.next(10_000).unwrap();
        outbox.add(interval(0..1, 1, (0, 5_000)), 15_000);
        let again = outbox.next(15_000).unwrap();
        assert_eq!((first.number, again.number, calls(&again)), (1, 1, 5));
        assert_eq!(again.intervals[0].age, Duration::from_secs(5));
        outbox.acknowledge();
        let second = outbox.next(15_000).unwrap();
        assert_eq!((second.number, calls(&second)), (2, 1));
        outbox.discard();
        let lost = outbox.next(15_000).unwrap();
        assert_eq!((lost.intervals.len(), lost.left_out), (0, 1));
    }

    #[test]
    fn counted_intervals_minutes_apart_are_not_merged() {
        let mut outbox = CountOutbox::new(7);
        outbox.add(interval(0..1, 5, (0, 5_000)), 200_000);
        outbox.add(interval(0..1, 3, (120_000, 5_000)), 200_000);
        outbox.add(interval(0..1, 2, (500, 5_000)), 200_500);
        let report = outbox.next(200_500).unwrap();
        let ages: Vec<_> = report.intervals.iter().map(|one| one.age.as_millis()).collect();
        assert_eq!(ages, [120_500, 500]);
        assert_eq!(report.intervals[1].span, Duration::from_secs(5));
    }

    #[test]
    fn long_count_reports_are_split_and_their_queue_is_bounded() {
        let mut outbox = CountOutbox::new(7);
        outbox.add(interval(0..MAX_COUNT_ROWS + 10, 1, (0, 5_000)), 10_000);
        let mut sent = 0;
        for rows in [MAX_SENT_ROWS, MAX_SENT_ROWS, 10] {
            let report = outbox.next(10_000).unwrap();
            assert_eq!(report.rows(), rows);
            sent += calls(&report);
            outbox.acknowledge();
        }
        assert_eq!((sent, outbox.next(10_000), outbox.rows), (MAX_COUNT_ROWS as u64 + 10, None, 0));
        for slot in 0..MAX_SLOTS as u64 + 2 {
            outbox.add(interval(0..1, 1, (0, 5_000)), (slot + 3) * SLOT_MS);
        }
        let report = outbox.next(1_000_000).unwrap();
        assert_eq!((report.intervals.len(), report.left_out), (MAX_SLOTS, 2));
    }

    #[test]
    fn service_with_too_many_count_rows_displaces_no_other_service() {
        let of = |own: &str, rows: usize| {
            let mut interval = interval(0..rows, 1, (0, 5_000));
            let own = Some(ServiceName::new(own).unwrap());
            interval.calls = std::mem::take(&mut interval.calls)
                .into_iter()
                .map(|(path, counts)| (CountedPath { caller: own.clone(), ..path }, counts))
                .collect();
            interval
        };
        let mut outbox = CountOutbox::new(7);
        outbox.add(of("shop/web", 50), 5_000);
        for slot in 1..=20 {
            outbox.add(of("ads/loud", MAX_COUNT_ROWS), slot * SLOT_MS + 5_000);
        }
        assert!(outbox.rows <= MAX_ROWS);
        let first = outbox.waiting.first_key_value().unwrap().1;
        assert_eq!(first.counted.rows(), 50, "the oldest, of the quiet service");
        assert_eq!(outbox.left_out, (20 * MAX_COUNT_ROWS + 50 - outbox.rows) as u64);
    }

    proptest! {
        /// Each call is counted once, whichever reports or acknowledgements are lost.
        #[test]
        fn outbox_delivers_each_call_once_despite_losses(
            steps in prop::collection::vec((0_u64..50, any::<bool>(), any::<bool>()), 1..60)
        ) {
            let (mut outbox, mut inbox) = (CountOutbox::new(7), CountInbox::new(LIMITS));
            let (mut made, mut arrived, mut now_ms) = (0, 0, 0);
            let lossless = (0..60).map(|_| (0, true, true));
            for (count, is_delivered, is_acknowledged) in steps.into_iter().chain(lossless) {
                now_ms += 1_000;
                outbox.add(interval(0..1, count, (0, 1_000)), now_ms);
                made += count;
                let Some(report) = outbox.next(now_ms) else { continue };
                if is_delivered && inbox.is_new(&ReportSource::of_mesh(), &report, now_ms) {
                    arrived += calls(&report);
                }
                if is_delivered && is_acknowledged {
                    outbox.acknowledge();
                }
            }
            prop_assert_eq!((made, outbox.left_out), (arrived, 0));
        }
    }
}
