//! A compiled service as numbers, for eBPF programs, which share memory with the proxy but no types.
//!
//! All integers are in the machine's byte order, without padding. `bpf/lib/pick.h` uses them to decide like
//! [`ServiceTable::pick`] on the nearest rank.

use fairmesh_balancer::BLOCK_ENDPOINTS;
use fairmesh_model::BalancingPolicy;

use super::{Selection, ServiceTable};
use crate::RouteNumbers;

const TOO_MANY: &str = "it has more than 32 endpoints";

/// A service with one rank of candidates, in which no other choice precedes the pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ServiceNumbers {
    /// Ticks per nanosecond of the picks' clock, times 2^64.
    pub ticks_per_nano: u64,
    /// Time for which an endpoint's cost stays valid without reports, in ticks.
    pub memory: u32,
    /// Balancing policy. 0: score; 1: least request; 2: round robin; 3: random.
    pub policy: u32,
    /// Number of candidates, at least 1.
    pub len: u32,
    /// The weight of each candidate if all are equal, otherwise 0.
    pub equal_weight: u32,
    /// The candidates in the order of the snapshot.
    pub candidates: [CandidateNumbers; BLOCK_ENDPOINTS],
}

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CandidateNumbers {
    /// Index in the service's statistics, below [`BLOCK_ENDPOINTS`].
    pub index: u32,
    /// Weight of the candidate.
    pub weight: u32,
    /// Cumulative weight up to this candidate; `i64::MAX` after the last one, so that a search needs no length.
    pub cumulative_weight: u64,
}

impl CandidateNumbers {
    const NONE: Self = Self { index: 0, weight: 0, cumulative_weight: i64::MAX as u64 };
}

impl ServiceNumbers {
    /// Indices of the candidates.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.candidates.iter().take(self.len as usize).map(|candidate| candidate.index)
    }
}

impl ServiceTable {
    /// The service's routes for requests to this host, which is given without port and trailing dot. They are not part
    /// of [`numbers`](Self::numbers).
    pub fn route_numbers(&self, host: &str) -> RouteNumbers {
        self.routes.numbers(host, (&self.name.tenant, &self.timeouts))
    }

    /// Returns the service as numbers.
    ///
    /// # Errors
    /// The reason why a call needs more than a route and a pick on the nearest rank.
    pub fn numbers(&self) -> Result<ServiceNumbers, &'static str> {
        let Selection::Replicated { nearest, .. } = &self.selection else {
            return Err("its calls are picked by keys");
        };
        self.needs_more(nearest.rank)?;
        let policy = match self.pick_config.policy() {
            BalancingPolicy::Score => 0,
            BalancingPolicy::LeastRequest => 1,
            BalancingPolicy::RoundRobin => 2,
            BalancingPolicy::Random => 3,
            BalancingPolicy::PeakEwma => return Err("its policy balances by peakEwma"),
            BalancingPolicy::BoundedHash => return Err("its policy balances by boundedHash"),
        };
        let set = nearest.candidates.as_candidates();
        if set.is_empty() {
            return Err("no endpoint can be called");
        }
        if set.len() > BLOCK_ENDPOINTS {
            return Err(TOO_MANY);
        }
        let (mut candidates, mut total) = ([CandidateNumbers::NONE; BLOCK_ENDPOINTS], 0);
        for (position, &index) in set.indices().iter().enumerate() {
            if index as usize >= BLOCK_ENDPOINTS {
                return Err(TOO_MANY);
            }
            let weight = set.weight(position);
            total += u64::from(weight);
            candidates[position] = CandidateNumbers { index, weight, cumulative_weight: total };
        }
        Ok(ServiceNumbers {
            ticks_per_nano: self.pick_config.ticks_per_nano(),
            memory: self.pick_config.memory(),
            policy,
            // There are at most 32 candidates.
            len: set.len() as u32,
            equal_weight: set.equal_weight(),
            candidates,
        })
    }

    /// Fails if a call needs something that precedes the pick.
    fn needs_more(&self, nearest: u32) -> Result<(), &'static str> {
        if self.timeouts.total.is_some() {
            // Its deadline is sent to servers.
            return Err("its policy has a timeout");
        }
        if self.bucket.is_some() {
            return Err("its policy has a limit");
        }
        if self.division.is_some() {
            return Err("its calls are divided among regions");
        }
        if nearest >= self.last_resort {
            return Err("its endpoints drain or are unhealthy");
        }
        Ok(())
    }
}
