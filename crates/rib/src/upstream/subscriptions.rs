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
        (self.compared, self.introduced) = (None, false);
    }

    /// What to ask for so that what was asked is what is wanted. Returns the prefixes for which one watch has no room;
    /// asking for them would end it.
    pub(super) fn reconcile(
        &mut self,
        wanted: &Wanted,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
        if let Some(about) = wanted.about.as_ref().filter(|_| !self.introduced) {
            self.introduced = true;
            outbox.push_back(request(Kind::About(about.into())));
        }
        match self.compared.replace(wanted.changes) {
            Some(compared) if compared == wanted.changes => Vec::new(),
            _ => self.compare(wanted, patches, outbox),
        }
    }

    fn compare(
        &mut self,
        wanted: &Wanted,
        patches: bool,
        outbox: &mut VecDeque<v1::WatchRequest>,
    ) -> Vec<Prefix> {
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
                    patches,
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

    /// Whether the present connection sends what changes at a key.
    pub(super) fn is_live(&self, key: &str) -> bool {
        covering(key).any(|prefix| self.asked.get(prefix).is_some_and(|asked| asked.live))
    }

    /// What is held of a key is not what the upstream sent: it is asked for anew over the next connection.
    pub(super) fn distrust(&mut self, key: &str) {
        for prefix in covering(key) {
            if let Some(asked) = self.asked.get_mut(prefix) {
                asked.held = None;
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
