use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairmesh_model::{Cursor, Prefix, Revision};
use fairmesh_wire::v1::{self, watch_request::Kind};

use super::{Wanted, Wish};
use crate::{Update, covering, server::MAX_PREFIXES};

/// What was asked for, and how far each prefix is followed. Outlives connections.
#[derive(Debug)]
pub(super) struct Subscriptions {
    /// How many one watch holds.
    most: usize,
    asked: BTreeMap<Prefix, Asked>,
    /// The last revision of all, on the present store.
    newest: Option<Revision>,
    /// Whether the present connection knows what the reader is.
    introduced: bool,
    /// Wishes for which there was no room.
    left_out: BTreeSet<Prefix>,
    /// Where the reader stands with all prefixes that are live: each update takes all of them on.
    live_at: Option<Revision>,
}

#[derive(Clone, Debug)]
struct Asked {
    wish: u64,
    /// Whether it was asked for over the present connection.
    sent: bool,
    /// Where the reader stands with it, unless it is live.
    held: Option<Box<Revision>>,
    /// Whether the present connection sends what changes.
    live: bool,
}

/// Why an upstream cannot be followed further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lag {
    #[error(
        "it is at revision {offered}, behind revision {held} that was seen before; it will be asked again"
    )]
    Behind { held: u64, offered: u64 },
    #[error(
        "it went back from revision {held} of {prefix} to {offered} on one store; if that store was restored from a copy, start its control plane once with --new-store-id"
    )]
    Backwards { prefix: Prefix, held: u64, offered: u64 },
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self {
            most: MAX_PREFIXES,
            asked: BTreeMap::new(),
            newest: None,
            introduced: false,
            left_out: BTreeSet::new(),
            live_at: None,
        }
    }
}

impl Subscriptions {
    /// A new connection knows of nothing yet.
    pub(super) fn disconnected(&mut self) {
        for asked in self.asked.values_mut() {
            if std::mem::take(&mut asked.live) {
                asked.held = self.live_at.map(Box::new);
            }
            asked.sent = false;
        }
        (self.live_at, self.introduced) = (None, false);
        self.left_out.clear();
    }

    /// What to ask for so that what was asked is what is wanted. Returns the prefixes for which one watch has no room;
    /// asking for them would end it.
    pub(super) fn reconcile(
        &mut self,
        wanted: &mut Wanted,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        if let Some(about) = wanted.about.as_ref().filter(|_| !self.introduced) {
            self.introduced = true;
            outbox.push_back(request(Kind::About(about.into())));
        }
        let changed = wanted.changed.replace(BTreeSet::new());
        // All of them, once a connection.
        let all = || wanted.prefixes.keys().chain(self.asked.keys()).cloned().collect();
        let changed = changed.unwrap_or_else(all);
        if changed.is_empty() {
            return Vec::new();
        }
        self.compare(changed, wanted, patches, outbox)
    }

    fn compare(
        &mut self,
        mut changed: BTreeSet<Prefix>,
        wanted: &Wanted,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        for prefix in changed.iter().filter(|prefix| !wanted.prefixes.contains_key(*prefix)) {
            self.left_out.remove(prefix);
            if self.asked.remove(prefix).is_some() {
                outbox.push_back(request(Kind::Unsubscribe(prefix.to_string())));
            }
        }
        if self.asked.len() < self.most {
            changed.append(&mut self.left_out);
        }
        let (mut subscribes, mut left_out) = (Vec::new(), Vec::new());
        for (prefix, wish) in changed.iter().filter_map(|prefix| wanted.prefixes.get_key_value(prefix)) {
            if self.asked.len() >= self.most && !self.asked.contains_key(prefix) {
                left_out.push(prefix.clone());
                continue;
            }
            if let Some(held) = self.ask(prefix, wish) {
                let from = held.map(|revision| Cursor::at(revision).into());
                subscribes.push(v1::Subscribe {
                    prefix: prefix.to_string(),
                    from,
                    more: true,
                    contact: true,
                    patches,
                });
            }
        }
        if let Some(last) = subscribes.last_mut() {
            last.more = false;
        }
        outbox.extend(subscribes.into_iter().map(|subscribe| request(Kind::Subscribe(subscribe))));
        self.left_out.extend(left_out.iter().cloned());
        left_out
    }

    /// From where to ask for a prefix; `None` where that was done.
    fn ask(&mut self, prefix: &Prefix, wish: &Wish) -> Option<Option<Revision>> {
        let held = match self.asked.get(prefix) {
            Some(asked) if asked.wish == wish.number && asked.sent => return None,
            Some(asked) if asked.wish == wish.number => asked.held.clone(),
            // Given up in between, so that nothing is held any more but what the wish says.
            _ => wish.held.clone(),
        };
        let from = held.as_deref().copied();
        self.asked.insert(prefix.clone(), Asked { wish: wish.number, sent: true, held, live: false });
        Some(from)
    }

    /// Whether the present connection sends what changes at a key.
    pub(super) fn is_live(&self, key: &str) -> bool {
        covering(key).any(|prefix| self.asked.get(prefix).is_some_and(|asked| asked.live))
    }

