//! What servers say of the work of their shards, averaged over the last minute or so. Pure: callers pass `now`.
//!
//! It is kept in memory only: who restarts has it again within seconds, and history is nothing to plan by. At most
//! [`MAX_REPORTED_SHARDS`] shards a server are told apart and [`MAX_SERVERS`] servers are known, so that a map of millions of
//! shards costs no more than one of thousands.

use std::collections::{BTreeMap, HashMap};

use fairmesh_model::{InstanceId, Invalid, MAX_REPORTED_SHARDS, Role, ServiceName, ShardId};

use super::pool::Work;
use crate::{Claim, InstanceRef};

/// The most servers of which something is kept: some 100 MB at the very worst, with [`MAX_REPORTED_SHARDS`] shards each.
pub(super) const MAX_SERVERS: usize = 20_000;
/// A server that says nothing for so long has no known load: reports come every 10 s.
pub(super) const SILENT_MS: u64 = 45_000;
/// After so long it is forgotten.
const FORGOTTEN_MS: u64 = 600_000;
/// How fast older reports fade: after a minute of new ones they weigh about a third.
const FADING_MS: u64 = 60_000;
/// The longest time that a report may be about.
const MAX_PERIOD_MS: u32 = 60_000;
/// The most calls under way at once that are believed of one server.
const MAX_UNDER_WAY: u64 = 1_000_000;
/// The most calls a second that are believed of one server.
const MAX_CALLS: u64 = 10_000_000;

/// What a server says of the calls of one period that carried keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Counts the reports of one process, from 1.
    pub sequence: u64,
    /// How long the period was, in milliseconds; 1 to 60,000.
    pub period_ms: u32,
    /// The shards with most work, at most [`MAX_REPORTED_SHARDS`].
    pub shards: Vec<ShardWork>,
    /// How long calls for other shards were under way, summed over calls, in microseconds.
    pub rest_us: u64,
    /// All calls of the period.
    pub calls: u64,
}

/// The calls for the keys of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWork {
    /// The shard.
    pub shard: ShardId,
    /// In which role they were answered.
    pub role: Role,
    /// How long they were under way, summed over calls, in microseconds.
    pub busy_us: u64,
}

impl LoadReport {
    /// Checks that it can be true.
    pub fn validate(&self) -> Result<(), Invalid> {
        let absurd =
            |field: &str, problem: String| Err(Invalid::new(field, problem, "send what was measured"));
        let Self { sequence, period_ms, shards, rest_us, calls } = self;
        if *sequence == 0 {
            return absurd("sequence", "0 is none".into());
        }
        if !(1..=MAX_PERIOD_MS).contains(period_ms) {
            return absurd("period_ms", format!("{period_ms} is not within 1 to {MAX_PERIOD_MS}"));
        }
        if shards.len() > MAX_REPORTED_SHARDS {
            return absurd("shards", format!("there are {}, more than {MAX_REPORTED_SHARDS}", shards.len()));
        }
        let busy = shards.iter().fold(*rest_us, |sum, shard| sum.saturating_add(shard.busy_us));
        let period_us = u64::from(*period_ms) * 1000;
        if busy > period_us * MAX_UNDER_WAY || *calls > period_us * MAX_CALLS / 1_000_000 {
            return absurd("shards", format!("{calls} calls took {busy} µs within {period_us} µs"));
        }
        Ok(())
    }
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It counts.
    Counted,
    /// A newer one of the same process, or of one after it, came first.
    Late,
    /// No such server is registered, or by another process.
    Unknown,
    /// It cannot be true.
    Absurd,
    /// Too many servers are known already.
    Full,
}

impl Taken {
    /// Every one, in the order of `Counts`.
    pub const ALL: [Self; 5] = [Self::Counted, Self::Late, Self::Unknown, Self::Absurd, Self::Full];

    /// As metrics call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Late => "late",
            Self::Unknown => "unknown",
            Self::Absurd => "absurd",
            Self::Full => "full",
        }
    }
}

/// One server's work, a second, as its own host does it.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    incarnation: u64,
    sequence: u64,
    heard_ms: u64,
    pub(super) shards: HashMap<(ShardId, Role), Work>,
    pub(super) rest: Work,
    /// Calls in a thousand seconds.
    pub(super) calls: u64,
}

