//! Counters of one interval: calls by edge and pair of regions, calls processed by servers, and used CPU.

use fairmesh_model::UTILISATION_BUCKETS;

use crate::{registry::Registry, server::Server};

/// Number of utilisation buckets, including the unknown one.
const BUCKETS: usize = UTILISATION_BUCKETS as usize + 1;
/// Thousandths per utilisation bucket.
const MILLI_PER_BUCKET: u16 = 1_000 / UTILISATION_BUCKETS as u16;

/// Counts since the interval began.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    regions: usize,
    /// Counts by edge, source and destination.
    calls: Vec<CallCounts>,
    /// Calls that tables dropped, by edge and source.
    dropped: Vec<u64>,
    /// Counts by operation, region and utilisation bucket.
    served: Vec<ServedCounts>,
    /// State of each server at the start of the interval: busy time and requests.
    starts: Vec<(f64, u64)>,
    began: u64,
}

/// Calls over an edge from one region to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallCounts {
    pub(super) offered: u64,
    pub(super) attempts: u64,
    pub(super) answered: u64,
    pub(super) nanos: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServedCounts {
    pub(super) calls: u64,
    pub(super) exclusive: u64,
}

/// The servers of one service and region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PoolCounts {
    pub(super) servers: u32,
    pub(super) cores: f64,
    /// Mean number of cores in use.
    pub(super) busy: f64,
    pub(super) received: u64,
}

/// Result of one interval.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(super) counts: Counters,
    pub(super) seconds: f64,
    /// Counts by service × regions + region.
    pub(super) pools: Vec<PoolCounts>,
}

impl Counters {
    pub(crate) fn new(regions: usize, edges: usize, operations: usize) -> Self {
        Self {
            regions,
            calls: vec![CallCounts::default(); edges * regions * regions],
            dropped: vec![0; edges * regions],
            served: vec![ServedCounts::default(); operations * regions * BUCKETS],
            starts: Vec::new(),
            began: 0,
        }
    }

    pub(crate) fn record_sent(&mut self, edge: u32, pair: (u16, u16), is_first: bool) {
        let counts = self.call_mut(edge, pair);
        counts.attempts += 1;
        counts.offered += u64::from(is_first);
    }

    pub(crate) fn record_answered(&mut self, edge: u32, pair: (u16, u16), nanos: u64) {
        let counts = self.call_mut(edge, pair);
        counts.answered += 1;
        counts.nanos += nanos;
    }

    pub(crate) fn record_dropped(&mut self, edge: u32, source: u16) {
        self.dropped[edge as usize * self.regions + usize::from(source)] += 1;
    }

    /// Records a server's response; `cpu` is the server's utilisation in thousandths.
    pub(crate) fn record_served(&mut self, operation: u16, region: u16, cpu: Option<u16>, exclusive: u64) {
        let last = BUCKETS - 2;
        let bucket = cpu.map_or(BUCKETS - 1, |cpu| usize::from(cpu / MILLI_PER_BUCKET).min(last));
        let row = usize::from(operation) * self.regions + usize::from(region);
        let counts = &mut self.served[row * BUCKETS + bucket];
        counts.calls += 1;
        counts.exclusive += exclusive;
    }

    fn call_mut(&mut self, edge: u32, (from, to): (u16, u16)) -> &mut CallCounts {
        let row = edge as usize * self.regions + usize::from(from);
        &mut self.calls[row * self.regions + usize::from(to)]
    }

    pub(super) fn call(&self, edge: usize, from: usize, to: usize) -> CallCounts {
        self.calls[(edge * self.regions + from) * self.regions + to]
    }

    pub(super) fn dropped(&self, edge: usize, from: usize) -> u64 {
        self.dropped[edge * self.regions + from]
    }

    /// Calls of an operation that a region's servers processed, by tenths of utilisation; `None` if unknown.
    pub(super) fn served(
        &self,
        operation: usize,
        region: usize,
    ) -> impl Iterator<Item = (Option<u8>, ServedCounts)> {
        let row = operation * self.regions + region;
        let buckets = self.served[row * BUCKETS..][..BUCKETS].iter().zip(0..);
        buckets.map(|(counts, bucket)| ((bucket < UTILISATION_BUCKETS).then_some(bucket), *counts))
    }

    /// Begins an interval.
    pub(crate) fn begin(&mut self, servers: &mut [Server], now: u64) {
        self.calls.fill(CallCounts::default());
        self.dropped.fill(0);
        self.served.fill(ServedCounts::default());
        self.starts = servers.iter_mut().map(|server| (server.busy(now), server.received)).collect();
        self.began = now;
    }

    /// The interval that ends now.
    pub(super) fn end(&self, servers: &mut [Server], registry: &Registry, now: u64) -> Interval {
        let nanos = (now - self.began) as f64;
        let mut pools = vec![PoolCounts::default(); registry.services() * self.regions];
        for (id, (server, start)) in (0..).zip(servers.iter_mut().zip(&self.starts)) {
            if server.up && registry.serves(id) {
                let at = usize::from(registry.service_of(id)) * self.regions + usize::from(server.region);
                let pool = &mut pools[at];
                pool.servers += 1;
                pool.cores += server.cores;
                pool.busy += (server.busy(now) - start.0) / nanos;
                pool.received += server.received - start.1;
            }
        }
        Interval { counts: self.clone(), seconds: nanos / 1e9, pools }
    }
}
