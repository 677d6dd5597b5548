use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{Invalid, Prefix, Revision};
use fairmesh_wire::v1::{self, watch_response::Kind};

use crate::{Entry, Resumed, Snapshot, Update};

/// An event assembled from one or more messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// All changes of a revision; changes sent as patches are in `patches`.
    Update {
        update: Update,
        patches: Vec<Bytes>,
    },
    Refused {
        prefix: Prefix,
        reason: String,
    },
    AgeUpdate {
        age: Duration,
        /// Revision of the upstream, if the reader holds copies of later revisions.
        behind: Option<Revision>,
    },
    AckRequest {
        revision: Revision,
    },
}

/// Assembles the messages of one revision into an event.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    update: Option<Update>,
    patches: Vec<Bytes>,
    /// Whether the last snapshot is incomplete.
    snapshot_open: bool,
}

impl Assembler {
    /// Adds one message. Returns an event once all its messages are received.
    ///
    /// # Errors
    /// When the message violates the protocol.
    pub(super) fn push(&mut self, message: v1::WatchResponse) -> Result<Option<Event>, Invalid> {
        match message.kind {
            Some(Kind::Snapshot(part)) => self.snapshot(part)?,
            Some(Kind::Delta(delta)) => {
                let update = self.update_at(delta.revision)?;
                update.puts.extend(delta.puts.into_iter().map(entry));
                update.deletes.extend(delta.deletes.into_iter().map(Arc::from));
                self.patches.extend(delta.patches);
            }
            Some(Kind::Resumed(resumed)) => {
                let prefix = Prefix::new(resumed.prefix)?;
                let age = Duration::from_millis(resumed.age_ms);
                self.update_at(resumed.revision)?.resumed.push(Resumed { prefix, age });
            }
            Some(Kind::Refused(refused)) => {
                let prefix = Prefix::new(refused.prefix)?;
                return Ok(Some(Event::Refused { prefix, reason: refused.reason }));
            }
            Some(Kind::AgeUpdate(update)) => {
                let behind = update.behind.map(TryInto::try_into).transpose()?;
                return Ok(Some(Event::AgeUpdate { age: Duration::from_millis(update.age_ms), behind }));
            }
            Some(Kind::AckRequest(request)) => {
                let revision =
                    request.revision.ok_or_else(|| unexpected("ack_request.revision", "is missing"))?;
                return Ok(Some(Event::AckRequest { revision: revision.try_into()? }));
            }
            // The watch handles these messages at its start and end.
            Some(Kind::Hello(_) | Kind::Ended(_)) | None => {
                return Err(unexpected("kind", "is unknown to this release"));
            }
        }
        if message.more {
            return Ok(None);
        }
        if self.snapshot_open {
            return Err(unexpected("more", "is not set although a snapshot is not complete"));
        }
        let patches = std::mem::take(&mut self.patches);
        Ok(self.update.take().map(|update| Event::Update { update, patches }))
    }

    fn snapshot(&mut self, part: v1::Snapshot) -> Result<(), Invalid> {
        let prefix = Prefix::new(part.prefix)?;
        let continues = std::mem::replace(&mut self.snapshot_open, !part.last);
        let update = self.update_at(part.revision)?;
        let entries = part.entries.into_iter().map(entry);
        match update.snapshots.last_mut() {
            Some(snapshot) if continues && snapshot.prefix == prefix => snapshot.entries.extend(entries),
            Some(_) if continues => return Err(unexpected("snapshot.prefix", "changes between two parts")),
            _ => {
                let age = Duration::from_millis(part.age_ms);
                update.snapshots.push(Snapshot { prefix, entries: entries.collect(), age });
            }
        }
        Ok(())
    }

    fn update_at(&mut self, revision: Option<v1::Revision>) -> Result<&mut Update, Invalid> {
        let revision = revision.ok_or_else(|| unexpected("revision", "is missing"))?;
        let revision = Revision::try_from(revision).map_err(|e| e.within("revision"))?;
        let update = self.update.get_or_insert_with(|| Update::empty(revision));
        if update.revision == revision {
            Ok(update)
        } else {
            Err(unexpected("revision", "changes between messages that belong together"))
        }
    }
}

fn entry(entry: v1::Entry) -> (Arc<str>, Entry) {
    // Copied, because a slice would keep the whole message in memory.
    (entry.key.into(), Entry { value: Bytes::copy_from_slice(&entry.value), revision: entry.revision })
}

fn unexpected(field: &str, problem: &str) -> Invalid {
    Invalid::new(field, problem, "upgrade the older side")
}
