use fairmesh_wire::v1;
use serde_json::{Value, json};

use super::revision;
use crate::event_delta::Shown;

/// Maximum number of callers that are listed.
const MAX_NAMED: usize = 100;

/// Shows the callers that have not applied the newest record of a service, which revision `written` wrote.
pub(crate) fn callers_behind(response: &v1::WatchersResponse, written: u64) -> Shown {
    let is_behind =
        |watcher: &&v1::Watcher| revision(watcher.applied.as_ref()).is_none_or(|applied| applied < written);
    let behind: Vec<_> = response.watchers.iter().filter(is_behind).collect();
    let named: Vec<Value> = behind.iter().take(MAX_NAMED).map(|watcher| caller(watcher)).collect();
    let [all, behind] = [response.watchers.len(), behind.len()];
    Shown::head(&json!({ "written": written, "all": all, "behind": behind, "named": named }))
}

fn caller(watcher: &v1::Watcher) -> Value {
    json!({
        "name": watcher.software,
        "identity": watcher.identity,
        "applied": revision(watcher.applied.as_ref()),
    })
}
