use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::Prefix;

use crate::{Batch, Commit, Conflict, Entry, Expect, covering};

mod apply_update;
mod memory_size;
mod previous_values;

use previous_values::PreviousValues;

/// Minimum number of changes in a table's log. Watchers that return within the log need no snapshot.
pub const DEFAULT_LOG_LEN: usize = 100_000;
/// Number of entries per logged change in a large table. A log of this length costs less memory than the bandwidth of
/// the avoided snapshots, which are gigabytes for a watcher that was away for a minute.
const ENTRIES_PER_LOGGED_CHANGE: usize = 2;

/// The content of the routing information base, and the recently changed keys.
///
/// The log contains only keys: a returning watcher gets the latest value of each key.
#[derive(Clone, Debug)]
pub struct Table {
    entries: BTreeMap<Arc<str>, Entry>,
    revision: u64,
    log: VecDeque<(u64, Arc<str>)>,
    max_log: usize,
    /// Total number of changes.
    changes: u64,
    /// The log has every change after this revision.
    floor: u64,
    previous: PreviousValues,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(DEFAULT_LOG_LEN)
    }
}

impl Table {
    /// Creates an empty table. Its log holds at most `max_log` changes, or half the number of entries if that is
    /// greater.
    pub fn new(max_log: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            revision: 0,
            log: VecDeque::new(),
            max_log,
            changes: 0,
            floor: 0,
            previous: PreviousValues::default(),
        }
    }

    /// Loads the content of a store at `revision`. Watchers with an earlier revision then need snapshots.
    pub fn load(&mut self, revision: u64, entries: impl IntoIterator<Item = (Arc<str>, Entry)>) {
        self.restore(revision, revision, entries);
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the earliest revision from which a watcher can resume.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the entry at `key`.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Checks the preconditions of a batch.
    pub fn check(&self, batch: &Batch) -> Result<(), Conflict> {
        for op in &batch.ops {
            let found = self.get(&op.key).map(|entry| entry.revision);
            let holds = match op.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(revision) => found == Some(revision),
            };
            if !holds {
                let (key, expected, current) = (op.key.clone(), op.expect, self.revision);
                return Err(Conflict { key, expected, found, current });
            }
        }
        Ok(())
    }

    /// Applies a commit. If the commit is not newer than the table, changes nothing and returns false.
    pub fn apply(&mut self, commit: Commit) -> bool {
        let Commit { revision, changes } = commit;
        if revision <= self.revision {
            return false;
        }
        self.revision = revision;
        for (key, value) in changes {
            let entry = value.map(|value| Entry { value, revision });
            self.set(revision, key, entry);
        }
        true
    }

    /// Returns the first key at or after `from`.
    pub(crate) fn key_from(&self, from: &str) -> Option<&Arc<str>> {
        self.entries.range::<str, _>((Bound::Included(from), Bound::Unbounded)).next().map(|(key, _)| key)
    }

    /// Reads everything below the prefixes, ordered by key. Each key occurs once even if prefixes overlap.
    pub fn read(&self, prefixes: &[Prefix]) -> Vec<(Arc<str>, Entry)> {
        self.entries_below(prefixes).map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    /// Returns the entries copied by [`read`](Self::read). Each entry is visited once, so that a request for
    /// thousands of overlapping prefixes costs no more than a request for all records.
    pub(crate) fn entries_below<'a>(
        &'a self,
        prefixes: &'a [Prefix],
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Entry)> {
        let sorted: BTreeMap<&str, &Prefix> =
            prefixes.iter().map(|prefix| (prefix.as_str(), prefix)).collect();
        let is_covered = |text: &str| covering(text).any(|above| above != text && sorted.contains_key(above));
        let outermost: Vec<_> =
            sorted.iter().filter(|(text, _)| !is_covered(text)).map(|(_, prefix)| *prefix).collect();
        outermost.into_iter().flat_map(|prefix| self.below(prefix))
    }

    /// Returns every key that changed after `cursor`, in order and as often as it changed, with the revision of the
    /// change. `None` if the log does not reach back that far or the cursor is ahead of the table.
    pub(crate) fn changes_since(&self, cursor: u64) -> Option<impl Iterator<Item = &(u64, Arc<str>)>> {
        if cursor < self.floor || cursor > self.revision {
            return None;
        }
        let from = self.log.partition_point(|(revision, _)| *revision <= cursor);
        Some(self.log.range(from..))
    }

    /// Drops the log up to `revision`. Watchers with an earlier revision then need snapshots.
    pub fn compact_before(&mut self, revision: u64) {
        self.floor = self.floor.max(revision.min(self.revision));
        let gone = self.log.partition_point(|(revision, _)| *revision <= self.floor);
        self.log.drain(..gone);
    }

    /// Returns the entries below one prefix.
    pub(crate) fn below<'a>(&'a self, prefix: &'a Prefix) -> impl Iterator<Item = (&'a Arc<str>, &'a Entry)> {
        self.entries
            .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
            .take_while(|(key, _)| prefix.covers(key))
    }

    /// Restores copies that are at least as new as `revision` and at most as new as `floor`.
    pub(crate) fn restore(
        &mut self,
        revision: u64,
        floor: u64,
        entries: impl IntoIterator<Item = (Arc<str>, Entry)>,
    ) {
        self.entries = entries.into_iter().collect();
        self.log.clear();
        self.previous.clear(self.changes);
        (self.revision, self.floor) = (revision, floor);
    }

    /// Restores the log of the restored content: every change after `floor`, in order.
    pub(crate) fn restore_log(&mut self, log: impl IntoIterator<Item = (u64, Arc<str>)>) {
        for (revision, key) in log {
            self.log_change(revision, key);
        }
    }

    /// Returns the total number of changes, and the maximum number of changes in the log.
    pub(crate) fn changes(&self) -> (u64, usize) {
        (self.changes, self.max_log())
    }

    fn max_log(&self) -> usize {
        self.max_log.max(self.entries.len() / ENTRIES_PER_LOGGED_CHANGE)
    }

    /// Advances the revision without a change.
    pub(crate) fn advance(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// Writes one key and logs the change.
    pub(crate) fn set(&mut self, revision: u64, key: Arc<str>, entry: Option<Entry>) {
        self.log_change(revision, key.clone());
        self.previous.replaced(self.changes, &key, self.entries.get(&key));
        match entry {
            Some(entry) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        };
    }

    /// Remembers replaced values from now on, as bases of patches.
    pub(crate) fn keep_previous_values(&mut self) {
        self.previous.keep(self.changes);
    }

    /// Returns the remembered values of keys that changed after change number `changes`, as they were before these
    /// changes.
    pub(crate) fn previous(&self, changes: u64) -> HashMap<&str, Option<&Entry>> {
        self.previous.at(changes)
    }

    fn log_change(&mut self, revision: u64, key: Arc<str>) {
        self.changes += 1;
        self.log.push_back((revision, key));
        while self.log.len() > self.max_log()
            && let Some((oldest, _)) = self.log.pop_front()
        {
            // The remaining changes of this revision in the log are incomplete.
            self.floor = oldest;
        }
    }

    /// Removes a key without watchers, and logs no change.
    pub(crate) fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Op;

    fn commit(revision: u64, keys: &[&str]) -> Commit {
        let changes = keys.iter().map(|key| ((*key).into(), Some(Bytes::from_static(b"v")))).collect();
        Commit { revision, changes }
    }

    fn since(table: &Table, cursor: u64) -> Option<Vec<&str>> {
        table.changes_since(cursor).map(|changes| changes.map(|(_, key)| &**key).collect())
    }

    #[test]
    fn failed_write_precondition_names_current_revision() {
        let mut table = Table::default();
        table.apply(commit(3, &["/a"]));
        let check =
            |key: &str, expect| table.check(&Batch { ops: vec![Op::put(key, "x").expecting(expect)] });
        assert_eq!(check("/a", Expect::Revision(3)), Ok(()));
        assert_eq!(check("/b", Expect::Absent), Ok(()));
        assert_eq!(check("/a", Expect::Absent).unwrap_err().found, Some(3));
        assert_eq!(check("/b", Expect::Revision(3)).unwrap_err().found, None);
    }

    #[test]
    fn repeated_commit_changes_no_table_row() {
        let mut table = Table::default();
        assert!(table.apply(commit(2, &["/a"])));
        assert!(!table.apply(commit(2, &["/b"])));
        assert_eq!((table.revision(), table.get("/b")), (2, None));
    }

    #[test]
    fn table_log_resumes_within_its_limit_and_never_inside_commit() {
        let mut table = Table::new(3);
        table.apply(commit(1, &["/a", "/b"]));
        table.apply(commit(2, &["/c"]));
        assert_eq!(since(&table, 0), Some(vec!["/a", "/b", "/c"]));
        table.apply(commit(3, &["/d"]));
        assert_eq!(since(&table, 0), None, "/a left the log, so revision 1 is incomplete");
        assert_eq!(since(&table, 1), Some(vec!["/c", "/d"]));
        table.compact_before(3);
        assert_eq!((since(&table, 2), since(&table, 3), since(&table, 4)), (None, Some(vec![]), None));
    }

    #[test]
    fn snapshot_of_overlapping_prefixes_contains_each_key_once() {
        let mut table = Table::default();
        table.apply(commit(1, &["/a/b/c", "/a/d", "/ab"]));
        let prefixes = ["/a/", "/a/b/", "/ab"].map(|text| Prefix::new(text).unwrap());
        let keys: Vec<_> = table.read(&prefixes).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["/a/b/c".into(), "/a/d".into(), "/ab".into()] as [Arc<str>; 3]);
        let many = vec![Prefix::new("/").unwrap(); 4096];
        assert_eq!(table.entries_below(&many).count(), 3, "no entry is visited twice");
    }
}
