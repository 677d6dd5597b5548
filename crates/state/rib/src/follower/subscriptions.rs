use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairmesh_model::{Cursor, Prefix, Revision};
use fairmesh_wire::v1::{self, watch_request::Kind};

use super::{DesiredSubscription, DesiredSubscriptions};
use crate::{PeerInfo, Update, covering, followed_prefixes::MAX_PREFIXES};

/// The requested subscriptions with their revisions. Kept across connections.
#[derive(Debug)]
pub(super) struct Subscriptions {
    /// Maximum number of prefixes in one watch.
    limit: usize,
    subscriptions: BTreeMap<Prefix, Subscription>,
    /// Latest revision of any subscription to the current store.
    newest: Option<Revision>,
    /// Description of this process, as sent on the current connection.
    described: Option<PeerInfo>,
    /// Desired prefixes beyond the limit.
    over_limit: BTreeSet<Prefix>,
    /// Prefixes that the current connection refused, with its reasons.
    refused: BTreeMap<Prefix, String>,
    /// Revision of all live prefixes; every update advances it.
    live_at: Option<Revision>,
}

#[derive(Clone, Debug)]
struct Subscription {
    desired: u64,
    /// Whether the prefix was requested on the current connection.
    sent: bool,
    /// Revision of the copy, unless the prefix is live.
    held: Option<Box<Revision>>,
    /// Whether the current connection sends changes of the prefix.
    live: bool,
}

/// Reason why an upstream is no longer followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StaleUpstream {
    #[error("it is at revision {offered}, behind revision {held} that was seen before; it will be retried")]
    Behind { held: u64, offered: u64 },
    #[error(
        "it is at revision {offered} of its store, and the local copy at {held}: it sends no changes before it is there too; if \
         that store was restored from a copy, start its control plane once with --new-store-id"
    )]
    Waiting { held: u64, offered: u64 },
    #[error(
        "it went back from revision {held} of {prefix} to {offered} on one store; if that store was restored from a \
         copy, start its control plane once with --new-store-id"
    )]
    Backwards { prefix: Prefix, held: u64, offered: u64 },
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self {
            limit: MAX_PREFIXES,
            subscriptions: BTreeMap::new(),
            newest: None,
            described: None,
            over_limit: BTreeSet::new(),
            refused: BTreeMap::new(),
            live_at: None,
        }
    }
}

impl Subscriptions {
    /// Resets the connection's state: a new connection has no subscriptions yet.
    pub(super) fn disconnected(&mut self) {
        for subscription in self.subscriptions.values_mut() {
            if std::mem::take(&mut subscription.live) {
                subscription.held = self.live_at.map(Box::new);
            }
            subscription.sent = false;
        }
        (self.live_at, self.described) = (None, None);
        self.over_limit.clear();
        self.refused.clear();
    }

    /// Requests the difference between desired and requested subscriptions. Returns the prefixes beyond the limit of
    /// one watch, which are not requested because that would end the watch.
    pub(super) fn reconcile(
        &mut self,
        wanted: &mut DesiredSubscriptions,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        if let Some(info) = wanted.peer.as_ref().filter(|info| self.described.as_ref() != Some(info)) {
            self.described = Some(info.clone());
            outbox.push_back(request(Kind::PeerInfo(info.into())));
        }
        let changed = wanted.changed.replace(BTreeSet::new());
        // All prefixes are compared once per connection.
        let all = || wanted.prefixes.keys().chain(self.subscriptions.keys()).cloned().collect();
        let changed = changed.unwrap_or_else(all);
        if changed.is_empty() {
            return Vec::new();
        }
        self.compare(changed, wanted, patches, outbox)
    }

