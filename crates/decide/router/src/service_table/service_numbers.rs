//! A compiled service as numbers, for readers that share memory with it and no types: programs in the kernel.
//!
//! All integers are in the byte order of the machine, and there is no padding. `bpf/pick.h` decides from them as
//! [`ServiceTable::pick`] does on the nearest rank.

use fairmesh_balancer::BLOCK_ENDPOINTS;
use fairmesh_model::BalancingPolicy;

use super::{Selection, ServiceTable};
use crate::RouteNumbers;

/// A service with one rank of candidates and no choice before the pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ServiceNumbers {
    /// Ticks per nanosecond of the clock of the picks, times 2^64.
    pub ticks_per_nano: u64,
    /// For how many ticks the cost of an endpoint holds without reports.
    pub memory: u32,
    /// 0: score; 1: least request; 2: round robin; 3: random.
    pub policy: u32,
    /// The number of candidates, at least 1.
    pub len: u32,
    /// The weight of each candidate if all are equal, else 0.
    pub equal_weight: u32,
    /// The candidates in the order of the snapshot.
    pub candidates: [CandidateNumbers; BLOCK_ENDPOINTS],
}

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CandidateNumbers {
    /// Its index in the statistics of the service, below [`BLOCK_ENDPOINTS`].
    pub index: u32,
    /// Its weight.
    pub weight: u32,
    /// The sum of the weights up to this one; `i64::MAX` beyond the last candidate, so that a search needs no length.
    pub cumulative_weight: u64,
}

impl CandidateNumbers {
    const NONE: Self = Self { index: 0, weight: 0, cumulative_weight: i64::MAX as u64 };
}

impl ServiceNumbers {
    /// The indices of the candidates.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.candidates.iter().take(self.len as usize).map(|candidate| candidate.index)
    }
}

impl ServiceTable {
    /// The routes of the service, of which [`numbers`](Self::numbers) say nothing, for requests to this host, without port and
    /// trailing dot.
    pub fn route_numbers(&self, host: &str) -> RouteNumbers {
        self.routes.numbers(host, (&self.name.tenant, &self.timeouts))
    }

    /// The service as numbers. `None` if a call needs more than a route and a pick among the candidates of the nearest rank: a limit, a
    /// total timeout (its deadline is sent to servers), a key, a region table, a ring that cannot carry all calls; if the policy is another one, or there are too many
    /// candidates.
    pub fn numbers(&self) -> Option<ServiceNumbers> {
        let Selection::Replicated { nearest, .. } = &self.selection else { return None };
        let needs_more = self.bucket.is_some()
            || self.timeouts.total.is_some()
            || self.division.is_some()
            || nearest.rank >= self.last_resort;
        let policy = match self.pick_config.policy() {
            BalancingPolicy::Score => 0,
            BalancingPolicy::LeastRequest => 1,
            BalancingPolicy::RoundRobin => 2,
            BalancingPolicy::Random => 3,
            BalancingPolicy::PeakEwma | BalancingPolicy::BoundedHash => return None,
        };
        let set = nearest.candidates.as_candidates();
        if needs_more || set.is_empty() || set.len() > BLOCK_ENDPOINTS {
            return None;
        }
        let (mut candidates, mut total) = ([CandidateNumbers::NONE; BLOCK_ENDPOINTS], 0);
        for (position, &index) in set.indices().iter().enumerate() {
            if index as usize >= BLOCK_ENDPOINTS {
                return None;
            }
            let weight = set.weight(position);
            total += u64::from(weight);
            candidates[position] = CandidateNumbers { index, weight, cumulative_weight: total };
        }
        Some(ServiceNumbers {
            ticks_per_nano: self.pick_config.ticks_per_nano(),
            memory: self.pick_config.memory(),
            policy,
            // 32 at most.
            len: set.len() as u32,
            equal_weight: set.equal_weight(),
            candidates,
        })
    }
}
