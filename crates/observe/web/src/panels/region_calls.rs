use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::Region;
use serde_json::json;

use crate::{event_delta::Shown, page_source::RegionSteps};

/// Maximum number of regions that have series of their own.
const MAX_REGIONS: usize = 6;

/// A number per step, oldest first; `null` for a gap.
type Series = Vec<Option<f64>>;

/// Shows calls per second between regions for each step of a window of milliseconds: what the busiest regions receive,
/// and the part of their callers' calls that leaves the region. The last step is the present one, and a gap.
pub(crate) fn region_calls(pairs: &RegionSteps, window_ms: u64) -> Shown {
    let steps = pairs.values().map(Vec::len).max().unwrap_or_default();
    let mut sums = BTreeMap::<&Region, RegionSums>::new();
    let mut all = RegionSums::of(steps);
    for ((from, to), counted) in pairs {
        let crosses = from != to;
        let rates = rates(counted);
        let own = || RegionSums::of(steps);
        add(&mut sums.entry(to).or_insert_with(own).received, &rates);
        sums.entry(from).or_insert_with(own).send(&rates, crosses);
        all.send(&rates, crosses);
    }
    let total = |sums: &RegionSums| sums.received.iter().flatten().sum::<f64>();
    let mut busiest: Vec<_> = sums.iter().collect();
    busiest.sort_by_key(|(name, sums)| (Reverse((total(sums) * 1e3) as u64), *name));
    let shown: BTreeSet<_> = busiest.into_iter().take(MAX_REGIONS).map(|(name, _)| *name).collect();
    let row = |(name, sums): (&&Region, &RegionSums)| {
        let (received, crossing) = (&sums.received, sums.crossing());
        json!({ "region": name.to_string(), "received": received, "crossing": crossing })
    };
    Shown::head(&json!({
        "stepMs": if steps == 0 { 0 } else { window_ms / steps as u64 },
        "regions": sums.iter().filter(|(name, _)| shown.contains(*name)).map(row).collect::<Vec<_>>(),
        "moreRegions": sums.len() - shown.len(),
        "crossing": all.crossing(),
    }))
}

/// Calls per second of one region.
struct RegionSums {
    received: Series,
    sent: Series,
    /// The part of `sent` to other regions.
    left: Series,
}

impl RegionSums {
    fn of(steps: usize) -> Self {
        let [received, sent, left] = [(); 3].map(|()| vec![None; steps]);
        Self { received, sent, left }
    }

    fn send(&mut self, rates: &[Option<f64>], crosses: bool) {
        add(&mut self.sent, rates);
        if crosses {
            add(&mut self.left, rates);
        }
    }

    /// The part of the calls that leaves the region. A step without calls has none.
    fn crossing(&self) -> Series {
        let part = |(sent, left): (&Option<f64>, &Option<f64>)| {
            let sent = sent.filter(|sent| *sent > 0.0)?;
            Some(left.unwrap_or_default() / sent)
        };
        self.sent.iter().zip(&self.left).map(part).collect()
    }
}

fn rates(counted: &[Option<(u64, Duration)>]) -> Series {
    let present = counted.len().saturating_sub(1);
    let rate = |(at, step): (usize, &Option<(u64, Duration)>)| {
        let (calls, covered) = (*step)?;
        Some(calls as f64 / covered.as_secs_f64()).filter(|rate| rate.is_finite() && at < present)
    };
    counted.iter().enumerate().map(rate).collect()
}

/// Adds rates to a sum, in which a step is a gap only if it is one of all summands.
fn add(sum: &mut [Option<f64>], rates: &[Option<f64>]) {
    for (sum, rate) in sum.iter_mut().zip(rates) {
        *sum = match (*sum, *rate) {
            (Some(sum), Some(rate)) => Some(sum + rate),
            (sum, rate) => sum.or(rate),
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    fn head(pairs: &RegionSteps) -> Value {
        let shown = region_calls(pairs, 30_000).since(None).unwrap();
        serde_json::from_str::<Value>(&shown).unwrap()["head"].clone()
    }

    #[test]
    fn region_series_have_rates_crossing_share_and_gaps() {
        let steps =
            |calls: u64| vec![None, Some((calls, Duration::from_secs(10))), Some((calls, Duration::ZERO))];
        let pairs = RegionSteps::from([
            ((region("eu"), region("eu")), steps(300)),
            ((region("eu"), region("us")), steps(100)),
            ((region("us"), region("us")), steps(0)),
        ]);
        let head = head(&pairs);
        assert_eq!(head["stepMs"], 10_000);
        assert_eq!(head["crossing"], json!([null, 0.25, null]));
        let [eu, us] = [0, 1].map(|at| head["regions"][at].clone());
        assert_eq!(
            (&eu["received"], &us["received"]),
            (&json!([null, 30.0, null]), &json!([null, 10.0, null]))
        );
        assert_eq!(
            (&eu["crossing"], &us["crossing"]),
            (&json!([null, 0.25, null]), &json!([null, null, null]))
        );
    }

    #[test]
    fn only_busiest_regions_have_series() {
        let step = |n: u64| vec![Some((n, Duration::from_secs(1))), None];
        let pair = |n: u64| ((region(&format!("r{n}")), region(&format!("r{n}"))), step(n));
        let head = head(&(0..9).map(pair).collect());
        let names: Vec<_> = head["regions"].as_array().unwrap().iter().map(|one| &one["region"]).collect();
        assert_eq!(names, ["r3", "r4", "r5", "r6", "r7", "r8"]);
        assert_eq!(head["moreRegions"], 3);
        assert_eq!(head_of_nothing(), json!({"stepMs": 0, "regions": [], "moreRegions": 0, "crossing": []}));
    }

    fn head_of_nothing() -> Value {
        head(&RegionSteps::new())
    }
}
