//! Subscriptions of the agent: their users, idle times and freshness. No lock, no clock: callers pass `now`.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use fairmesh_model::Prefix;
use fairmesh_rib::{covering, follower::Freshness, server::MAX_PREFIXES};
use tokio::{sync::Notify, time::Instant};

/// Time for which a prefix stays subscribed after its last user left, so that a restarted program finds it. The copy
/// on disk stays for longer.
const LINGER: Duration = Duration::from_secs(600);

/// Reciprocal of the fraction of idle subscriptions that is evicted at the limit.
const EVICTION_DIVISOR: usize = 64;

/// Multiple of the remaining prefixes that one caller may use. Alone it gets four fifths, which is three for each of a
/// proxy's 65,536 services. A dynamic threshold, as in shared switch buffers; first come, first served would let one
/// caller exclude all others.
const SHARE: usize = 4;
/// Prefixes reserved for callers that use at most [`MIN_OF_CALLER`].
const RESERVED: usize = MAX_PREFIXES / 16;
const MIN_OF_CALLER: usize = 64;

/// All subscriptions of the agent.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    all: BTreeMap<Prefix, Subscription>,
    /// Number of subscriptions that nothing uses.
    idle: usize,
    /// Number of aging subscriptions. While zero, [`oldest`](Self::oldest) need not scan.
    aging: usize,
}

#[derive(Debug, Default)]
struct Subscription {
    users: usize,
    /// Number of shard maps built from the prefix.
    maps: usize,
    /// Whether the node holds the prefix, for watchers.
    in_node: bool,
    /// Time since which the prefix has had no user; `None` while it is in use.
    idle: Option<Instant>,
    freshness: Freshness,
    /// Notified when the freshness changes. `None` while no watcher waits for this.
    changed: Option<Arc<Notify>>,
}

/// Result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The prefix was already subscribed.
    Known,
    /// The prefix was subscribed only for shard maps. The caller must load it into the node.
    MapsOnly,
    /// The prefix is new. The caller must subscribe to it, and drop the evicted ones.
    New { evicted: Vec<Prefix> },
    /// All [`MAX_PREFIXES`] are used, or the caller has used its share of them.
    LimitReached,
}

impl Subscriptions {
    /// Claims a prefix for a caller that already uses `held` other prefixes.
    pub(crate) fn claim(&mut self, prefix: &Prefix, held: usize) -> Claimed {
        let is_used = self.all.get(prefix).is_some_and(|known| known.idle.is_none());
        if !is_used && !self.may_use_another(held) {
            return Claimed::LimitReached;
        }
        if let Some(known) = self.all.get_mut(prefix) {
            known.users += 1;
            self.idle -= usize::from(known.idle.take().is_some());
            let held = std::mem::replace(&mut known.in_node, true);
            return if held { Claimed::Known } else { Claimed::MapsOnly };
        }
        let new = Subscription { users: 1, in_node: true, ..Subscription::default() };
        self.claim_new(prefix, new)
    }

    /// Whether a caller that uses `held` prefixes may claim one more that nobody uses.
    fn may_use_another(&self, held: usize) -> bool {
        let left = MAX_PREFIXES.saturating_sub(self.all.len() - self.idle);
        held < SHARE * left.saturating_sub(RESERVED) || held < MIN_OF_CALLER && left > 0
    }

    /// Claims a prefix for building a shard map.
    pub(crate) fn claim_for_map(&mut self, prefix: &Prefix) -> Claimed {
        if let Some(known) = self.all.get_mut(prefix) {
            known.maps += 1;
            self.idle -= usize::from(known.idle.take().is_some());
            return if known.in_node { Claimed::Known } else { Claimed::MapsOnly };
        }
        self.claim_new(prefix, Subscription { maps: 1, ..Subscription::default() })
    }

    fn claim_new(&mut self, prefix: &Prefix, new: Subscription) -> Claimed {
        let mut evicted = Vec::new();
        if self.all.len() >= MAX_PREFIXES {
            if self.idle == 0 {
                return Claimed::LimitReached;
            }
            evicted = self.longest_idle_prefixes();
        }
        self.all.insert(prefix.clone(), new);
        Claimed::New { evicted }
    }

