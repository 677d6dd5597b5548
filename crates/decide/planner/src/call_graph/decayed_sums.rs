use std::collections::BTreeMap;

use fairmesh_model::{CallNode, Region};

use super::{Edge, GraphEdge, GraphNode};

/// Decayed counts of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSums {
    /// The decayed time of the counts.
    pub(super) seconds: f64,
    pub(super) served: BTreeMap<Region, f64>,
    pub(super) demand: BTreeMap<Region, f64>,
    /// Calls of all callers, or their attempts that were answered, where these are more.
    pub(super) sent: f64,
    /// Bytes of calls that were made for no known call.
    pub(super) request_bytes: f64,
    pub(super) response_bytes: f64,
    pub(super) at_ms: u64,
}

/// Decayed counts of one edge.
#[derive(Clone, Debug, Default)]
pub(super) struct EdgeSums {
    pub(super) seconds: f64,
    pub(super) from: BTreeMap<Region, f64>,
    /// Calls that the parent's servers processed meanwhile.
    pub(super) parent_calls: f64,
    pub(super) answered: f64,
    pub(super) time_us: f64,
    pub(super) request_bytes: f64,
    pub(super) response_bytes: f64,
    pub(super) at_ms: u64,
}

impl NodeSums {
    pub(super) fn scale(&mut self, factor: f64) {
        for sum in [&mut self.seconds, &mut self.sent, &mut self.request_bytes, &mut self.response_bytes] {
            *sum *= factor;
        }
        self.served.values_mut().chain(self.demand.values_mut()).for_each(|calls| *calls *= factor);
    }

    /// A surplus at the servers comes from outside of the mesh if it is more than this part of the calls.
    pub(super) fn describe(&self, node: &CallNode, least_outside: f64, now_ms: u64) -> GraphNode {
        let mut demand = self.demand.clone();
        let served: f64 = self.served.values().sum();
        let known: f64 = demand.values().sum();
        let surplus = served - self.sent;
        let mut outside = BTreeMap::new();
        if surplus > served * least_outside {
            for (region, calls) in &self.served {
                let calls = surplus * calls / served;
                *demand.entry(region.clone()).or_default() += calls;
                outside.insert(region.clone(), calls);
            }
        }
        GraphNode {
            node: node.clone(),
            served: per_second(&self.served, self.seconds),
            demand: per_second(&demand, self.seconds),
            outside: per_second(&outside, self.seconds),
            request_bytes: ratio(self.request_bytes, known).unwrap_or_default(),
            response_bytes: ratio(self.response_bytes, known).unwrap_or_default(),
            age_ms: now_ms.saturating_sub(self.at_ms),
        }
    }
}

impl EdgeSums {
    pub(super) fn scale(&mut self, factor: f64) {
        self.from.values_mut().for_each(|calls| *calls *= factor);
        for sum in [
            &mut self.seconds,
            &mut self.parent_calls,
            &mut self.answered,
            &mut self.time_us,
            &mut self.request_bytes,
            &mut self.response_bytes,
        ] {
            *sum *= factor;
        }
    }

    /// Calls for each call of the parent; `None` if its servers report none.
    pub(super) fn multiplicity(&self) -> Option<f64> {
        ratio(self.calls(), self.parent_calls)
    }

    /// Calls per second.
    pub(super) fn rate(&self) -> f64 {
        ratio(self.calls(), self.seconds).unwrap_or_default()
    }

    pub(super) fn describe(&self, (parent, child): &Edge, is_cut: bool, now_ms: u64) -> GraphEdge {
        let calls = self.calls();
        GraphEdge {
            parent: parent.clone(),
            child: child.clone(),
            from: per_second(&self.from, self.seconds),
            multiplicity: self.multiplicity(),
            request_bytes: ratio(self.request_bytes, calls).unwrap_or_default(),
            response_bytes: ratio(self.response_bytes, calls).unwrap_or_default(),
            time_us: ratio(self.time_us, self.answered),
            is_cut,
            age_ms: now_ms.saturating_sub(self.at_ms),
        }
    }

    /// Calls of all regions.
    pub(super) fn calls(&self) -> f64 {
        self.from.values().sum()
    }
}

fn per_second(counts: &BTreeMap<Region, f64>, seconds: f64) -> BTreeMap<Region, f64> {
    let rate = |calls: f64| ratio(calls, seconds).unwrap_or_default();
    counts.iter().map(|(region, calls)| (region.clone(), rate(*calls))).collect()
}

/// `None` of nothing: counts that decayed to a millionth are none.
fn ratio(count: f64, of: f64) -> Option<f64> {
    (of > 1e-6).then(|| count / of)
}