    fn compare(
        &mut self,
        mut changed: BTreeSet<Prefix>,
        wanted: &DesiredSubscriptions,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        for prefix in changed.iter().filter(|prefix| !wanted.prefixes.contains_key(*prefix)) {
            self.over_limit.remove(prefix);
            self.refused.remove(prefix);
            if self.subscriptions.remove(prefix).is_some() {
                outbox.push_back(request(Kind::Unsubscribe(prefix.to_string())));
            }
        }
        if self.subscriptions.len() < self.limit {
            changed.append(&mut self.over_limit);
        }
        let (mut subscribes, mut over_limit) = (Vec::new(), Vec::new());
        for (prefix, desired) in changed.iter().filter_map(|prefix| wanted.prefixes.get_key_value(prefix)) {
            if self.subscriptions.len() >= self.limit && !self.subscriptions.contains_key(prefix) {
                over_limit.push(prefix.clone());
                continue;
            }
            if let Some(held) = self.request_from(prefix, desired) {
                self.refused.remove(prefix);
                subscribes.push(subscribe(prefix, held, patches));
            }
        }
        outbox.extend(requested_together(subscribes));
        self.over_limit.extend(over_limit.iter().cloned());
        over_limit
    }

    /// Returns the revision from which to request a prefix; `None` if the prefix is already requested.
    fn request_from(&mut self, prefix: &Prefix, desired: &DesiredSubscription) -> Option<Option<Revision>> {
        let held = match self.subscriptions.get(prefix) {
            Some(subscription) if subscription.desired == desired.number && subscription.sent => return None,
            Some(subscription) if subscription.desired == desired.number => subscription.held.clone(),
            // The prefix was unsubscribed meanwhile, so only the copy of the new subscription counts.
            _ => desired.held.clone(),
        };
        let from = held.as_deref().copied();
        self.subscriptions
            .insert(prefix.clone(), Subscription { desired: desired.number, sent: true, held, live: false });
        Some(from)
    }

    /// Returns the requests that end every subscription of the current connection.
    pub(super) fn unsubscribe_all(&self) -> impl Iterator<Item = v1::WatchRequest> + '_ {
        self.subscriptions.keys().map(|prefix| request(Kind::Unsubscribe(prefix.to_string())))
    }

    /// Returns the latest revision of the copies for which the current connection sends no changes.
    pub(super) fn latest_copy(&self) -> Option<u64> {
        self.subscriptions.values().filter_map(|one| one.held.as_deref()).map(|held| held.number).max()
    }

    /// Whether the current connection sends changes of a key.
    pub(super) fn is_live(&self, key: &str) -> bool {
        covering(key)
            .any(|prefix| self.subscriptions.get(prefix).is_some_and(|subscription| subscription.live))
    }

    /// Records that a prefix was refused. Its copy may be dropped, so the next request asks for the whole prefix.
    /// Returns whether the refusal or its reason is new. Details of a reason may alternate, such as the addresses that the
    /// upstream tries in turn.
    pub(super) fn refused(&mut self, prefix: &Prefix, reason: &str) -> bool {
        let Some(subscription) = self.subscriptions.get_mut(prefix) else { return true };
        (subscription.held, subscription.live) = (None, false);
        let before = self.refused.insert(prefix.clone(), reason.to_owned());
        let without_details = |reason: &str| reason.split(": ").next().map(str::to_owned);
        before.is_none_or(|before| without_details(&before) != without_details(reason))
    }

    /// The refused prefixes with the reasons.
    pub(super) fn all_refused(&self) -> &BTreeMap<Prefix, String> {
        &self.refused
    }

    /// Requests all refused prefixes again.
    pub(super) fn retry_refused(&self, patches: bool) -> impl Iterator<Item = v1::WatchRequest> + use<> {
        requested_together(self.refused.keys().map(|prefix| subscribe(prefix, None, patches)).collect())
    }

    /// Requests all prefixes of a key again on the next connection, because the copy of the key differs from the
    /// upstream's value.
    pub(super) fn invalidate(&mut self, key: &str) {
        for prefix in covering(key) {
            if let Some(subscription) = self.subscriptions.get_mut(prefix) {
                (subscription.held, subscription.live) = (None, false);
            }
        }
    }

    /// Records the revision of an update, and removes unsubscribed prefixes from the update.
    ///
    /// # Errors
    /// When the update would take the reader back to an earlier revision of its store; nothing is recorded then.
    pub(super) fn record(&mut self, update: &mut Update, refuse_lagging: bool) -> Result<(), StaleUpstream> {
        let Revision { store, number, .. } = update.revision;
        update.snapshots.retain(|snapshot| self.subscriptions.contains_key(&snapshot.prefix));
        update.resumed.retain(|resumed| self.subscriptions.contains_key(&resumed.prefix));
        self.check(update, refuse_lagging)?;
        for prefix in entering(update) {
            if let Some(subscription) = self.subscriptions.get_mut(prefix) {
                (subscription.live, subscription.held) = (true, None);
                self.refused.remove(prefix);
            }
        }
        self.live_at = Some(update.revision);
        if self.newest.is_none_or(|newest| newest.store != store || newest.number < number) {
            self.newest = Some(update.revision);
        }
        let followed = |key: &str| covering(key).any(|prefix| self.subscriptions.contains_key(prefix));
        update.puts.retain(|(key, _)| followed(key));
        update.deletes.retain(|key| followed(key));
        Ok(())
    }

    fn check(&self, update: &Update, refuse_lagging: bool) -> Result<(), StaleUpstream> {
        let Revision { store, number: offered, .. } = update.revision;
        let later = |held: &Revision| held.store == store && held.number > offered;
        if refuse_lagging && let Some(held) = self.newest.filter(later) {
            return Err(StaleUpstream::Behind { held: held.number, offered });
        }
        let live = || {
            self.subscriptions.iter().find(|(_, subscription)| subscription.live).map(|(prefix, _)| prefix)
        };
        let went_back = self.live_at.filter(later).and_then(|held| Some((live()?, held)));
        let held = |prefix| Some((prefix, self.held(prefix).filter(later)?));
        match went_back.or_else(|| entering(update).find_map(held)) {
            None => Ok(()),
            Some((prefix, held)) => {
                Err(StaleUpstream::Backwards { prefix: prefix.clone(), held: held.number, offered })
            }
        }
    }

    /// Returns the revision of the copy of a prefix.
    fn held(&self, prefix: &Prefix) -> Option<Revision> {
        let subscription = self.subscriptions.get(prefix)?;
        if subscription.live { self.live_at } else { subscription.held.as_deref().copied() }
    }
}

