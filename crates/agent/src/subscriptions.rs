//! What this machine's programs use, and how far it may be trusted. No lock, no clock: callers pass `now`.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{covering, follower::Freshness, server::MAX_PREFIXES};
use tokio::{sync::Notify, time::Instant};

/// How long a prefix is followed after its last user left: a program that restarts finds it warm.
const LINGER: Duration = Duration::from_secs(600);

/// Where there is no room, one in so many of those that nobody uses is given up.
const ROOM: usize = 64;

/// All subscriptions of the agent.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    all: BTreeMap<Prefix, Subscription>,
    /// How many of them nobody uses.
    idle: usize,
    /// How many of them age: while none does, which is most of the time, they need not be looked at for it.
    aging: usize,
}

#[derive(Debug, Default)]
struct Subscription {
    users: usize,
    /// How many maps are made of it.
    maps: usize,
    /// Whether the node holds it, for those who watch.
    in_node: bool,
    /// Since when nobody uses it.
    idle: Option<Instant>,
    standing: Freshness,
    /// Woken when the standing changes, where somebody waits for that.
    changed: Option<Arc<Notify>>,
}

/// What a claim means for the upstream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// It was followed already.
    Known,
    /// It was followed for a map alone, and the node is to hold it from now on.
    ForMaps,
    /// It is to be followed, in place of others that were idle where the bound was reached.
    New { instead_of: Vec<Prefix> },
    /// Every place is in use.
    NoRoom,
}

impl Subscriptions {
    pub(crate) fn claim(&mut self, prefix: &Prefix) -> Claimed {
        if let Some(known) = self.all.get_mut(prefix) {
            known.users += 1;
            self.idle -= usize::from(known.idle.take().is_some());
            let held = std::mem::replace(&mut known.in_node, true);
            return if held { Claimed::Known } else { Claimed::ForMaps };
        }
        let new = Subscription { users: 1, in_node: true, ..Subscription::default() };
        self.claim_new(prefix, new)
    }

    /// Follows a prefix that a map is made of.
    pub(crate) fn claim_for_map(&mut self, prefix: &Prefix) -> Claimed {
        if let Some(known) = self.all.get_mut(prefix) {
            known.maps += 1;
            self.idle -= usize::from(known.idle.take().is_some());
            return if known.in_node { Claimed::Known } else { Claimed::ForMaps };
        }
        self.claim_new(prefix, Subscription { maps: 1, ..Subscription::default() })
    }

    fn claim_new(&mut self, prefix: &Prefix, new: Subscription) -> Claimed {
        let mut instead_of = Vec::new();
        if self.all.len() >= MAX_PREFIXES {
            if self.idle == 0 {
                return Claimed::NoRoom;
            }
            instead_of = self.longest_idle();
        }
        self.all.insert(prefix.clone(), new);
        Claimed::New { instead_of }
    }

    /// Some that nobody uses, the longest idle: several at once, since all have to be looked at for it.
    fn longest_idle(&self) -> Vec<Prefix> {
        let idle = self.all.iter().filter_map(|(prefix, known)| {
            // First what holds nothing: what does may not come back.
            Some((known.standing.has_copy(), known.idle?, prefix))
        });
        let mut idle: Vec<_> = idle.collect();
        let some = idle.len().div_ceil(ROOM);
        idle.select_nth_unstable(some - 1);
        idle.into_iter().take(some).map(|(_, _, prefix)| prefix.clone()).collect()
    }

    /// Whether the node need not hold it any more, since a map alone is made of it.
    pub(crate) fn release(&mut self, prefix: &Prefix, now: Instant) -> bool {
        // One that found no room is not there.
        let Some(known) = self.all.get_mut(prefix) else { return false };
        known.users = known.users.saturating_sub(1);
        self.idle += usize::from(known.rest(now));
        if known.users == 0 && known.maps > 0 {
            known.in_node = false;
        }
        !known.in_node
    }

    pub(crate) fn release_for_map(&mut self, prefix: &Prefix, now: Instant) {
        if let Some(known) = self.all.get_mut(prefix) {
            known.maps = known.maps.saturating_sub(1);
            self.idle += usize::from(known.rest(now));
        }
    }

    /// Whether somebody may watch a key, or a prefix: the node holds it.
    pub(crate) fn in_node(&self, key: &str) -> bool {
        self.all.get(key).is_some_and(|known| known.in_node)
            || covering(key).any(|text| self.all.get(text).is_some_and(|known| known.in_node))
    }

