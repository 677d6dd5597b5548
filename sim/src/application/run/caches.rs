//! Caches of services: hits depend on which regions' calls are served together.

use std::collections::BTreeMap;

use fairmesh_model::arith::{Generator, mix_pair};

use crate::{
    application::{Cache, Scenario},
    sampling::exponential,
};

/// Salt of a call's random draws: the record that it reads, and the time to fetch it.
const RECORD_SALT: u64 = 7;

/// The caches of an application, and the records that calls read.
#[derive(Debug)]
pub(super) struct Caches {
    regions: usize,
    /// Caches, by service.
    kinds: Vec<Option<Cache>>,
    /// First record and number of records that calls read, by operation × regions + region of the caller. If the
    /// number is 0, the calls read no record.
    reads: Vec<(u32, u32)>,
    /// Cached records, by service × regions + region.
    contents: Vec<LastUsed>,
}

/// Records in the order of their last use (LRU).
#[derive(Clone, Debug, Default)]
struct LastUsed {
    uses: u64,
    used_at: BTreeMap<u32, u64>,
    by_use: BTreeMap<u64, u32>,
}

impl Caches {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let regions = scenario.regions();
        let reads = scenario.operations.iter().flat_map(|operation| {
            regions.iter().map(|region| match operation.records.get(*region) {
                Some([first, end]) => (*first, end - first),
                None => (0, 0),
            })
        });
        Self {
            regions: regions.len(),
            kinds: scenario.services.iter().map(|service| service.cache).collect(),
            reads: reads.collect(),
            contents: vec![LastUsed::default(); scenario.services.len() * regions.len()],
        }
    }

    /// Returns the time until the record of a call is available, in nanoseconds. `pool` is the service and region
    /// that serves the call.
    pub(super) fn wait(&mut self, (operation, source): (u16, u16), pool: (u16, u16), seed: u64) -> u64 {
        let Some(cache) = self.kinds[usize::from(pool.0)] else { return 0 };
        let (first, count) = self.reads[usize::from(operation) * self.regions + usize::from(source)];
        if count == 0 {
            return 0;
        }
        let mut random = Generator::new(mix_pair(seed, RECORD_SALT));
        let record = first + random.below(u64::from(count)) as u32;
        let contents = &mut self.contents[usize::from(pool.0) * self.regions + usize::from(pool.1)];
        match contents.has(record, cache.records as usize) {
            true => 0,
            false => (exponential(&mut random) * cache.miss.nanos() as f64) as u64,
        }
    }
}

impl LastUsed {
    /// Whether a record is cached. If it is not, adds it and evicts the least recently used one.
    fn has(&mut self, record: u32, room: usize) -> bool {
        self.uses += 1;
        let before = self.used_at.insert(record, self.uses);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, record);
        if self.by_use.len() > room
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used_at.remove(&oldest);
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_cache_evicts_least_recently_used_record() {
        let mut cache = LastUsed::default();
        let reads = [(1, false), (2, false), (1, true), (3, false), (1, true), (2, false)];
        for (record, is_there) in reads {
            assert_eq!(cache.has(record, 2), is_there, "{record}");
        }
    }
}
