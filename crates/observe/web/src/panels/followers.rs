use std::{cmp::Reverse, collections::BTreeMap};

use fairmesh_wire::v1::{self, peer_info::Kind};
use serde::Serialize;
use serde_json::json;

use super::{given, revision};
use crate::event_delta::Shown;

/// Maximum number of followers that are listed. Those furthest behind come first.
const MAX_LISTED: usize = 500;

/// A process that follows this control plane.
#[derive(Debug, Serialize)]
struct Follower<'a> {
    name: &'a str,
    identity: &'a str,
    /// Kind of the process: `replica`, `agent` or `program`.
    kind: &'static str,
    region: Option<&'a str>,
    /// Release of the process. Programs and older releases do not send it.
    version: Option<&'a str>,
    /// Number of revisions that the process and everything below it lag behind; `None` if unknown.
    lag: Option<u64>,
}

/// Counts of a group of followers.
#[derive(Debug, Default, Serialize)]
struct Group {
    all: usize,
    behind: usize,
}

/// Shows the processes that follow this control plane and how far they lag, like the first server in `fairmesh rib
/// status`.
pub(crate) fn followers(response: &v1::WatchersResponse) -> Shown {
    let at = revision(response.at.as_ref());
    let mut all: Vec<_> = response.watchers.iter().map(|watcher| follower(watcher, at)).collect();
    all.sort_by_key(|one| (Reverse(one.lag.unwrap_or(u64::MAX)), one.kind != "replica", one.name));
    let mut groups = BTreeMap::<(&str, &str, &str), Group>::new();
    for one in &all {
        let group = groups.entry((one.kind, one.version.unwrap_or(""), one.region.unwrap_or("")));
        let group = group.or_default();
        group.all += 1;
        group.behind += usize::from(one.lag != Some(0));
    }
    let group = |((kind, version, region), group): (&(&str, &str, &str), &Group)| {
        json!({
            "kind": kind,
            "version": given(version),
            "region": given(region),
            "all": group.all,
            "behind": group.behind,
        })
    };
    Shown::head(&json!({
        "revision": at,
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "listed": all.iter().take(MAX_LISTED).collect::<Vec<_>>(),
        "notListed": all.len().saturating_sub(MAX_LISTED),
    }))
}

fn follower(watcher: &v1::Watcher, at: Option<u64>) -> Follower<'_> {
    let peer = watcher.peer.as_ref();
    let applied = revision(watcher.applied.as_ref());
    Follower {
        name: &watcher.software,
        identity: &watcher.identity,
        kind: match peer.map(v1::PeerInfo::kind) {
            Some(Kind::Replica) => "replica",
            Some(Kind::Agent) => "agent",
            // Kinds that newer releases added are shown as programs.
            Some(Kind::Unspecified) | None => "program",
        },
        region: peer.and_then(|peer| given(&peer.region)),
        version: peer.and_then(|peer| given(&peer.version)),
        lag: at.zip(applied).map(|(at, applied)| at.saturating_sub(applied)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn watcher(name: &str, number: u64, kind: Option<Kind>) -> v1::Watcher {
        let cursor = v1::Cursor { numbers: [(0, number)].into(), ..v1::Cursor::default() };
        let peer = kind.map(|kind| v1::PeerInfo {
            kind: kind.into(),
            region: "eu".into(),
            ..v1::PeerInfo::default()
        });
        v1::Watcher { software: name.into(), applied: Some(cursor), peer, ..v1::Watcher::default() }
    }

    #[test]
    fn rib_followers_are_sorted_by_lag_and_counted_by_group() {
        let watchers = vec![
            watcher("new", 9, Some(Kind::Agent)),
            watcher("old", 4, Some(Kind::Agent)),
            watcher("program", 9, None),
        ];
        let at = Some(v1::Cursor { numbers: [(0, 9)].into(), ..v1::Cursor::default() });
        let shown = followers(&v1::WatchersResponse { watchers, at, ..v1::WatchersResponse::default() });
        let event: Value = serde_json::from_str(&shown.since(None).unwrap()).unwrap();
        let head = &event["head"];
        assert_eq!((&head["listed"][0]["name"], &head["listed"][0]["lag"]), (&json!("old"), &json!(5)));
        let agents = json!({"kind": "agent", "version": null, "region": "eu", "all": 2, "behind": 1});
        assert_eq!(head["groups"][0], agents);
        assert_eq!(head["revision"], 9);
    }
}
