//! Programs that do not pass the trace context of a call on to the calls that they make for it.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{ServiceName, TrafficReport};

/// The time in which a count loses half of its weight.
const HALF_LIFE_MS: f64 = 20_000.0;
/// The most services; further ones are left out.
const MAX_SERVICES: usize = 4_096;
/// Counts below this are forgotten.
const LEAST: f64 = 1e-3;
/// A program passes no context on if it names no parent of this share of its calls. Some calls have none: those of timers and at a start.
const UNNAMED_SHARE: f64 = 0.5;

/// Calls of programs that serve calls themselves, with a parent and without. Decayed counts. Bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceContexts {
    counts: BTreeMap<ServiceName, Counts>,
    observed_at_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: f64,
    unnamed: f64,
}

impl TraceContexts {
    /// Counts the calls of a sum of reports.
    pub(super) fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        let elapsed = self.observed_at_ms.replace(now_ms).map_or(0, |at| now_ms.saturating_sub(at));
        let factor = (-(elapsed as f64) / HALF_LIFE_MS).exp2();
        for counts in self.counts.values_mut() {
            *counts = Counts { calls: counts.calls * factor, unnamed: counts.unnamed * factor };
        }
        self.counts.retain(|_, counts| counts.calls >= LEAST);
        let serving: BTreeSet<&ServiceName> = sum.served.keys().map(|path| &path.node.service).collect();
        for (path, rates) in &sum.calls {
            let Some(caller) = path.caller.as_ref().filter(|caller| serving.contains(caller)) else {
                continue;
            };
            if self.counts.len() < MAX_SERVICES || self.counts.contains_key(caller) {
                let counts = self.counts.entry(caller.clone()).or_default();
                counts.calls += rates.offered as f64;
                counts.unnamed += if path.parent.is_none() { rates.offered as f64 } else { 0.0 };
            }
        }
    }

    /// The services whose programs pass no context on, with the share of their calls that name no parent.
    pub(super) fn missing(&self) -> BTreeMap<ServiceName, f64> {
        let share = |counts: &Counts| counts.unnamed / counts.calls;
        let missing = self.counts.iter().filter(|(_, counts)| share(counts) > UNNAMED_SHARE);
        missing.map(|(service, counts)| (service.clone(), share(counts))).collect()
    }
}
