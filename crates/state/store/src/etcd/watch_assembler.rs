//! Assembles watch responses into commits.

use fairmesh_rib::Commit;

use super::{
    key_layout::{Layout, number},
    proto::{Event, WatchResponse, event},
};

/// Collects the events of each revision, which may span several responses. Etcd sends revisions in order and without
/// interleaving, and marks fragments.
#[derive(Debug)]
pub(super) struct WatchAssembler<'a> {
    layout: &'a Layout,
    /// First revision that is not complete.
    next: u64,
    /// Events received so far of the revision `next`.
    partial: Option<Commit>,
}

impl<'a> WatchAssembler<'a> {
    /// Creates an assembler for a watch that begins at revision `next`.
    pub(super) fn new(layout: &'a Layout, next: u64) -> Self {
        Self { layout, next, partial: None }
    }

    /// Returns the revision at which a new watch must begin to neither lose nor repeat events.
    pub(super) fn resume_revision(&self) -> u64 {
        self.next
    }

    /// Returns the commits that a response completes, in order.
    pub(super) fn push(&mut self, response: WatchResponse) -> Vec<Commit> {
        let mut complete = Vec::new();
        let progress =
            response.events.is_empty() && !response.created && !response.canceled && !response.fragment;
        for event in response.events {
            self.event(event, &mut complete);
        }
        if !response.fragment {
            complete.extend(self.close());
        }
        if progress {
            // A progress notification: every event up to this revision has been sent.
            let reached = response.header.map_or(0, |header| number(header.revision));
            self.next = self.next.max(reached + 1);
        }
        complete
    }

    fn event(&mut self, event: Event, complete: &mut Vec<Commit>) {
        let deleted = event.r#type() == event::Type::Delete;
        let Some(kv) = event.kv else { return };
        let revision = number(kv.mod_revision);
        if revision < self.next {
            return;
        }
        let record = self.layout.parse_record_key(&kv.key);
        if record.is_none() && kv.key != self.layout.last_key() {
            return;
        }
        if self.partial.as_ref().is_some_and(|partial| partial.revision != revision) {
            complete.extend(self.close());
        }
        let partial = self.partial.get_or_insert_with(|| Commit { revision, changes: Vec::new() });
        partial.changes.extend(record.map(|key| (key.into(), (!deleted).then_some(kv.value))));
    }

    fn close(&mut self) -> Option<Commit> {
        let commit = self.partial.take()?;
        self.next = commit.revision + 1;
        Some(commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::{KeyValue, ResponseHeader};

    fn put(key: &str, value: &str, revision: i64) -> Event {
        let kv = KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            mod_revision: revision,
            create_revision: 0,
        };
        Event { r#type: event::Type::Put.into(), kv: Some(kv) }
    }

    fn delete(key: &str, revision: i64) -> Event {
        Event { r#type: event::Type::Delete.into(), ..put(key, "", revision) }
    }

    fn response(revision: i64, events: Vec<Event>) -> WatchResponse {
        WatchResponse { header: Some(ResponseHeader { revision }), events, ..WatchResponse::default() }
    }

    fn part(revision: i64, events: Vec<Event>) -> WatchResponse {
        WatchResponse { fragment: true, ..response(revision, events) }
    }

    fn words(commits: Vec<Commit>) -> Vec<String> {
        let change = |(key, value): &(std::sync::Arc<str>, Option<bytes::Bytes>)| {
            format!(
                "{key}{}",
                value.as_ref().map_or("-".into(), |v| format!("={}", String::from_utf8_lossy(v)))
            )
        };
        let commit = |commit: Commit| {
            format!("{}:{}", commit.revision, commit.changes.iter().map(change).collect::<Vec<_>>().join(","))
        };
        commits.into_iter().map(commit).collect()
    }

    #[test]
    fn etcd_events_of_one_revision_form_one_commit_without_foreign_keys() {
        let layout = Layout::new("/m");
        let mut assembler = WatchAssembler::new(&layout, 5);
        let events = vec![
            put("/m/rib/a", "1", 5),
            delete("/m/rib/b", 5),
            put("/m/meta/last", "", 5),
            put("/m/other", "", 6),
            put("/m/meta/store", "", 7),
            put("/m/meta/last", "", 9),
        ];
        assert_eq!(words(assembler.push(response(20, events))), ["5:/a=1,/b-", "9:"]);
        assert_eq!(
            assembler.resume_revision(),
            10,
            "the revision of a response with events does not bound the events still unsent"
        );
    }

    #[test]
    fn fragmented_etcd_revision_is_emitted_whole_or_read_again() {
        let layout = Layout::new("/m");
        let mut assembler = WatchAssembler::new(&layout, 1);
        assert_eq!(
            words(assembler.push(part(9, vec![put("/m/rib/a", "1", 3), put("/m/rib/b", "1", 4)]))),
            ["3:/a=1"]
        );
        assert_eq!(assembler.resume_revision(), 4);
        let mut resumed = WatchAssembler::new(&layout, assembler.resume_revision());
        assert_eq!(words(assembler.push(response(9, vec![put("/m/rib/c", "1", 4)]))), ["4:/b=1,/c=1"]);
        let retry_policy = vec![put("/m/rib/a", "1", 3), put("/m/rib/b", "1", 4), put("/m/rib/c", "1", 4)];
        assert_eq!(words(resumed.push(response(9, retry_policy))), ["4:/b=1,/c=1"]);
    }

    #[test]
    fn etcd_progress_notification_advances_resume_revision() {
        let layout = Layout::new("/m");
        let mut assembler = WatchAssembler::new(&layout, 5);
        assembler.push(WatchResponse { created: true, ..response(90, Vec::new()) });
        assert_eq!(assembler.resume_revision(), 5);
        assembler.push(response(40, Vec::new()));
        assert_eq!(assembler.resume_revision(), 41);
        assembler.push(response(30, Vec::new()));
        assert_eq!(assembler.resume_revision(), 41);
    }
}