/// Returns the prefixes that this update makes live.
fn entering(update: &Update) -> impl Iterator<Item = &Prefix> {
    let resumed = update.resumed.iter().map(|resumed| &resumed.prefix);
    update.snapshots.iter().map(|snapshot| &snapshot.prefix).chain(resumed)
}

fn subscribe(prefix: &Prefix, held: Option<Revision>, patches: bool) -> v1::Subscribe {
    let from = held.map(|revision| Cursor::at(revision).into());
    v1::Subscribe { prefix: prefix.to_string(), from, more: true, age_updates: true, patches }
}

/// Returns the requests of subscriptions that the upstream is to serve as one change.
fn requested_together(mut subscribes: Vec<v1::Subscribe>) -> impl Iterator<Item = v1::WatchRequest> {
    if let Some(last) = subscribes.last_mut() {
        last.more = false;
    }
    subscribes.into_iter().map(|subscribe| request(Kind::Subscribe(subscribe)))
}

fn request(kind: Kind) -> v1::WatchRequest {
    v1::WatchRequest { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(number: usize) -> Prefix {
        Prefix::new(format!("/{number}/")).unwrap()
    }

    /// Returns the requests sent, as `+` for subscribe and `-` for unsubscribe, and the prefixes beyond the limit.
    fn reconciled(all: &mut Subscriptions, wanted: &mut DesiredSubscriptions) -> (Vec<String>, Vec<Prefix>) {
        let mut outbox = VecDeque::new();
        let over_limit = all.reconcile(wanted, false, &mut outbox);
        let sent = outbox.into_iter().filter_map(|request| match request.kind? {
            Kind::Subscribe(subscribe) => Some(format!("+{}", subscribe.prefix)),
            Kind::Unsubscribe(prefix) => Some(format!("-{prefix}")),
            _ => None,
        });
        (sent.collect(), over_limit)
    }

    fn want(wanted: &mut DesiredSubscriptions, number: usize) {
        wanted.mark_changed(&prefix(number));
        wanted.prefixes.insert(prefix(number), DesiredSubscription { number: 1, held: None });
    }

    #[test]
    fn prefix_over_limit_is_subscribed_after_another_is_unsubscribed() {
        let mut all = Subscriptions { limit: 2, ..Subscriptions::default() };
        let mut wanted = DesiredSubscriptions::default();
        (1..=3).for_each(|number| want(&mut wanted, number));
        let both = ["+/1/".to_owned(), "+/2/".to_owned()];
        assert_eq!(reconciled(&mut all, &mut wanted), (both.to_vec(), vec![prefix(3)]));
        assert_eq!(reconciled(&mut all, &mut wanted), (vec![], vec![]), "requested once");
        wanted.prefixes.remove(&prefix(1));
        wanted.mark_changed(&prefix(1));
        let change = ["-/1/".to_owned(), "+/3/".to_owned()];
        assert_eq!(reconciled(&mut all, &mut wanted), (change.to_vec(), vec![]), "the free place is taken");
    }

    #[test]
    fn refused_prefix_is_requested_again_until_it_arrives_or_is_unsubscribed() {
        let (mut all, mut wanted) = (Subscriptions::default(), DesiredSubscriptions::default());
        (1..=3).for_each(|number| want(&mut wanted, number));
        reconciled(&mut all, &mut wanted);
        let again = |all: &Subscriptions| {
            let requests = all.retry_refused(false).map(|request| match request.kind {
                Some(Kind::Subscribe(subscribe)) => (subscribe.prefix, subscribe.more),
                other => panic!("{other:?}"),
            });
            requests.collect::<Vec<_>>()
        };
        assert!(again(&all).is_empty());
        let mut refuse = |number, at: &str| {
            all.refused(&prefix(number), &format!("no control plane answers: {at} refuses connections"))
        };
        let told = [refuse(1, "a"), refuse(2, "a"), refuse(2, "a"), refuse(2, "b")];
        assert_eq!(told, [true, true, false, false], "a repeated refusal is not news");
        assert!(all.refused(&prefix(2), "not permitted"), "another reason is");
        assert_eq!(again(&all), [("/1/".to_owned(), true), ("/2/".to_owned(), false)]);

        let revision = Revision { store: fairmesh_model::StoreId(1), partition: 0, number: 7 };
        let resumed = vec![crate::Resumed { prefix: prefix(1), age: Default::default() }];
        all.record(&mut Update { resumed, ..Update::empty(revision) }, true).unwrap();
        assert_eq!(again(&all), [("/2/".to_owned(), false)], "the first has arrived");
        wanted.prefixes.remove(&prefix(2));
        wanted.mark_changed(&prefix(2));
        reconciled(&mut all, &mut wanted);
        assert!(again(&all).is_empty());
        all.refused(&prefix(3), "no control plane answers");
        all.disconnected();
        assert!(again(&all).is_empty(), "the next connection requests every prefix");
    }

    #[test]
    fn follower_resumes_every_prefix_from_its_revision_after_reconnect() {
        let (mut all, mut wanted) = (Subscriptions::default(), DesiredSubscriptions::default());
        want(&mut wanted, 1);
        want(&mut wanted, 2);
        reconciled(&mut all, &mut wanted);
        let revision = Revision { store: fairmesh_model::StoreId(1), partition: 0, number: 7 };
        let resumed = vec![crate::Resumed { prefix: prefix(1), age: Default::default() }];
        all.record(&mut Update { resumed, ..Update::empty(revision) }, true).unwrap();
        all.record(&mut Update::empty(Revision { number: 9, ..revision }), true).unwrap();
        assert_eq!(reconciled(&mut all, &mut wanted), (vec![], vec![]));
        all.disconnected();
        wanted.changed = None;
        let mut outbox = VecDeque::new();
        all.reconcile(&mut wanted, false, &mut outbox);
        let from = outbox.iter().map(|request| match &request.kind {
            Some(Kind::Subscribe(subscribe)) => subscribe.from.as_ref().map(|from| from.numbers[&0]),
            other => panic!("{other:?}"),
        });
        assert_eq!(from.collect::<Vec<_>>(), [Some(9), None]);
        let lag = all.record(&mut Update::empty(Revision { number: 8, ..revision }), true);
        assert_eq!(lag, Err(StaleUpstream::Behind { held: 9, offered: 8 }));
    }
}