    /// Takes a saved copy that is `age` old, held by the node or for maps.
    pub(crate) fn restore(&mut self, prefix: Prefix, now: Instant, age: Duration, in_node: bool) {
        self.remove(&prefix);
        let standing = Freshness::Held { at: now, age };
        (self.idle, self.aging) = (self.idle + 1, self.aging + 1);
        let restored = Subscription { in_node, idle: Some(now), standing, ..Subscription::default() };
        self.all.insert(prefix, restored);
    }

    pub(crate) fn remove(&mut self, prefix: &Prefix) {
        if let Some(mut known) = self.all.remove(prefix) {
            self.idle -= usize::from(known.idle.is_some());
            self.aging -= usize::from(known.standing.is_aging());
            known.wake();
        }
    }

    /// Prefixes that nobody has used for long enough. Of those with a copy, time counts only from when the upstream is
    /// there, `None` while it is away: a copy that is given up then cannot be had again.
    pub(crate) fn expired(&self, now: Instant, upstream: Option<Instant>) -> Vec<Prefix> {
        let is_old = |known: &Subscription| {
            let from = if known.standing.has_copy() { upstream } else { known.idle };
            let idle = known.idle.zip(from).map(|(idle, from)| idle.max(from));
            idle.is_some_and(|idle| now.duration_since(idle) >= LINGER)
        };
        let expired = |(prefix, known): &(&Prefix, &Subscription)| {
            known.idle.is_some() && (is_old(known) || upstream.is_some() && self.is_narrowed(prefix))
        };
        self.all.iter().filter(expired).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Whether those who used a folder went on to a part of it, as programs do that ask for all endpoints of a service at once
    /// and learn from its policy that those of their region are enough.
    fn is_narrowed(&self, prefix: &Prefix) -> bool {
        let after = (Bound::Excluded(prefix.as_str()), Bound::Unbounded);
        let mut below =
            self.all.range::<str, _>(after).take_while(|(other, _)| prefix.covers(other.as_str()));
        below.any(|(_, other)| other.idle.is_none() && other.standing.has_copy())
    }

    pub(crate) fn standing(&self, prefix: &Prefix) -> Option<&Freshness> {
        self.all.get(prefix).map(|known| &known.standing)
    }

    pub(crate) fn set(&mut self, prefix: &Prefix, standing: Freshness) {
        if let Some(known) = self.all.get_mut(prefix) {
            self.aging -= usize::from(known.standing.is_aging());
            self.aging += usize::from(standing.is_aging());
            known.standing = standing;
            known.wake();
        }
    }

    /// Woken when the standing of a prefix changes from now on; of one that is not followed, never.
    pub(crate) fn changes(&mut self, prefix: &Prefix) -> Arc<Notify> {
        let known = self.all.get_mut(prefix).map(|known| known.changed.get_or_insert_default());
        known.cloned().unwrap_or_default()
    }

    /// The upstream says that what it sends is `told` old at worst and ages, or no longer does where that is zero.
    pub(crate) fn contact(&mut self, told: Duration, now: Instant) {
        self.change_all(|standing| standing.set_age(told, now));
    }

    /// The upstream is away: what was followed ages, and refusals no longer hold.
    pub(crate) fn disconnected(&mut self, now: Instant) {
        self.change_all(|standing| standing.disconnected(now));
    }

    fn change_all(&mut self, change: impl Fn(&mut Freshness)) {
        for known in self.all.values_mut() {
            change(&mut known.standing);
            known.wake();
        }
        self.aging = self.all.values().filter(|known| known.standing.is_aging()).count();
    }

    pub(crate) fn age(&self, prefix: &Prefix, now: Instant) -> Duration {
        self.standing(prefix).map_or(Duration::ZERO, |standing| standing.age(now))
    }

    /// Whether any of them ages.
    pub(crate) fn any_ages(&self) -> bool {
        self.aging > 0
    }

    /// The age of the oldest that is held.
    pub(crate) fn oldest(&self, now: Instant) -> Duration {
        if !self.any_ages() {
            return Duration::ZERO;
        }
        self.all.values().map(|known| known.standing.age(now)).max().unwrap_or_default()
    }

    /// The subscriptions that a key belongs to.
    pub(crate) fn of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Prefix> {
        covering(key).filter_map(|text| self.all.get_key_value(text)).map(|(prefix, _)| prefix)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Subscription {
    /// Counts as idle from now on unless it is in use; returns whether that is new.
    fn rest(&mut self, now: Instant) -> bool {
        self.users + self.maps == 0 && self.idle.replace(now).is_none()
    }

    /// Wakes those who wait for a change of the standing.
    fn wake(&mut self) {
        if let Some(changed) = self.changed.take() {
            changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(number: usize) -> Prefix {
        Prefix::new(format!("/{number}/")).unwrap()
    }

    #[test]
    fn a_prefix_lingers_after_its_last_user_and_not_while_it_has_one() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        assert_eq!(all.claim(&prefix(1)), Claimed::New { instead_of: Vec::new() });
        assert_eq!(all.claim(&prefix(1)), Claimed::Known);
        all.release(&prefix(1), start);
        let expired = |all: &Subscriptions, now| all.expired(now, Some(start));
        assert!(expired(&all, start + 2 * LINGER).is_empty(), "one user is left");
        all.release(&prefix(1), start);
        assert!(expired(&all, start + LINGER / 2).is_empty());
        assert_eq!(expired(&all, start + LINGER), [prefix(1)]);
        all.claim(&prefix(1));
        assert!(expired(&all, start + 2 * LINGER).is_empty(), "used again");
    }

    #[test]
    fn a_copy_is_kept_while_the_upstream_is_away_and_for_as_long_as_ever_after() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        all.restore(prefix(1), start, LINGER, true);
        all.claim(&prefix(2));
        all.release(&prefix(2), start);
        assert_eq!(all.expired(start + 2 * LINGER, None), [prefix(2)], "of which there is nothing");
        all.remove(&prefix(2));
        let back = start + 3 * LINGER;
        assert!(all.expired(back + LINGER / 2, Some(back)).is_empty(), "nobody had time to use it");
        assert_eq!(all.expired(back + LINGER, Some(back)), [prefix(1)]);
    }

    #[test]
    fn what_a_map_alone_is_made_of_is_not_in_the_node() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        assert_eq!(all.claim_for_map(&prefix(1)), Claimed::New { instead_of: Vec::new() });
        assert!(!all.in_node("/1/key"));
        assert_eq!(all.claim(&prefix(1)), Claimed::ForMaps);
        assert!(all.in_node("/1/key"));
        assert_eq!(all.claim_for_map(&prefix(1)), Claimed::Known);
        assert!(all.release(&prefix(1), start), "maps alone are left");
        assert!(!all.in_node("/1/key"));
        all.release_for_map(&prefix(1), start);
        assert!(all.expired(start + 2 * LINGER, Some(start)).is_empty(), "one map is left");
        all.release_for_map(&prefix(1), start);
        assert_eq!(all.expired(start + 2 * LINGER, Some(start)), [prefix(1)]);
    }

    #[test]
    fn the_longest_idle_makes_room_and_what_is_used_never_does() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        (0..MAX_PREFIXES)
            .for_each(|i| assert_eq!(all.claim(&prefix(i)), Claimed::New { instead_of: Vec::new() }));
        let another = prefix(MAX_PREFIXES);
        assert_eq!(all.claim(&another), Claimed::NoRoom);
        assert_eq!(all.standing(&another), None);
        all.release(&prefix(7), start);
        all.release(&prefix(3), start + LINGER);
        assert_eq!(all.claim(&another), Claimed::New { instead_of: vec![prefix(7)] });
        all.remove(&prefix(7));
        all.set(&prefix(3), Freshness::Held { at: start, age: LINGER });
        all.release(&another, start + 2 * LINGER);
        let instead_of = vec![another];
        assert_eq!(
            all.claim(&prefix(7)),
            Claimed::New { instead_of },
            "a copy is worth more than an empty place"
        );
    }

    #[test]
    fn data_ages_from_the_moment_that_the_upstream_is_lost() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        let second = Duration::from_secs(1);
        all.restore(prefix(1), start, 10 * second, true);
        assert_eq!(
            all.age(&prefix(1), start + second),
            11 * second,
            "saved copies were old when they were read"
        );
        all.set(&prefix(1), Freshness::Followed { at: start + second, age: Duration::ZERO });
        assert_eq!(all.oldest(start + 5 * second), Duration::ZERO);
        all.disconnected(start + 6 * second);
        assert_eq!(all.oldest(start + 8 * second), 2 * second);
        assert!(all.oldest(start + 6 * second) > Duration::ZERO, "zero would say that it is followed");
    }

    #[test]
    fn data_ages_while_the_upstream_is_cut_off_from_its_own() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        let second = Duration::from_secs(1);
        all.claim(&prefix(1));
        all.claim(&prefix(2));
        all.set(&prefix(1), Freshness::Followed { at: start, age: Duration::ZERO });
        all.contact(second, start);
        assert_eq!(all.age(&prefix(1), start + 2 * second), 3 * second);
        assert_eq!(all.age(&prefix(2), start + 2 * second), Duration::ZERO, "nothing of it has come");
        all.contact(Duration::ZERO, start + 3 * second);
        assert_eq!(all.oldest(start + 4 * second), Duration::ZERO);
    }
}
