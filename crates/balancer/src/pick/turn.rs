use super::{Contest, GAMMA, Generator, Group, Handicap, Standing, Witness};

impl Contest<'_> {
    /// In turn, by weight, skipping those that something speaks against.
    ///
    /// Equal weights: position `turn mod n`. Else `turn * GAMMA` (wrapping), as a fraction of 2^64, of the running totals:
    /// steps of the golden ratio come to every endpoint in proportion to its weight and as evenly spread as can be, and
    /// need no state but the turn. Callers begin at turns of their own, or all would move in step.
    pub(super) fn in_turn<W: Witness>(
        &self,
        group: &Group<'_>,
        random: &mut Generator,
        witness: &mut W,
    ) -> Option<Standing> {
        if group.is_empty() {
            return None;
        }
        let first = group.in_turn(self.slots.turn(), GAMMA);
        for step in 0..group.len() {
            let standing = self.standing(group, (first + step) % group.len());
            witness.considered(&standing);
            if standing.handicap == Handicap::None {
                return Some(standing);
            }
        }
        self.best(group, random, witness)
    }
}
