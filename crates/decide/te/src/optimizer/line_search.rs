//! A step towards other shares, as far as the smoothed cost falls. Flows are combined and not shares, so that calls are conserved and the cost
//! is convex along the step.

use super::{
    arc_flows::{Arcs, Flow, NO_RATE},
    compiled_problem::Network,
};

/// Iterations of the search.
const SEARCHES: usize = 20;
/// The slope is gone when this part of it is left.
const FLAT: f64 = 1e-6;

/// Moves towards `target` and returns the part of the way, from 0 to 1; `None` where the cost does not fall in this direction.
pub(super) fn step(network: &Network, arcs: &mut Arcs, flow: &mut Flow, target: &[f64]) -> Option<f64> {
    let mut there = Flow::default();
    arcs.propagate(network, target, &mut there);
    let part = search(network, flow, &there)?;
    combine(arcs, flow, (target, &there), part);
    Some(part)
}

/// The part of the way at which the cost is least.
fn search(network: &Network, here: &Flow, there: &Flow) -> Option<f64> {
    let linear = there.linear - here.linear;
    let moves: Vec<(usize, f64)> = (0..network.pools.len())
        .map(|pool| (pool, there.work[pool] - here.work[pool]))
        .filter(|(_, change)| *change != 0.0)
        .collect();
    let slope = |part: f64| {
        moves.iter().fold((linear, 0.0), |(slope, curvature), (pool, change)| {
            let at = network.pools[*pool].slope(here.work[*pool] + part * change);
            (slope + at.price * change, curvature + at.curvature * change * change)
        })
    };
    let (first, curvature) = slope(0.0);
    if first >= 0.0 || first.is_nan() {
        return None;
    }
    if slope(1.0).0 <= 0.0 {
        return Some(1.0);
    }
    let (mut low, mut high) = (0.0, 1.0);
    let mut part = (-first / curvature.max(f64::MIN_POSITIVE)).min(1.0);
    for _ in 0..SEARCHES {
        let (slope, curvature) = slope(part);
        if slope.abs() < FLAT * first.abs() {
            break;
        }
        if slope > 0.0 {
            high = part
        } else {
            low = part
        }
        let newton = part - slope / curvature.max(f64::MIN_POSITIVE);
        part = if newton > low && newton < high { newton } else { f64::midpoint(low, high) };
    }
    Some(part)
}

/// The flow `part` of the way from here to there.
pub(super) fn combine(arcs: &mut Arcs, flow: &mut Flow, (target, there): (&[f64], &Flow), part: f64) {
    let mix = |from: f64, to: f64| from + part * (to - from);
    for block in 0..flow.inflow.len() {
        let (from, to) = ((1.0 - part) * flow.inflow[block], part * there.inflow[block]);
        let inflow = from + to;
        for arc in arcs.range(block) {
            arcs.share[arc] = match inflow > NO_RATE {
                true => (from * arcs.share[arc] + to * target[arc]) / inflow,
                false => target[arc],
            };
        }
        flow.inflow[block] = inflow;
    }
    let lists = [(&mut flow.arrivals, &there.arrivals), (&mut flow.work, &there.work)];
    for (mine, theirs) in lists {
        mine.iter_mut().zip(theirs).for_each(|(from, to)| *from = mix(*from, *to));
    }
    flow.linear = mix(flow.linear, there.linear);
}
