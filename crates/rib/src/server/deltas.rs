use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_wire::watch;

use super::frames;
use crate::Update;

/// How many are kept. Watchers of one change are answered in one go, and few changes are under way at one time.
const KEPT: usize = 4;

/// The last deltas as they go over connections: one change is encoded once, however many watch it.
///
/// They are found by what they say. Keys of their own, such as the revision and the prefixes that are watched, were rejected:
/// what a watcher is sent depends on all that it has yet to see, and to compare that takes less time than to name it.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    last: Mutex<VecDeque<(Update, Bytes)>>,
}

impl Deltas {
    /// Whether others may be sent the same. What holds subscriptions' beginnings is of one watcher, and ages; what takes
    /// several messages is of one that fell behind.
    pub(super) fn shares(update: &Update) -> bool {
        update.snapshots.is_empty() && update.resumed.is_empty() && frames::fits(update)
    }

    /// The frame of an update that others may be sent.
    pub(super) fn frame(&self, update: Update) -> Bytes {
        // Nothing that runs under the lock panics.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, frame)) = last.iter().find(|(known, _)| *known == update) {
            return frame.clone();
        }
        let messages = frames::cut(update.clone(), |_| Duration::ZERO);
        let frame = Bytes::from(messages.iter().map(watch::frame).collect::<Vec<_>>().concat());
        last.truncate(KEPT - 1);
        last.push_front((update, frame.clone()));
        frame
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairmesh_model::{Revision, StoreId};

    use super::*;
    use crate::Entry;

    fn update(number: u64) -> Update {
        let put = (Arc::from("/a/1"), Entry { value: Bytes::from(number.to_string()), revision: number });
        Update { puts: vec![put], ..Update::empty(Revision { store: StoreId(1), partition: 0, number }) }
    }

    #[test]
    fn one_change_is_encoded_once_and_a_few_are_kept() {
        let deltas = Deltas::default();
        let first = deltas.frame(update(1));
        assert_eq!(deltas.frame(update(1)).as_ptr(), first.as_ptr(), "one piece of memory");
        let others: Vec<_> = (2..=KEPT as u64 + 1).map(|number| deltas.frame(update(number))).collect();
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(deltas.last.lock().unwrap().len(), KEPT);
        assert_eq!(deltas.frame(update(1)), first, "it says the same when it is encoded anew");
    }
}