    /// The subscriptions that have been idle for longest. Several are returned at once, since finding them requires a
    /// scan of all.
    fn longest_idle_prefixes(&self) -> Vec<Prefix> {
        let idle = self.all.iter().filter_map(|(prefix, known)| {
            // Subscriptions without a copy come first, since a copy may be irreplaceable.
            Some((known.freshness.has_copy(), known.idle?, prefix))
        });
        let mut idle: Vec<_> = idle.collect();
        let some = idle.len().div_ceil(EVICTION_DIVISOR);
        idle.select_nth_unstable(some - 1);
        idle.into_iter().take(some).map(|(_, _, prefix)| prefix.clone()).collect()
    }

    /// Removes a user. Returns whether only shard maps use the prefix, so that the node may drop it.
    pub(crate) fn release(&mut self, prefix: &Prefix, now: Instant) -> bool {
        // A refused claim left no subscription.
        let Some(known) = self.all.get_mut(prefix) else { return false };
        known.users = known.users.saturating_sub(1);
        self.idle += usize::from(known.mark_idle(now));
        if known.users == 0 && known.maps > 0 {
            known.in_node = false;
        }
        !known.in_node
    }

    pub(crate) fn release_for_map(&mut self, prefix: &Prefix, now: Instant) {
        if let Some(known) = self.all.get_mut(prefix) {
            known.maps = known.maps.saturating_sub(1);
            self.idle += usize::from(known.mark_idle(now));
        }
    }

    /// Whether the node holds a key or a prefix for watchers.
    pub(crate) fn in_node(&self, key: &str) -> bool {
        self.all.get(key).is_some_and(|known| known.in_node)
            || covering(key).any(|text| self.all.get(text).is_some_and(|known| known.in_node))
    }

    /// Whether the node has a key through a copy of a prefix other than this one.
    pub(crate) fn is_held_by_another(&self, prefix: &Prefix, key: &str) -> bool {
        let mut others = self.covering_prefixes(key).filter(|other| *other != prefix);
        others
            .any(|other| self.all.get(other).is_some_and(|known| known.in_node && known.freshness.has_copy()))
    }

    /// Restores a saved copy of age `age`, held by the node or for shard maps.
    pub(crate) fn restore(&mut self, prefix: Prefix, now: Instant, age: Duration, in_node: bool) {
        self.remove(&prefix);
        let freshness = Freshness::Held { at: now, age };
        (self.idle, self.aging) = (self.idle + 1, self.aging + 1);
        let restored = Subscription { in_node, idle: Some(now), freshness, ..Subscription::default() };
        self.all.insert(prefix, restored);
    }

    pub(crate) fn remove(&mut self, prefix: &Prefix) {
        if let Some(mut known) = self.all.remove(prefix) {
            self.idle -= usize::from(known.idle.is_some());
            self.aging -= usize::from(known.freshness.is_aging());
            known.wake();
        }
    }

