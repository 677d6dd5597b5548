use std::fmt;

use crate::{rings_planner::share, rings_policy::RingsPolicy, round_problem::Problem, share_tables::Tables};

/// A change of one share, with its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The region of the callers.
    pub source: usize,
    /// Their class.
    pub class: usize,
    /// Where most of these calls went before.
    pub from: Destination,
    /// Where they go now.
    pub to: Destination,
    /// The ring of the new destination around the source; `None` if calls are dropped.
    pub ring: Option<usize>,
    /// The share that the destination gained, from 0 to 1.
    pub share: f64,
    /// Why.
    pub cause: Cause,
}

/// Where calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A region.
    Region(usize),
    /// Nowhere: they fail at once.
    Dropped,
}

/// Why a share changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// The source region has no servers, or none that have stayed long enough.
    NoServers,
    /// The source region is drained.
    Drained,
    /// With all of its own calls the source region would have this load, above its first threshold.
    Loaded {
        /// The load.
        load: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The same load of the servers that callers reach; others of the region are less loaded.
    LoadedWhereReached {
        /// The load.
        load: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The source region has room for its own calls, and others need it.
    MakesRoom,
    /// The former destination is too loaded for further calls, has no servers, or is drained.
    Relieved,
    /// All reachable regions are at their last threshold.
    Short,
    /// There is room again.
    Return,
    /// A region nearer than the former destination has room.
    Nearer,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServers => write!(f, "it has no servers"),
            Self::Drained => write!(f, "it is drained"),
            Self::Loaded { load, threshold } => {
                write!(f, "its load would be {:.1} %, above {:.1} %", load * 100.0, threshold * 100.0)
            }
            Self::LoadedWhereReached { load, threshold } => write!(
                f,
                "the load of its servers that callers reach would be {:.1} %, above {:.1} %",
                load * 100.0,
                threshold * 100.0
            ),
            Self::MakesRoom => write!(f, "calls of other regions need its room"),
            Self::Relieved => write!(f, "the former destination has no room"),
            Self::Short => write!(f, "no region of the rings has room"),
            Self::Return => write!(f, "there is room again"),
            Self::Nearer => write!(f, "a nearer region has room"),
        }
    }
}

/// The reasons of all differences between two tables.
pub(crate) fn explain(
    policy: &RingsPolicy,
    problem: &Problem<'_>,
    before: &Tables,
    after: &Tables,
) -> Vec<Shift> {
    let mut shifts = Vec::new();
    for source in 0..problem.regions {
        for class in 0..problem.classes {
            let (old, new) = (before.of(source, class), after.of(source, class));
            let change = |to: usize| i64::from(new.shares[to]) - i64::from(old.shares[to]);
            let dropped = i64::from(new.dropped) - i64::from(old.dropped);
            let most = (0..problem.regions).min_by_key(|to| change(*to)).unwrap_or(source);
            let from = if dropped < change(most) { Destination::Dropped } else { Destination::Region(most) };
            let shift = |to: Destination, gain: i64| Shift {
                source,
                class,
                from,
                to,
                ring: match to {
                    Destination::Region(to) => problem.rings.ring(source, to),
                    Destination::Dropped => None,
                },
                share: share(u32::try_from(gain).unwrap_or_default()),
                cause: cause(policy, problem, source, (from, to)),
            };
            let gains = (0..problem.regions).filter(|to| change(*to) > 0);
            shifts.extend(gains.map(|to| shift(Destination::Region(to), change(to))));
            if dropped > 0 {
                shifts.push(shift(Destination::Dropped, dropped));
            }
        }
    }
    shifts
}

fn cause(
    policy: &RingsPolicy,
    problem: &Problem<'_>,
    source: usize,
    (from, to): (Destination, Destination),
) -> Cause {
    let home = Destination::Region(source);
    let load = problem.offered(source) * problem.cost[source];
    let threshold = policy.threshold();
    match (from, to) {
        (_, Destination::Dropped) => Cause::Short,
        (_, to) if to == home => Cause::Return,
        (Destination::Dropped, _) => Cause::Return,
        _ if !problem.serves(source) => Cause::NoServers,
        (from, _) if from == home && problem.keep[source] < 1.0 => Cause::Drained,
        (from, _) if from == home && load < threshold - policy.margin => Cause::MakesRoom,
        (from, _) if from == home && !problem.is_reached(source) => {
            Cause::LoadedWhereReached { load, threshold }
        }
        (from, _) if from == home => Cause::Loaded { load, threshold },
        (Destination::Region(from), Destination::Region(to)) if problem.is_nearer(source, to, from) => {
            Cause::Nearer
        }
        _ => Cause::Relieved,
    }
}
