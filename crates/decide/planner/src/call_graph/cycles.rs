use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::CallNode;

use super::Edge;

/// The edges without which the graph has no cycle: each has the fewest calls of a cycle whose other edges stay.
///
/// Edges are kept in the order of their calls, the largest first, unless the child already reaches the parent. Which edges to cut
/// at the least loss is NP-hard (feedback arc set). The order by out- minus in-flow (Eades, Lin, Smyth, 1993) cuts fewer edges of dense
/// graphs, but not the smallest one of a simple loop, which is what an operator expects.
pub(super) fn cut_edges(rates: &BTreeMap<&Edge, f64>) -> BTreeSet<Edge> {
    let mut core = cyclic_core(rates);
    core.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let (mut kept, mut cut) = (BTreeMap::<&CallNode, Vec<&CallNode>>::new(), BTreeSet::new());
    for (edge, _) in core {
        let (parent, child) = edge;
        if reaches(&kept, child, parent) {
            cut.insert(edge.clone());
        } else {
            kept.entry(parent).or_default().push(child);
        }
    }
    cut
}

/// The edges that remain when nodes without callers and nodes without calls are removed one after the other.
fn cyclic_core<'a>(rates: &BTreeMap<&'a Edge, f64>) -> Vec<(&'a Edge, f64)> {
    let mut core: Vec<_> = rates.iter().map(|(edge, rate)| (*edge, *rate)).collect();
    loop {
        let parents: BTreeSet<_> = core.iter().map(|((parent, _), _)| parent).collect();
        let children: BTreeSet<_> = core.iter().map(|((_, child), _)| child).collect();
        let before = core.len();
        core.retain(|((parent, child), _)| children.contains(parent) && parents.contains(child));
        if core.len() == before {
            return core;
        }
    }
}

fn reaches(kept: &BTreeMap<&CallNode, Vec<&CallNode>>, from: &CallNode, to: &CallNode) -> bool {
    let (mut pending, mut seen) = (vec![from], BTreeSet::new());
    while let Some(next) = pending.pop() {
        if next == to {
            return true;
        }
        if seen.insert(next) {
            pending.extend(kept.get(next).into_iter().flatten());
        }
    }
    false
}