impl Window {
    /// How long ago it spoke.
    pub(super) fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms)
    }

    /// Averages a report in. The first one counts for all that there is, as does one after a silence.
    fn add(&mut self, report: &LoadReport, now_ms: u64) {
        let period = u64::from(report.period_ms);
        let fresh = self.sequence == 0 || self.age_ms(now_ms) > SILENT_MS;
        let fading = if fresh { 0 } else { FADING_MS };
        // The average of `fading` of the old and `period` of the new.
        let average = |old: u64, new_sum: u64, scale: u64| {
            let new = u128::from(new_sum) * u128::from(scale);
            let all = (u128::from(old) * u128::from(fading) + new) / u128::from(fading + period);
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        self.shards.values_mut().for_each(|work| *work = average(*work, 0, 0));
        for told in &report.shards {
            let work = self.shards.entry((told.shard, told.role.clone())).or_default();
            *work = work.saturating_add(average(0, told.busy_us, 1000));
        }
        self.rest = average(self.rest, report.rest_us, 1000);
        self.calls = average(self.calls, report.calls, 1_000_000);
        (self.sequence, self.heard_ms) = (report.sequence, now_ms);
        self.keep_the_most();
    }

    /// Keeps the shards with most work, and the others as one.
    fn keep_the_most(&mut self) {
        self.shards.retain(|_, work| *work > 0);
        if self.shards.len() <= MAX_REPORTED_SHARDS {
            return;
        }
        let mut all: Vec<_> = std::mem::take(&mut self.shards).into_iter().collect();
        all.sort_unstable_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        let rest: Work = all.drain(MAX_REPORTED_SHARDS..).map(|(_, work)| work).sum();
        self.rest = self.rest.saturating_add(rest);
        self.shards = all.into_iter().collect();
    }
}

/// What is known of all services.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    services: BTreeMap<ServiceName, BTreeMap<InstanceId, Window>>,
    servers: usize,
    counts: [u64; 5],
}

impl Windows {
    /// Takes in a report of a server that is registered so.
    pub(super) fn take(&mut self, who: &Claim, report: &LoadReport, now_ms: u64) -> Taken {
        if report.validate().is_err() {
            return Taken::Absurd;
        }
        let InstanceRef { service, instance } = &who.instance;
        let known = self.services.get(service).is_some_and(|servers| servers.contains_key(instance));
        if !known && self.servers >= MAX_SERVERS {
            self.forget_the_silent(now_ms);
            if self.servers >= MAX_SERVERS {
                return Taken::Full;
            }
        }
        self.servers += usize::from(!known);
        let window = self.services.entry(service.clone()).or_default().entry(instance.clone()).or_default();
        if window.incarnation == who.incarnation && report.sequence <= window.sequence {
            return Taken::Late;
        }
        if window.incarnation != who.incarnation {
            *window = Window { incarnation: who.incarnation, ..Window::default() };
        }
        window.add(report, now_ms);
        Taken::Counted
    }

    /// Counts what became of a report.
    pub(super) fn count(&mut self, taken: Taken) {
        self.counts[taken as usize] += 1;
    }

    /// How many reports became what.
    pub(super) fn counts(&self) -> [(Taken, u64); 5] {
        std::array::from_fn(|at| (Taken::ALL[at], self.counts[at]))
    }

    /// How many servers have a load that is known, and how many have fallen silent.
    pub(super) fn servers(&self, now_ms: u64) -> (usize, usize) {
        let all = self.services.values().flat_map(BTreeMap::values);
        let silent = all.filter(|window| window.age_ms(now_ms) > SILENT_MS).count();
        (self.servers - silent, silent)
    }

    /// The servers of a service that spoke of late.
    pub(super) fn of(&self, service: &ServiceName) -> BTreeMap<InstanceId, Window> {
        self.services.get(service).cloned().unwrap_or_default()
    }

    /// Forgets a server that is gone.
    pub(crate) fn forget(&mut self, who: &InstanceRef) {
        let Some(servers) = self.services.get_mut(&who.service) else { return };
        self.servers -= usize::from(servers.remove(&who.instance).is_some());
        if servers.is_empty() {
            self.services.remove(&who.service);
        }
    }

