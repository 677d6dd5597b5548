use fairmesh_model::{
    BalancingPolicy,
    arith::{GAMMA, Generator},
};

use crate::{
    Group, Slots, Terms,
    learn::faded,
    rule::FINE_ONE,
    slots::{Load, aged},
};

mod score;
mod turn;

pub use score::SCORE_BITS;

/// Up to this many endpoints all are looked at: two of so few are often the wrong two.
pub const SCAN_UP_TO: usize = 4;

/// What a pick depends on beside the endpoints.
///
/// Where more of the endpoints than the rule allows are avoided for how they answer, nobody is (panic): the others could not
/// carry all, and what all complain of is seldom the endpoints' own fault.
#[derive(Clone, Copy, Debug)]
pub struct Contest<'a> {
    /// What this client knows of the endpoints.
    slots: &'a Slots,
    terms: Terms,
    avoid: &'a [u32],
    now: u64,
    panic: bool,
}

impl<'a> Contest<'a> {
    /// What this client knows of the endpoints, how the service is balanced, which endpoints this call tried already, and
    /// the nanoseconds of the clock that [`Slots::finish`] gets.
    #[inline]
    pub fn new(slots: &'a Slots, terms: Terms, avoid: &'a [u32], now: u64) -> Self {
        Self { slots, terms, avoid, now, panic: false }
    }
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

impl Handicap {
    #[inline]
    fn is_penalised(self) -> bool {
        matches!(self, Self::Penalised | Self::TriedAndPenalised)
    }
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
    /// Whether so many are avoided that penalties for answers do not count.
    pub panic: bool,
    /// Its score in 2^-[`SCORE_BITS`] requests on an ordinary endpoint; 0 where the policy has none.
    pub score: i64,
}

/// Sees what a pick considered; `()` does not look, and costs nothing.
pub trait Witness {
    /// A candidate that the pick looked at, in order.
    #[inline]
    fn considered(&mut self, _standing: &Standing) {}
}

impl Witness for () {}

/// Picks an endpoint by the contest's rule, or `None` from an empty group.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as for `stand`")]
pub fn pick<W: Witness>(
    group: &Group<'_>,
    contest: &Contest<'_>,
    random: &mut Generator,
    witness: &mut W,
) -> Option<Standing> {
    match contest.terms.policy {
        BalancingPolicy::Score | BalancingPolicy::BoundedHash => contest.duel(group, random, witness),
        // Whether this is a panic is known before the draw, and not only where somebody avoided was drawn: these take their
        // turns, or the best of all. It costs a look at all of them only while failures are held against many.
        _ if contest.panics(group) => {
            pick_unalarmed(group, &Contest { panic: true, ..*contest }, random, witness)
        }
        _ => pick_unalarmed(group, contest, random, witness),
    }
}

#[inline]
fn pick_unalarmed<W: Witness>(
    group: &Group<'_>,
    contest: &Contest<'_>,
    random: &mut Generator,
    witness: &mut W,
) -> Option<Standing> {
    match contest.terms.policy {
        BalancingPolicy::RoundRobin => contest.in_turn(group, random, witness),
        _ => contest.two_choices(group, random, witness),
    }
}

impl Contest<'_> {
    /// Up to [`SCAN_UP_TO`] endpoints: the best of all. Else two different ones are drawn by weight and the second wins
    /// only if it is strictly better (ServiceRouter §3.4, §3.4.2); where both are handicapped, the best of all. Equals share by weight.
    fn two_choices<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        if group.len() <= SCAN_UP_TO {
            return self.best(group, random, witness);
        }
        let first = group.sample(random);
        let second = group.sample_other(first, random);
        let (a, b) = (self.standing(group, first), self.standing(group, second));
        witness.considered(&a);
        witness.considered(&b);
        let winner = if self.beats(&b, &a) { b } else { a };
        if winner.handicap == Handicap::None {
            return Some(winner);
        }
        self.best_of_many(group, random, witness)
    }

    /// How the endpoint at `position` of the group stands.
    #[inline]
    fn standing(&self, group: &Group<'_>, position: usize) -> Standing {
        self.stand(group.indices()[position], group.weight(position))
    }

    /// How an endpoint stands.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "else it comes back through memory, piecemeal, and every pick stalls twice"
    )]
    pub fn stand(&self, index: u32, weight: u32) -> Standing {
        let Some(slot) = self.slots.slot(index) else {
            return Standing {
                index,
                weight,
                outstanding: 0,
                handicap: Handicap::None,
                panic: self.panic,
                score: 0,
            };
        };
        let load = slot.load();
        let score = match self.terms.policy {
            BalancingPolicy::Score | BalancingPolicy::BoundedHash => self.score(slot, load),
            BalancingPolicy::PeakEwma => self.expected_latency(slot, load),
            _ => 0,
        };
        let (penalised, more) = if load.troubled { self.penalty(index) } else { (false, 0) };
        let tried = !self.avoid.is_empty() && self.avoid.contains(&index);
        let handicap = match (tried, penalised) {
            (false, false) => Handicap::None,
            (false, true) => Handicap::Penalised,
            (true, false) => Handicap::Tried,
            (true, true) => Handicap::TriedAndPenalised,
        };
        Standing {
            index,
            weight,
            outstanding: slot.calls(),
            handicap,
            panic: self.panic,
            score: score + more,
        }
    }

    /// Whether an endpoint with failures is avoided, and what its score is raised by: one that returns from that counts as if
    /// up to one more request were there, which falls by and by.
    #[cold]
    fn penalty(&self, index: u32) -> (bool, i64) {
        let Some(trouble) = self.slots.trouble(index) else { return (false, 0) };
        let more = match self.terms.policy {
            BalancingPolicy::Score if !self.panic => {
                (trouble.missing(self.now) << (SCORE_BITS - 8)).cast_signed()
            }
            _ => 0,
        };
        (trouble.until(self.panic) > self.now, more)
    }

    /// Whether more of the group are avoided for how they answer than the rule allows.
    #[inline]
    fn panics(&self, group: &Group<'_>) -> bool {
        match self.slots.troubled() {
            0 => false,
            troubled => self.panics_over(group, troubled),
        }
    }

    /// The same where failures are held against so many. Looks through the group only where these could be too many of it.
    #[cold]
    fn panics_over(&self, group: &Group<'_>, troubled: u32) -> bool {
        let most = u64::from(self.slots.rule().most_percent) * group.len() as u64;
        if u64::from(troubled) * 100 <= most {
            return false;
        }
        let troubled = group
            .indices()
            .iter()
            .filter(|&&index| self.slots.slot(index).is_some_and(|slot| slot.load().troubled));
        let doubtful = troubled
            .filter_map(|&index| self.slots.trouble(index))
            .filter(|trouble| trouble.until(false) > self.now && trouble.until(true) <= self.now);
        doubtful.count() as u64 * 100 > most
    }

    /// Whether `a` is strictly better than `b`: less handicap, then less load as the policy has it.
    #[inline]
    fn beats(&self, a: &Standing, b: &Standing) -> bool {
        if a.handicap != b.handicap {
            return a.handicap < b.handicap;
        }
        match self.terms.policy {
            // Without the call to come: with it, of two idle endpoints the stronger would always win, on top of being
            // drawn more often, and a client with few calls would starve the weaker one.
            // a/v < b/w as a*w < b*v: exact, and below 2^64 since each factor is below 2^32.
            BalancingPolicy::LeastRequest => {
                u64::from(a.outstanding) * u64::from(b.weight)
                    < u64::from(b.outstanding) * u64::from(a.weight)
            }
            BalancingPolicy::PeakEwma | BalancingPolicy::Score | BalancingPolicy::BoundedHash => {
                a.score < b.score
            }
            BalancingPolicy::RoundRobin | BalancingPolicy::Random => false,
        }
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
                Some(best) if self.beats(&best, &standing) => {}
                Some(best) if !self.beats(&standing, &best) => {
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

#[cfg(test)]
mod tests;