    /// Prefixes that have been idle for [`LINGER`]. The idle time of a prefix with a copy counts only from when the
    /// upstream connected (`None`: disconnected), because a dropped copy could not be fetched again.
    pub(crate) fn expired(&self, now: Instant, upstream: Option<Instant>) -> Vec<Prefix> {
        let is_old = |known: &Subscription| {
            let from = if known.freshness.has_copy() { upstream } else { known.idle };
            let idle = known.idle.zip(from).map(|(idle, from)| idle.max(from));
            idle.is_some_and(|idle| now.duration_since(idle) >= LINGER)
        };
        let expired = |(prefix, known): &(&Prefix, &Subscription)| {
            known.idle.is_some() && (is_old(known) || upstream.is_some() && self.is_narrowed(prefix))
        };
        self.all.iter().filter(expired).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Whether the users of a prefix moved to a narrower one. Programs first request all endpoints of a service, and
    /// then learn from its policy that those of their region suffice.
    pub(crate) fn is_narrowed(&self, prefix: &Prefix) -> bool {
        let after = (Bound::Excluded(prefix.as_str()), Bound::Unbounded);
        let mut below =
            self.all.range::<str, _>(after).take_while(|(other, _)| prefix.covers(other.as_str()));
        below.any(|(_, other)| other.idle.is_none() && other.freshness.has_copy())
    }

    pub(crate) fn freshness(&self, prefix: &Prefix) -> Option<&Freshness> {
        self.all.get(prefix).map(|known| &known.freshness)
    }

    pub(crate) fn set(&mut self, prefix: &Prefix, freshness: Freshness) {
        if let Some(known) = self.all.get_mut(prefix) {
            self.aging -= usize::from(known.freshness.is_aging());
            self.aging += usize::from(freshness.is_aging());
            known.freshness = freshness;
            known.wake();
        }
    }

    /// Notified at the next change of a prefix's freshness; never for an unsubscribed prefix.
    pub(crate) fn changes(&mut self, prefix: &Prefix) -> Arc<Notify> {
        let known = self.all.get_mut(prefix).map(|known| known.changed.get_or_insert_default());
        known.cloned().unwrap_or_default()
    }

    /// Records that the upstream's data is `upstream_age` old and aging; zero means that it is current.
    pub(crate) fn contact(&mut self, upstream_age: Duration, now: Instant) {
        self.change_all(|freshness| freshness.set_age(upstream_age, now));
    }

    /// Records that the upstream is disconnected: its data ages from now on, and its refusals expire.
    pub(crate) fn disconnected(&mut self, now: Instant) {
        self.change_all(|freshness| freshness.disconnected(now));
    }

    fn change_all(&mut self, change: impl Fn(&mut Freshness)) {
        for known in self.all.values_mut() {
            change(&mut known.freshness);
            known.wake();
        }
        self.aging = self.all.values().filter(|known| known.freshness.is_aging()).count();
    }

    pub(crate) fn age(&self, prefix: &Prefix, now: Instant) -> Duration {
        self.freshness(prefix).map_or(Duration::ZERO, |freshness| freshness.age(now))
    }

    /// Whether the data of any subscription is aging.
    pub(crate) fn any_ages(&self) -> bool {
        self.aging > 0
    }

    /// The age of the oldest copy.
    pub(crate) fn oldest(&self, now: Instant) -> Duration {
        if !self.any_ages() {
            return Duration::ZERO;
        }
        self.all.values().map(|known| known.freshness.age(now)).max().unwrap_or_default()
    }

    /// Subscriptions whose prefix covers a key.
    pub(crate) fn covering_prefixes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Prefix> {
        covering(key).filter_map(|text| self.all.get_key_value(text)).map(|(prefix, _)| prefix)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Subscription {
    /// Marks the subscription idle unless it has a user. Returns whether it was marked just now.
    fn mark_idle(&mut self, now: Instant) -> bool {
        self.users + self.maps == 0 && self.idle.replace(now).is_none()
    }

    /// Wakes watchers that wait for a change of the freshness.
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
    fn prefix_subscription_expires_only_after_its_last_reader_left() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        assert_eq!(all.claim(&prefix(1), 0), Claimed::New { evicted: Vec::new() });
        assert_eq!(all.claim(&prefix(1), 0), Claimed::Known);
        all.release(&prefix(1), start);
        let expired = |all: &Subscriptions, now| all.expired(now, Some(start));
        assert!(expired(&all, start + 2 * LINGER).is_empty(), "one user is left");
        all.release(&prefix(1), start);
        assert!(expired(&all, start + LINGER / 2).is_empty());
        assert_eq!(expired(&all, start + LINGER), [prefix(1)]);
        all.claim(&prefix(1), 0);
        assert!(expired(&all, start + 2 * LINGER).is_empty(), "used again");
    }

    #[test]
    fn prefix_copy_does_not_expire_while_upstream_is_disconnected() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        all.restore(prefix(1), start, LINGER, true);
        all.claim(&prefix(2), 0);
        all.release(&prefix(2), start);
        assert_eq!(all.expired(start + 2 * LINGER, None), [prefix(2)], "it has no copy");
        all.remove(&prefix(2));
        let back = start + 3 * LINGER;
        assert!(all.expired(back + LINGER / 2, Some(back)).is_empty(), "no program had time to use it");
        assert_eq!(all.expired(back + LINGER, Some(back)), [prefix(1)]);
    }

    #[test]
    fn prefix_used_only_by_shard_maps_is_not_kept_in_node() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        assert_eq!(all.claim_for_map(&prefix(1)), Claimed::New { evicted: Vec::new() });
        assert!(!all.in_node("/1/key"));
        assert_eq!(all.claim(&prefix(1), 0), Claimed::MapsOnly);
        assert!(all.in_node("/1/key"));
        assert_eq!(all.claim_for_map(&prefix(1)), Claimed::Known);
        assert!(all.release(&prefix(1), start), "only maps are left");
        assert!(!all.in_node("/1/key"));
        all.release_for_map(&prefix(1), start);
        assert!(all.expired(start + 2 * LINGER, Some(start)).is_empty(), "one map is left");
        all.release_for_map(&prefix(1), start);
        assert_eq!(all.expired(start + 2 * LINGER, Some(start)), [prefix(1)]);
    }

