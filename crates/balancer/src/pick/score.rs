use super::{Contest, FINE_ONE, Generator, Group, Handicap, Load, Standing, Witness, aged, faded};
use crate::slots::Slot;

/// Bits of a score behind the point: those of a load and those of a cost.
pub const SCORE_BITS: u32 = Load::BITS + Load::COST_BITS;
/// The most that the call to come may cost: of two idle endpoints, the worse keeps some of the calls that it is drawn first
/// for, so that it is heard of.
const MOST_TO_COME: u32 = (7 << Load::COST_BITS) / 4;

impl Contest<'_> {
    /// Two different endpoints are drawn by weight (ServiceRouter §3.4, §3.4.2). The second takes the call with a probability that grows with
    /// its lead: `second.score + fraction of a request drawn < first.score`. So a lead of one request decides, a lead
    /// of a tenth moves a tenth of the calls: small and late differences shift shares smoothly instead of sending
    /// everybody to one endpoint, and where nothing differs, shares are by weight.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `stand`")]
    pub(super) fn duel<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        if group.len() < 2 {
            let only = (!group.is_empty()).then(|| self.standing(group, 0));
            only.iter().for_each(|only| witness.considered(only));
            return only;
        }
        let first = group.sample(random);
        let second = group.sample_other(first, random);
        let (a, b) = (self.standing(group, first), self.standing(group, second));
        witness.considered(&a);
        witness.considered(&b);
        if a.handicap.is_penalised() || b.handicap.is_penalised() {
            return self.alarmed_duel((first, second), group, random, witness);
        }
        let winner = if self.takes(&b, &a, random) { b } else { a };
        if winner.handicap == Handicap::None {
            return Some(winner);
        }
        self.duel_of_the_best(group, random, witness)
    }

    /// The same where one of the two positions is avoided: that may be a panic. They are looked at again, since what is handed
    /// over lies in memory, where every other pick would have to put it as well.
    #[cold]
    fn alarmed_duel<W: Witness>(
        &self,
        (first, second): (usize, usize),
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        if self.panics(group) {
            let unmoved = Contest { panic: true, ..*self };
            return unmoved.duel_of_the_best(group, random, witness);
        }
        let (a, b) = (self.standing(group, first), self.standing(group, second));
        let winner = if self.takes(&b, &a, random) { b } else { a };
        match winner.handicap {
            Handicap::None => Some(winner),
            _ => self.duel_of_the_best(group, random, witness),
        }
    }

    /// Whether the second endpoint takes the call from the first. Not the winner itself: picked here, it would be chosen
    /// between two places in memory and copied from there.
    #[inline]
    fn takes(&self, second: &Standing, first: &Standing, random: &mut Generator) -> bool {
        let fraction = (random.next() >> (64 - SCORE_BITS)) as i64;
        match second.handicap.cmp(&first.handicap) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => second.score + fraction < first.score,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// The same among those with the least against them. Taking the best of them was rejected: where much has failed, all
    /// callers would take the same one.
    #[cold]
    fn duel_of_the_best<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        let all = || (0..group.len()).map(|position| self.standing(group, position));
        all().for_each(|standing| witness.considered(&standing));
        let least = all().map(|standing| standing.handicap).min()?;
        let best = || all().filter(|standing| standing.handicap == least);
        let total: u64 = best().map(|standing| u64::from(standing.weight)).sum();
        let a = holder(best(), random.below(total))?;
        let others = || best().filter(|standing| standing.index != a.index);
        let b = holder(others(), random.below(total - u64::from(a.weight)));
        Some(b.filter(|b| self.takes(b, &a, random)).unwrap_or(a))
    }

    /// What a call to the endpoint would wait behind, in 2^-18 requests on an ordinary endpoint: this client's calls there
    /// for its weight, and the call to come, both times what a call costs there; and by how much the load of others is
    /// above the usual, aged by the time since the last report (Uber, assisted balancing).
    ///
    /// The age goes by the last report, not by the last pick: while calls go to a server that reports no more, its last
    /// word would else hold for ever. The call to come is not divided by the weight, since endpoints are drawn by it already.
    #[inline]
    pub(super) fn score(&self, slot: &Slot, load: Load) -> i64 {
        let age = slot.age(self.terms.tick(self.now));
        let mut cost = u32::from(load.cost);
        if age > self.terms.memory {
            let shift = FINE_ONE.ilog2() - Load::COST_BITS;
            cost = faded(cost << shift, age, self.terms.memory) >> shift;
        }
        let calls = (slot.own() * u64::from(load.ratio)) >> Load::RATIO_BITS;
        let own = calls * u64::from(cost) + (u64::from(cost.min(MOST_TO_COME)) << Load::BITS);
        own as i64 + (aged(load.excess.into(), age) << Load::COST_BITS)
    }

    /// The latency times the calls that would then be under way, for its weight. What has not answered for long counts as
    /// quick, to be heard of again, but never as much quicker than usual: a server that answers nothing would else get all.
    #[inline]
    pub(super) fn expected_latency(&self, slot: &Slot, load: Load) -> i64 {
        let usual = self.slots.pool.others() as i64;
        let latency = aged(load.excess.into(), slot.age(self.terms.tick(self.now))).max(usual / 4);
        let calls = (slot.own() + (1 << Load::BITS)) * u64::from(load.ratio);
        i64::try_from(calls).map_or(i64::MAX, |calls| calls.saturating_mul(latency))
    }
}

/// The endpoint whose stretch of the running totals holds `point`.
fn holder(mut standings: impl Iterator<Item = Standing>, point: u64) -> Option<Standing> {
    let mut end = 0;
    standings.find(|standing| {
        end += u64::from(standing.weight);
        point < end
    })
}