    fn forget_the_silent(&mut self, now_ms: u64) {
        for servers in self.services.values_mut() {
            servers.retain(|_, window| window.age_ms(now_ms) <= FORGOTTEN_MS);
        }
        self.services.retain(|_, servers| !servers.is_empty());
        self.servers = self.services.values().map(BTreeMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(instance: &str, incarnation: u64) -> Claim {
        Claim { instance: crate::testing::who(instance), incarnation }
    }

    /// Ten seconds in which calls for shard 7 were under way for so long.
    fn report(sequence: u64, busy_us: u64) -> LoadReport {
        let work = ShardWork { shard: ShardId(7), role: "primary".parse().unwrap(), busy_us };
        LoadReport { sequence, period_ms: 10_000, shards: vec![work], rest_us: 1_000_000, calls: 500 }
    }

    fn work(windows: &Windows, shard: u32) -> Option<Work> {
        let window = &windows.of(&crate::testing::cart())["a"];
        window.shards.get(&(ShardId(shard), "primary".parse().unwrap())).copied()
    }

    #[test]
    fn the_first_report_counts_whole_and_later_ones_fade_in() {
        let mut windows = Windows::default();
        let mut take = |sequence, busy_us, now_ms| {
            let taken = windows.take(&claim("a", 1), &report(sequence, busy_us), now_ms);
            assert_eq!(taken, Taken::Counted);
            work(&windows, 7)
        };
        assert_eq!(take(1, 7_000_000, 0), Some(700_000));
        // 60 s of the old and 10 s of the new.
        assert_eq!(take(2, 0, 10_000), Some(600_000));
        assert_eq!(take(3, 14_000_000, 20_000), Some(714_285));
        // After a silence nothing of it is left.
        assert_eq!(take(4, 1_000_000, 20_000 + SILENT_MS + 1), Some(100_000));
    }

    #[test]
    fn late_and_absurd_reports_change_nothing() {
        let mut windows = Windows::default();
        let mut take = |incarnation, report: &LoadReport| windows.take(&claim("a", incarnation), report, 0);
        assert_eq!(take(1, &report(2, 7_000_000)), Taken::Counted);
        assert_eq!(take(1, &report(2, 0)), Taken::Late);
        assert_eq!(take(1, &report(1, 0)), Taken::Late);
        let too_long = LoadReport { period_ms: 3_600_000, ..report(3, 0) };
        let too_much = report(3, u64::MAX);
        let too_many = LoadReport {
            shards: vec![report(3, 1).shards[0].clone(); MAX_REPORTED_SHARDS + 1],
            ..report(3, 0)
        };
        for absurd in [&too_long, &too_much, &too_many, &report(0, 0)] {
            assert_eq!(take(1, absurd), Taken::Absurd, "{absurd:?}");
        }
        assert_eq!(work(&windows, 7), Some(700_000));
        // Another process under the same name begins anew.
        assert_eq!(windows.take(&claim("a", 2), &report(1, 0), 0), Taken::Counted);
        assert_eq!(work(&windows, 7), None);
    }

    #[test]
    fn a_server_has_few_shards_of_its_own_and_what_is_beyond_is_one() {
        let mut windows = Windows::default();
        let shards = |from: u32| {
            let one = |shard| ShardWork {
                shard: ShardId(shard),
                role: "primary".parse().unwrap(),
                busy_us: 1_000_000 + u64::from(shard),
            };
            (from..from + u32::try_from(MAX_REPORTED_SHARDS).unwrap()).map(one).collect()
        };
        let first = LoadReport { shards: shards(0), ..report(1, 0) };
        let next = LoadReport { shards: shards(1000), ..report(2, 0) };
        windows.take(&claim("a", 1), &first, 0);
        windows.take(&claim("a", 1), &next, 10_000);
        let window = &windows.of(&crate::testing::cart())["a"];
        assert_eq!(window.shards.len(), MAX_REPORTED_SHARDS);
        assert_eq!(work(&windows, 3), Some(85_714), "a minute ago they had more than the new ones have yet");
        // The rest of both reports, and the new shards that found no place: 10 s of them in 70 s.
        assert!(window.rest > 100_000 + 128 * 14_000, "{}", window.rest);
    }

    #[test]
    fn no_more_servers_are_known_than_are_allowed() {
        let mut windows = Windows::default();
        for server in 0..MAX_SERVERS {
            assert_eq!(windows.take(&claim(&format!("s{server}"), 1), &report(1, 0), 0), Taken::Counted);
        }
        assert_eq!(windows.take(&claim("more", 1), &report(1, 0), 0), Taken::Full);
        assert_eq!(windows.take(&claim("s5", 1), &report(2, 0), FORGOTTEN_MS + 1), Taken::Counted);
        assert_eq!(windows.take(&claim("more", 1), &report(1, 0), FORGOTTEN_MS + 1), Taken::Counted);
        assert_eq!(windows.servers(FORGOTTEN_MS + 1), (2, 0));
        windows.forget(&crate::testing::who("more"));
        assert_eq!(windows.servers(FORGOTTEN_MS + 1), (1, 0));
    }
}