    #[test]
    fn greedy_caller_leaves_subscription_slots_to_others() {
        let mut all = Subscriptions::default();
        let mut fill = |first: usize| {
            let claim = |held: &usize| all.claim(&prefix(first + held), *held) != Claimed::LimitReached;
            (0..MAX_PREFIXES).take_while(claim).count()
        };
        let services_of_a_proxy = 65_536;
        let greedy = fill(0);
        assert!(greedy >= 3 * services_of_a_proxy && greedy < MAX_PREFIXES * 7 / 8, "{greedy}");
        let mut used = greedy;
        for _ in 0..100 {
            used += fill(used);
        }
        assert!(used < MAX_PREFIXES);
        assert_eq!(fill(used), MIN_OF_CALLER);
        let known = prefix(0);
        assert_eq!(all.claim(&known, MAX_PREFIXES), Claimed::Known, "one in use costs nothing");
        all.release(&known, Instant::now());
        all.release(&known, Instant::now());
        assert_eq!(all.claim(&known, MAX_PREFIXES), Claimed::LimitReached, "an idle one does");
    }

    #[test]
    fn longest_idle_subscription_is_evicted_and_active_ones_never() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        (0..MAX_PREFIXES)
            .for_each(|i| assert_eq!(all.claim(&prefix(i), 0), Claimed::New { evicted: Vec::new() }));
        let another = prefix(MAX_PREFIXES);
        assert_eq!(all.claim(&another, 0), Claimed::LimitReached);
        assert_eq!(all.freshness(&another), None);
        all.release(&prefix(7), start);
        all.release(&prefix(3), start + LINGER);
        assert_eq!(all.claim(&another, 0), Claimed::New { evicted: vec![prefix(7)] });
        all.remove(&prefix(7));
        all.set(&prefix(3), Freshness::Held { at: start, age: LINGER });
        all.release(&another, start + 2 * LINGER);
        let evicted = vec![another];
        assert_eq!(all.claim(&prefix(7), 0), Claimed::New { evicted }, "one with a copy is evicted last");
    }

    #[test]
    fn data_age_grows_from_upstream_disconnection() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        let second = Duration::from_secs(1);
        all.restore(prefix(1), start, 10 * second, true);
        assert_eq!(all.age(&prefix(1), start + second), 11 * second, "saved copies keep their age");
        all.set(&prefix(1), Freshness::Followed { at: start + second, age: Duration::ZERO });
        assert_eq!(all.oldest(start + 5 * second), Duration::ZERO);
        all.disconnected(start + 6 * second);
        assert_eq!(all.oldest(start + 8 * second), 2 * second);
        assert!(all.oldest(start + 6 * second) > Duration::ZERO, "zero would mean current");
    }

    #[test]
    fn data_age_grows_while_upstream_has_lost_its_own_upstream() {
        let (mut all, start) = (Subscriptions::default(), Instant::now());
        let second = Duration::from_secs(1);
        all.claim(&prefix(1), 0);
        all.claim(&prefix(2), 0);
        all.set(&prefix(1), Freshness::Followed { at: start, age: Duration::ZERO });
        all.contact(second, start);
        assert_eq!(all.age(&prefix(1), start + 2 * second), 3 * second);
        assert_eq!(all.age(&prefix(2), start + 2 * second), Duration::ZERO, "it has not arrived yet");
        all.contact(Duration::ZERO, start + 3 * second);
        assert_eq!(all.oldest(start + 4 * second), Duration::ZERO);
    }
}
