use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::{Cursor, Prefix, Revision};
use fairmesh_wire::v1::{self, watch_request::Kind};

use super::{Wanted, Wish};
use crate::{Update, covering, server::MAX_PREFIXES};

/// What was asked for, and how far each prefix is followed. Outlives connections.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    asked: BTreeMap<Prefix, Asked>,
    /// The last revision of all, on the present store.
    newest: Option<Revision>,
    acked: Option<Revision>,
    /// Whether the present connection knows what the reader is.
    introduced: bool,
    /// The wishes that were compared last over the present connection.
    compared: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    wish: u64,
    /// Whether it was asked for over the present connection.
    sent: bool,
    /// Where the reader stands with it.
    held: Option<Revision>,
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

impl Subscriptions {
    /// A new connection knows of nothing yet.
    pub(super) fn disconnected(&mut self) {
        self.asked.values_mut().for_each(|asked| (asked.sent, asked.live) = (false, false));
        (self.acked, self.compared, self.introduced) = (None, None, false);
    }

    /// What to ask for so that what was asked is what is wanted. Returns the prefixes for which one watch has no room;
    /// asking for them would end it.
    pub(super) fn reconcile(
        &mut self,
        wanted: &Wanted,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        if let Some(about) = wanted.about.as_ref().filter(|_| !self.introduced) {
            self.introduced = true;
            outbox.push_back(request(Kind::About(about.into())));
        }
        let mut left_out = Vec::new();
        if self.compared.replace(wanted.changes) != Some(wanted.changes) {
            left_out = self.compare(wanted, outbox);
        }
        if let Some(ack) = wanted.ack.filter(|ack| self.acked != Some(*ack)) {
            self.acked = Some(ack);
            outbox.push_back(request(Kind::Applied(Cursor::at(ack).into())));
        }
        left_out
    }

    fn compare(&mut self, wanted: &Wanted, outbox: &mut VecDeque<v1::WatchRequest>) -> Vec<Prefix> {
        let gone: Vec<Prefix> =
            self.asked.keys().filter(|prefix| !wanted.prefixes.contains_key(*prefix)).cloned().collect();
        for prefix in gone {
            self.asked.remove(&prefix);
            outbox.push_back(request(Kind::Unsubscribe(prefix.to_string())));
        }
        let (mut subscribes, mut left_out) = (Vec::new(), Vec::new());
        for (prefix, wish) in &wanted.prefixes {
            if self.asked.len() >= MAX_PREFIXES && !self.asked.contains_key(prefix) {
                left_out.push(prefix.clone());
                continue;
            }
            if let Some(held) = self.ask(prefix, *wish) {
                let from = held.map(|revision| Cursor::at(revision).into());
                subscribes.push(v1::Subscribe {
                    prefix: prefix.to_string(),
                    from,
                    more: true,
                    contact: true,
                });
            }
        }
        if let Some(last) = subscribes.last_mut() {
            last.more = false;
        }
        outbox.extend(subscribes.into_iter().map(|subscribe| request(Kind::Subscribe(subscribe))));
        left_out
    }

    /// From where to ask for a prefix; `None` where that was done.
    fn ask(&mut self, prefix: &Prefix, wish: Wish) -> Option<Option<Revision>> {
        let held = match self.asked.get(prefix) {
            Some(asked) if asked.wish == wish.number && asked.sent => return None,
            Some(asked) if asked.wish == wish.number => asked.held,
            // Given up in between, so that nothing is held any more but what the wish says.
            _ => wish.held,
        };
        self.asked.insert(prefix.clone(), Asked { wish: wish.number, sent: true, held, live: false });
        Some(held)
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
        // What is acknowledged before it was sent does not count with the sender. A reader that holds more than its
        // upstream does so when it connects, and must say it again once it is sent.
        self.acked = None;
        for prefix in entering(update) {
            if let Some(asked) = self.asked.get_mut(prefix) {
                asked.live = true;
            }
        }
        for asked in self.asked.values_mut().filter(|asked| asked.live) {
            asked.held = Some(update.revision);
        }
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
        let live = self.asked.iter().filter(|(_, asked)| asked.live).map(|(prefix, _)| prefix);
        for prefix in live.chain(entering(update)) {
            if let Some(held) = self.asked.get(prefix).and_then(|asked| asked.held).filter(later) {
                return Err(Lag::Backwards { prefix: prefix.clone(), held: held.number, offered });
            }
        }
        Ok(())
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
    use std::time::Duration;

    use fairmesh_model::StoreId;

    use super::*;
    use crate::Resumed;

    fn at(number: u64) -> Revision {
        Revision { store: StoreId(1), partition: 0, number }
    }

    fn acks(subscriptions: &mut Subscriptions, wanted: &Wanted) -> usize {
        let mut outbox = VecDeque::new();
        subscriptions.reconcile(wanted, &mut outbox);
        outbox.iter().filter(|ask| matches!(ask.kind, Some(Kind::Applied(_)))).count()
    }

    #[test]
    fn what_was_acknowledged_before_it_was_sent_is_acknowledged_again_after() {
        let prefix = Prefix::new("/a/").unwrap();
        let wish = Wish { number: 1, held: Some(at(7)) };
        let prefixes = [(prefix.clone(), wish)].into();
        let wanted = Wanted { prefixes, ack: Some(at(7)), about: None, changes: 1 };
        let mut subscriptions = Subscriptions::default();
        subscriptions.disconnected();
        assert_eq!(acks(&mut subscriptions, &wanted), 1);
        assert_eq!(acks(&mut subscriptions, &wanted), 0, "said once is enough");

        let mut resumed =
            Update { resumed: vec![Resumed { prefix, age: Duration::ZERO }], ..Update::empty(at(7)) };
        subscriptions.note(&mut resumed, false).unwrap();
        assert_eq!(acks(&mut subscriptions, &wanted), 1);
    }
}
