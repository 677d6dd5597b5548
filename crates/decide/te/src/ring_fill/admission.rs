//! Admission by class over all regions: what is dropped is of the least important class that could make room.
//!
//! Shedding by region alone drops important calls of one region while another one serves unimportant ones. So a call
//! that would be dropped looks for an augmenting path (Ford and Fulkerson, Maximal flow through a network, 1956): it goes to a
//! region that it may use, and calls that are served there go on to others that they may use, until one has room or serves a
//! call of a less important class, which is dropped instead. Classes take turns, the most important first, so that the
//! calls served of each class are the most that are possible beside those of the classes before it.
//!
//! A linear program was rejected: its optimum is the same, and the order of its pivots would decide whose calls are dropped.

use std::collections::VecDeque;

use super::{Fill, STEP, STEPS_PER_REGION};

/// Rates below this part of all calls are rounding errors.
const NOTHING: f64 = 1e-9;

/// Who makes room at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    region: usize,
    /// The class whose calls are dropped there; `None` if there is room.
    drops: Option<usize>,
    /// Calls per second.
    room: f64,
}

/// The regions that a call of one source reaches: by which region and by moving whose calls from there.
struct Reached {
    by: Vec<Option<(usize, usize)>>,
    /// In the order of the number of moves.
    order: Vec<usize>,
}

impl Fill<'_> {
    /// Serves calls that are dropped where calls of less important classes, or room, can be found for them.
    pub(super) fn admit(&mut self, rings: usize, ceilings: &[f64]) {
        let least = NOTHING * self.flows.dropped.iter().sum::<f64>();
        for class in 0..self.problem.classes {
            let mut waiting: Vec<usize> = (0..self.problem.regions).collect();
            // A source without a path has none after others have moved: no path enters what it reaches.
            for _ in 0..self.problem.regions * STEPS_PER_REGION {
                waiting.retain(|source| self.admit_step((*source, class), (rings, ceilings), least));
                if waiting.is_empty() {
                    break;
                }
            }
        }
    }

    /// Serves a step of the dropped calls of a source and class; returns whether there may be more.
    fn admit_step(
        &mut self,
        (source, class): (usize, usize),
        (rings, ceilings): (usize, &[f64]),
        least: f64,
    ) -> bool {
        let row = self.flows.row(source, class);
        let dropped = self.flows.dropped[row];
        if dropped <= least {
            return false;
        }
        let reached = self.reach(source, rings, least);
        let ends = reached.order.iter().filter_map(|region| self.end(*region, class, (ceilings, least)));
        // The first of equal ends wins: the fewest calls have to move to it.
        let better = |best: End, end: End| if rank(&end) > rank(&best) { end } else { best };
        let Some(end) = ends.reduce(better) else { return false };
        let path = reached.path(end.region);
        let step = dropped.min(self.problem.demand(source, class) * STEP).min(end.room);
        let rate = path.iter().fold(step, |rate, (from, mover, _)| rate.min(self.movable(*mover, *from).1));
        if let Some(drops) = end.drops {
            self.drop_calls(end.region, drops, rate);
        }
        for (from, mover, to) in &path {
            let class = self.movable(*mover, *from).0;
            self.send((*mover, class), *from, -rate);
            self.send((*mover, class), *to, rate);
        }
        let first = path.last().map_or(end.region, |(from, _, _)| *from);
        self.send((source, class), first, rate);
        self.flows.dropped[row] = if dropped - rate <= least { 0.0 } else { dropped - rate };
        rate > least
    }

    /// Searches breadth first. Each source is looked at once: whatever region its calls are moved from, they reach the same.
    fn reach(&self, source: usize, rings: usize, least: f64) -> Reached {
        let regions = self.problem.regions;
        let mut reached = Reached { by: vec![None; regions], order: Vec::new() };
        let (mut is_reached, mut has_moved) = (vec![false; regions], vec![false; regions]);
        let mut queue = VecDeque::new();
        for to in (0..regions).filter(|to| self.may_use(source, *to, rings)) {
            is_reached[to] = true;
            queue.push_back(to);
        }
        while let Some(from) = queue.pop_front() {
            reached.order.push(from);
            for (mover, has_moved) in has_moved.iter_mut().enumerate() {
                if *has_moved || self.movable(mover, from).1 <= least {
                    continue;
                }
                *has_moved = true;
                for to in (0..regions).filter(|to| self.may_use(mover, *to, rings)) {
                    if !std::mem::replace(&mut is_reached[to], true) {
                        reached.by[to] = Some((from, mover));
                        queue.push_back(to);
                    }
                }
            }
        }
        reached
    }

    /// Whether calls of a source may be served by a region: at home, unless a drain has ended, or in its rings.
    fn may_use(&self, source: usize, to: usize, rings: usize) -> bool {
        if source == to {
            return self.problem.serves(to) && self.problem.keep[to] >= self.least_keep;
        }
        self.problem.accepts(to) && self.problem.rings.ring(source, to).is_some_and(|ring| ring <= rings)
    }

    /// The class of a source that is moved first from a region, and how many calls per second of it may be.
    fn movable(&self, source: usize, from: usize) -> (usize, f64) {
        let rate = |class: usize| {
            let pinned = if source == from { self.problem.pinned(source, class) } else { 0.0 };
            self.flows.get(source, class, from) - pinned
        };
        let mut classes = (0..self.problem.classes).rev().map(|class| (class, rate(class)));
        // Rests of earlier steps are too small to be moved by themselves.
        let large = |(class, rate): &(usize, f64)| *rate > NOTHING * self.problem.demand(source, *class);
        classes.find(large).unwrap_or((0, 0.0))
    }

    /// Room for calls of a class in a region, or calls of the least important one there that may make it.
    fn end(&self, region: usize, class: usize, (ceilings, least): (&[f64], f64)) -> Option<End> {
        let room = self.room(region, ceilings[region]);
        if room > least {
            return Some(End { region, drops: None, room });
        }
        let served = |drops: usize| {
            (0..self.problem.regions).map(|source| self.flows.get(source, drops, region)).sum::<f64>()
        };
        let mut lower = (class + 1..self.problem.classes).rev().map(|drops| (drops, served(drops)));
        let (drops, room) = lower.find(|(_, room)| *room > least)?;
        Some(End { region, drops: Some(drops), room })
    }
}

/// Room comes before calls that are dropped, and of those the least important ones come first.
fn rank(end: &End) -> usize {
    end.drops.unwrap_or(usize::MAX)
}

impl Reached {
    /// The moves that make room in the first region of the path to `end`, the last one first: from where, whose, and to where.
    fn path(&self, end: usize) -> Vec<(usize, usize, usize)> {
        let mut path = Vec::new();
        let mut to = end;
        while let Some((from, mover)) = self.by[to] {
            path.push((from, mover, to));
            to = from;
        }
        path
    }
}
