use fairmesh_model::arith::Generator;

use crate::{Group, Slots};

/// Up to this many endpoints all are looked at: two of so few are often the wrong two.
pub const SCAN_UP_TO: usize = 4;

/// What a pick depends on beside the endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Contest<'a> {
    /// What this client knows of the endpoints.
    pub slots: &'a Slots,
    /// Endpoints that this call tried already.
    pub avoid: &'a [u32],
    /// Nanoseconds of the clock that [`Slots::finish`] gets.
    pub now: u64,
}

/// What speaks against an endpoint; whoever carries less wins, whatever the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handicap {
    /// Nothing.
    None,
    /// Its last calls failed.
    Penalised,
    /// This very call tried it.
    Tried,
    /// Both.
    TriedAndPenalised,
}

/// One endpoint as a pick sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The endpoint.
    pub index: u32,
    /// Its weight.
    pub weight: u32,
    /// This client's calls under way there.
    pub outstanding: u32,
    /// What speaks against it.
    pub handicap: Handicap,
}

/// Sees what a pick considered; `()` does not look, and costs nothing.
pub trait Witness {
    /// A candidate that the pick looked at, in order.
    #[inline]
    fn considered(&mut self, _standing: &Standing) {}
}

impl Witness for () {}

/// Picks an endpoint, or `None` from an empty group.
///
/// Up to [`SCAN_UP_TO`] endpoints: the best of all. Else two different ones are drawn by weight and the second wins only
/// if it is strictly better (S13, S24); where both are handicapped, the best of all. Better is less handicap, then fewer
/// outstanding calls relative to weight; equals share by weight.
///
/// The load is `outstanding / weight`, without the call to come: with it, of two idle endpoints the stronger would always
/// win, on top of being drawn more often, and a client with few calls would starve the weaker one.
#[inline]
pub fn pick<W: Witness>(
    group: &Group<'_>,
    contest: &Contest<'_>,
    random: &mut Generator,
    witness: &mut W,
) -> Option<Standing> {
    if group.len() <= SCAN_UP_TO {
        return contest.best(group, random, witness);
    }
    let first = group.sample(random);
    let second = group.sample_other(first, random);
    let (a, b) = (contest.standing(group, first), contest.standing(group, second));
    witness.considered(&a);
    witness.considered(&b);
    let winner = if b.beats(&a) { b } else { a };
    if winner.handicap == Handicap::None {
        return Some(winner);
    }
    contest.best_of_many(group, random, witness)
}

impl Contest<'_> {
    /// How the endpoint at `position` of the group stands.
    #[inline]
    fn standing(&self, group: &Group<'_>, position: usize) -> Standing {
        self.stand(group.indices()[position], group.weight(position))
    }

    /// How an endpoint stands.
    #[inline]
    pub fn stand(&self, index: u32, weight: u32) -> Standing {
        let outstanding = self.slots.outstanding(index);
        let penalised = self.slots.penalised_until(index) > self.now;
        let handicap = match (self.avoid.contains(&index), penalised) {
            (false, false) => Handicap::None,
            (false, true) => Handicap::Penalised,
            (true, false) => Handicap::Tried,
            (true, true) => Handicap::TriedAndPenalised,
        };
        Standing { index, weight, outstanding, handicap }
    }

    /// The best of all by position; among equals each wins by its weight (reservoir sampling: the one at hand replaces
    /// the one kept when `below(weights of the equals so far, its own included)` is less than its weight).
    #[inline]
    fn best<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        let mut kept: Option<Standing> = None;
        let mut equals = 0;
        for position in 0..group.len() {
            let standing = self.standing(group, position);
            witness.considered(&standing);
            let weight = u64::from(standing.weight);
            match kept {
                Some(best) if best.beats(&standing) => {}
                Some(best) if !standing.beats(&best) => {
                    equals += weight;
                    if random.below(equals) < weight {
                        kept = Some(standing);
                    }
                }
                _ => (kept, equals) = (Some(standing), weight),
            }
        }
        kept
    }

    /// The same, kept out of the way of calls that need it seldom.
    #[cold]
    fn best_of_many<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        self.best(group, random, witness)
    }
}

impl Standing {
    /// Whether this one is strictly better.
    #[inline]
    pub fn beats(&self, other: &Self) -> bool {
        if self.handicap != other.handicap {
            return self.handicap < other.handicap;
        }
        // a/v < b/w as a*w < b*v: exact, and below 2^64 since each factor is below 2^32.
        u64::from(self.outstanding) * u64::from(other.weight)
            < u64::from(other.outstanding) * u64::from(self.weight)
    }
}

#[cfg(test)]
mod tests;