    /// What is held of a key is not what the upstream sent: it is asked for anew over the next connection.
    pub(super) fn distrust(&mut self, key: &str) {
        for prefix in covering(key) {
            if let Some(asked) = self.asked.get_mut(prefix) {
                (asked.held, asked.live) = (None, false);
            }
        }
    }

    /// Takes note of an update, and takes out of it what is no longer wanted.
    ///
    /// # Errors
    /// When it would take the reader back on its store; nothing is noted then.
    pub(super) fn note(&mut self, update: &mut Update, refuse_lagging: bool) -> Result<(), Lag> {
        let Revision { store, number, .. } = update.revision;
        update.snapshots.retain(|snapshot| self.asked.contains_key(&snapshot.prefix));
        update.resumed.retain(|resumed| self.asked.contains_key(&resumed.prefix));
        self.check(update, refuse_lagging)?;
        for prefix in entering(update) {
            if let Some(asked) = self.asked.get_mut(prefix) {
                (asked.live, asked.held) = (true, None);
            }
        }
        self.live_at = Some(update.revision);
        if self.newest.is_none_or(|newest| newest.store != store || newest.number < number) {
            self.newest = Some(update.revision);
        }
        let followed = |key: &str| covering(key).any(|prefix| self.asked.contains_key(prefix));
        update.puts.retain(|(key, _)| followed(key));
        update.deletes.retain(|key| followed(key));
        Ok(())
    }

    fn check(&self, update: &Update, refuse_lagging: bool) -> Result<(), Lag> {
        let Revision { store, number: offered, .. } = update.revision;
        let later = |held: &Revision| held.store == store && held.number > offered;
        if refuse_lagging && let Some(held) = self.newest.filter(later) {
            return Err(Lag::Behind { held: held.number, offered });
        }
        let live = || self.asked.iter().find(|(_, asked)| asked.live).map(|(prefix, _)| prefix);
        let went_back = self.live_at.filter(later).and_then(|held| Some((live()?, held)));
        let held = |prefix| Some((prefix, self.held(prefix).filter(later)?));
        match went_back.or_else(|| entering(update).find_map(held)) {
            None => Ok(()),
            Some((prefix, held)) => {
                Err(Lag::Backwards { prefix: prefix.clone(), held: held.number, offered })
            }
        }
    }

    /// Where the reader stands with a prefix.
    fn held(&self, prefix: &Prefix) -> Option<Revision> {
        let asked = self.asked.get(prefix)?;
        if asked.live { self.live_at } else { asked.held.as_deref().copied() }
    }
}

/// The prefixes that are live from this update on.
fn entering(update: &Update) -> impl Iterator<Item = &Prefix> {
    let resumed = update.resumed.iter().map(|resumed| &resumed.prefix);
    update.snapshots.iter().map(|snapshot| &snapshot.prefix).chain(resumed)
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

    /// What is asked for and given up, and what there is no room for, once these are wanted.
    fn reconciled(all: &mut Subscriptions, wanted: &mut Wanted) -> (Vec<String>, Vec<Prefix>) {
        let mut outbox = VecDeque::new();
        let left_out = all.reconcile(wanted, false, &mut outbox);
        let said = outbox.into_iter().filter_map(|request| match request.kind? {
            Kind::Subscribe(subscribe) => Some(format!("+{}", subscribe.prefix)),
            Kind::Unsubscribe(prefix) => Some(format!("-{prefix}")),
            _ => None,
        });
        (said.collect(), left_out)
    }

    fn want(wanted: &mut Wanted, number: usize) {
        wanted.note(&prefix(number));
        wanted.prefixes.insert(prefix(number), Wish { number: 1, held: None });
    }

    #[test]
    fn one_prefix_too_many_is_left_out_until_another_is_given_up() {
        let mut all = Subscriptions { most: 2, ..Subscriptions::default() };
        let mut wanted = Wanted::default();
        (1..=3).for_each(|number| want(&mut wanted, number));
        let both = ["+/1/".to_owned(), "+/2/".to_owned()];
        assert_eq!(reconciled(&mut all, &mut wanted), (both.to_vec(), vec![prefix(3)]));
        assert_eq!(reconciled(&mut all, &mut wanted), (vec![], vec![]), "said once");
        wanted.prefixes.remove(&prefix(1));
        wanted.note(&prefix(1));
        let change = ["-/1/".to_owned(), "+/3/".to_owned()];
        assert_eq!(
            reconciled(&mut all, &mut wanted),
            (change.to_vec(), vec![]),
            "a place that is given up is taken"
        );
    }

    #[test]
    fn a_new_connection_is_asked_for_all_and_from_where_the_reader_stands() {
        let (mut all, mut wanted) = (Subscriptions::default(), Wanted::default());
        want(&mut wanted, 1);
        want(&mut wanted, 2);
        reconciled(&mut all, &mut wanted);
        let revision = Revision { store: fairmesh_model::StoreId(1), partition: 0, number: 7 };
        let resumed = vec![crate::Resumed { prefix: prefix(1), age: Default::default() }];
        all.note(&mut Update { resumed, ..Update::empty(revision) }, true).unwrap();
        all.note(&mut Update::empty(Revision { number: 9, ..revision }), true).unwrap();
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
        let lag = all.note(&mut Update::empty(Revision { number: 8, ..revision }), true);
        assert_eq!(lag, Err(Lag::Behind { held: 9, offered: 8 }));
    }
}
