//! The answers of a watch as commits.

use fairmesh_rib::Commit;

use super::{
    layout::{Layout, number},
    proto::{Event, WatchResponse, event},
};

/// Puts events of one revision together, whichever answers they come in. Etcd sends revisions whole and in order, and
/// says where an answer is only a part.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    layout: &'a Layout,
    /// The first revision that is not complete yet; a new watch begins here.
    next: u64,
    /// What came of it so far.
    open: Option<Commit>,
}

impl<'a> Gather<'a> {
    /// For a watch that begins at the revision `next`.
    pub(super) fn from(layout: &'a Layout, next: u64) -> Self {
        Self { layout, next, open: None }
    }

    /// Where a new watch has to begin to lose nothing and repeat nothing.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The commits that an answer completes, in order.
    pub(super) fn take(&mut self, answer: WatchResponse) -> Vec<Commit> {
        let mut complete = Vec::new();
        let progress = answer.events.is_empty() && !answer.created && !answer.canceled && !answer.fragment;
        for event in answer.events {
            self.event(event, &mut complete);
        }
        if !answer.fragment {
            complete.extend(self.close());
        }
        if progress {
            // Everything up to this revision has been sent.
            let reached = answer.header.map_or(0, |header| number(header.revision));
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
        let record = self.layout.record_at(&kv.key);
        if record.is_none() && kv.key != self.layout.last() {
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.revision != revision) {
            complete.extend(self.close());
        }
        let open = self.open.get_or_insert_with(|| Commit { revision, changes: Vec::new() });
        open.changes.extend(record.map(|key| (key.into(), (!deleted).then_some(kv.value))));
    }

    fn close(&mut self) -> Option<Commit> {
        let commit = self.open.take()?;
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

    fn answer(revision: i64, events: Vec<Event>) -> WatchResponse {
        WatchResponse { header: Some(ResponseHeader { revision }), events, ..WatchResponse::default() }
    }

    fn part(revision: i64, events: Vec<Event>) -> WatchResponse {
        WatchResponse { fragment: true, ..answer(revision, events) }
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
    fn events_of_one_revision_are_one_commit_and_other_keys_are_nobodys() {
        let layout = Layout::new("/m");
        let mut gather = Gather::from(&layout, 5);
        let events = vec![
            put("/m/rib/a", "1", 5),
            delete("/m/rib/b", 5),
            put("/m/meta/last", "", 5),
            put("/m/other", "", 6),
            put("/m/meta/store", "", 7),
            put("/m/meta/last", "", 9),
        ];
        assert_eq!(words(gather.take(answer(20, events))), ["5:/a=1,/b-", "9:"]);
        assert_eq!(
            gather.next(),
            10,
            "where an answer with events was sent says nothing of what was left unsent"
        );
    }

    #[test]
    fn a_revision_in_parts_is_given_when_it_is_whole_and_begun_anew_by_a_new_watch() {
        let layout = Layout::new("/m");
        let mut gather = Gather::from(&layout, 1);
        assert_eq!(
            words(gather.take(part(9, vec![put("/m/rib/a", "1", 3), put("/m/rib/b", "1", 4)]))),
            ["3:/a=1"]
        );
        assert_eq!(gather.next(), 4);
        let mut anew = Gather::from(&layout, gather.next());
        assert_eq!(words(gather.take(answer(9, vec![put("/m/rib/c", "1", 4)]))), ["4:/b=1,/c=1"]);
        let again = vec![put("/m/rib/a", "1", 3), put("/m/rib/b", "1", 4), put("/m/rib/c", "1", 4)];
        assert_eq!(words(anew.take(answer(9, again))), ["4:/b=1,/c=1"]);
    }

    #[test]
    fn word_of_progress_moves_on_and_that_a_watch_was_made_does_not() {
        let layout = Layout::new("/m");
        let mut gather = Gather::from(&layout, 5);
        gather.take(WatchResponse { created: true, ..answer(90, Vec::new()) });
        assert_eq!(gather.next(), 5);
        gather.take(answer(40, Vec::new()));
        assert_eq!(gather.next(), 41);
        gather.take(answer(30, Vec::new()));
        assert_eq!(gather.next(), 41);
    }
}
