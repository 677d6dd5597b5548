use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{CallNode, Label, Region, ServedPath, ServedRates, ServiceName, UTILISATION_BUCKETS};

use crate::{NodeId, call_counters::rate};

/// Counts of the calls that a server processed since the counters were created, by class and utilisation.
///
/// When its classes change, the server creates new counters.
#[derive(Debug)]
pub struct ServedCounters {
    /// The node without a class, followed by the node of each class.
    nodes: Box<[(CallNode, Option<NodeId>)]>,
    /// Counters by node, then by utilisation bucket. The last bucket has unknown utilisation.
    counters: Box<[Counter]>,
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    exclusive_us: AtomicU64,
}

const BUCKETS: usize = UTILISATION_BUCKETS as usize + 1;

impl ServedCounters {
    /// Creates counters for a server of `service` whose policy has these classes.
    pub fn new(service: &ServiceName, classes: &[Label]) -> Self {
        let classes = std::iter::once(None).chain(classes.iter().cloned().map(Some));
        let node = |class| {
            let node = CallNode { service: service.clone(), class };
            let id = NodeId::of(&node);
            (node, id)
        };
        let nodes: Box<[_]> = classes.map(node).collect();
        let counters = (0..nodes.len() * BUCKETS).map(|_| Counter::default()).collect();
        Self { nodes, counters }
    }

    /// Whether the counters have exactly these classes, in this order.
    pub fn has(&self, classes: &[Label]) -> bool {
        self.nodes.iter().skip(1).map(|(node, _)| node.class.as_ref()).eq(classes.iter().map(Some))
    }

    /// Position of a class; 0 for calls without a class or with an unknown class.
    pub fn position(&self, class: Option<&Label>) -> usize {
        let known = class
            .and_then(|class| self.nodes.iter().position(|(node, _)| node.class.as_ref() == Some(class)));
        known.unwrap_or_default()
    }

    /// The node at `position`.
    #[inline]
    pub fn node(&self, position: usize) -> Option<NodeId> {
        self.nodes.get(position)?.1
    }

    /// Counts a call of the class at `position`. `cpu` is the CPU utilisation in thousandths of the limit, and
    /// `exclusive` the time without child calls in flight.
    #[inline]
    pub fn record(&self, position: usize, cpu: Option<u16>, exclusive: Duration) {
        let last = usize::from(UTILISATION_BUCKETS) - 1;
        let bucket = cpu.map_or(BUCKETS - 1, |cpu| (usize::from(cpu) / 100).min(last));
        if let Some(counter) = self.counters.get(position * BUCKETS + bucket) {
            counter.calls.fetch_add(1, Relaxed);
            let exclusive_us = u64::try_from(exclusive.as_micros()).unwrap_or(u64::MAX);
            counter.exclusive_us.fetch_add(exclusive_us, Relaxed);
        }
    }

    /// All nonzero counts, for a server in `region`.
    fn counts(&self, region: &Region) -> BTreeMap<ServedPath, (u64, u64)> {
        let path = |position: usize| ServedPath {
            node: self.nodes[position / BUCKETS].0.clone(),
            region: region.clone(),
            bucket: u8::try_from(position % BUCKETS).ok().filter(|bucket| *bucket < UTILISATION_BUCKETS),
        };
        let counts =
            self.counters.iter().map(|one| (one.calls.load(Relaxed), one.exclusive_us.load(Relaxed)));
        let counts = counts.enumerate().filter(|(_, (calls, _))| *calls > 0);
        counts.map(|(position, counts)| (path(position), counts)).collect()
    }
}

/// Converts the counts of one server into rates between readings.
#[derive(Debug, Default)]
pub struct ServedMeter {
    read_at_ms: Option<u64>,
    last: BTreeMap<ServedPath, (u64, u64)>,
}

impl ServedMeter {
    /// Returns the rates since the last reading; the first reading returns none. `now_ms` comes from a monotonic
    /// clock.
    pub fn read(
        &mut self,
        counters: &ServedCounters,
        region: &Region,
        now_ms: u64,
    ) -> BTreeMap<ServedPath, ServedRates> {
        let now = counters.counts(region);
        let before = std::mem::replace(&mut self.last, now);
        let elapsed_ms = self.read_at_ms.replace(now_ms).map_or(0, |at| now_ms.saturating_sub(at));
        if elapsed_ms == 0 {
            return BTreeMap::new();
        }
        // Counters that decreased were recreated.
        let change = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let rates = self.last.iter().map(|(path, (calls, exclusive_us))| {
            let before = before.get(path).copied().unwrap_or_default();
            let rates = ServedRates {
                calls: rate(change(*calls, before.0), 1_000_000, elapsed_ms),
                exclusive_us: rate(change(*exclusive_us, before.1), 1_000, elapsed_ms),
            };
            (path.clone(), rates)
        });
        rates.filter(|(_, rates)| rates.calls > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_calls_are_counted_by_class_and_utilisation() {
        let [service, eu] = ["served/cart", "eu"];
        let (service, eu) = (ServiceName::new(service).unwrap(), Region::new(eu).unwrap());
        let bulk: Label = "bulk".parse().unwrap();
        let counters = ServedCounters::new(&service, std::slice::from_ref(&bulk));
        let mut meter = ServedMeter::default();
        assert!(meter.read(&counters, &eu, 0).is_empty());
        for (class, cpu, ms) in [(None, None, 1), (Some(&bulk), Some(99), 2), (Some(&bulk), Some(1_700), 3)] {
            (0..10).for_each(|_| counters.record(counters.position(class), cpu, Duration::from_millis(ms)));
        }
        let rates = meter.read(&counters, &eu, 2_000);
        let rows: Vec<_> = rates
            .iter()
            .map(|(path, rates)| (path.node.class.clone(), path.bucket, rates.calls, rates.exclusive_us))
            .collect();
        let of_bulk = Some(bulk.clone());
        let expected = [
            (None, None, 5_000, 5_000),
            (of_bulk.clone(), Some(0), 5_000, 10_000),
            (of_bulk, Some(9), 5_000, 15_000),
        ];
        assert_eq!(rows, expected);
        assert!(meter.read(&counters, &eu, 3_000).is_empty(), "no call came since");
        let other: Label = "other".parse().unwrap();
        assert_eq!(counters.position(Some(&other)), 0);
        assert_eq!(counters.node(1).unwrap().node().unwrap().class, Some(bulk));
    }
}
