//! Follows the commits of all writers in a cluster, and publishes them to the store's commit log.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    call_error::CallError,
    client::{self, Client},
    key_layout::{Layout, StoreMeta, number, signed},
    proto::{RangeRequest, WatchCreateRequest},
    state::EtcdState,
    watch_assembler::WatchAssembler,
};

/// Why a watch ended.
enum WatchEnd {
    /// The connection, the member or the member's leader is lost.
    Lost(String),
    /// The next revision is compacted. The oldest readable revision is this one.
    Compacted(u64),
}

/// Follows until the store fails or the future is dropped. `next` is the first revision of the cluster that the
/// commit log lacks.
pub(super) async fn watch_commits(shared: Arc<EtcdState>, mut next: u64) {
    let mut failures = 0;
    loop {
        let began = next;
        let end = watch_once(&shared, &mut next).await;
        failures = if next > began { 1 } else { failures + 1 };
        match &end {
            WatchEnd::Lost(problem) => {
                tracing::warn!(location = %shared.client.location, problem, failures, "the watch of etcd failed and is restarted");
                sleep(client::backoff(failures)).await;
            }
            WatchEnd::Compacted(_) => {
                tracing::warn!(location = %shared.client.location, next, "etcd has compacted revisions that were not read yet");
            }
        }
        let meta = meta(&shared).await;
        if let Some(problem) = identity_mismatch(&shared, &meta, next) {
            return shared.fail(problem);
        }
        if let WatchEnd::Compacted(oldest) = end {
            // If none of the compacted revisions changed this store, no subscriber must load it again.
            let (last, reached) = match shared.meta_at(oldest).await {
                Ok(then) => (then.last, oldest),
                // The revision was compacted meanwhile as well.
                Err(_) => (meta.last, meta.revision),
            };
            shared.commit_log.skip_to(last);
            next = reached + 1;
        }
    }
}

/// Publishes commits until the watch ends. Then `next` is the revision at which the next watch must begin.
async fn watch_once(shared: &EtcdState, next: &mut u64) -> WatchEnd {
    let range = shared.layout.full_range();
    let create = WatchCreateRequest {
        key: range.start,
        range_end: range.end,
        start_revision: signed(*next),
        progress_notify: true,
        fragment: true,
    };
    let (mut responses, member) = match shared.client.watch(create).await {
        Ok(watch) => watch,
        Err(failure) => return WatchEnd::Lost(failure.message()),
    };
    let mut assembler = WatchAssembler::new(&shared.layout, *next);
    let problem = loop {
        let response = match responses.message().await {
            Ok(Some(response)) => response,
            Ok(None) => break "etcd closed it".to_owned(),
            Err(status) => break CallError::from_status(status).message(),
        };
        if response.canceled {
            if response.compact_revision > 0 {
                return WatchEnd::Compacted(number(response.compact_revision));
            }
            // Some releases return "permission denied" for an invalid token.
            shared.client.forget_token();
            break response.cancel_reason;
        }
        shared.commit_log.publish(assembler.push(response));
        *next = assembler.resume_revision();
    };
    shared.client.fail_over_from(member);
    WatchEnd::Lost(problem)
}

/// Reads the store's metadata, with unlimited retries.
async fn meta(shared: &EtcdState) -> StoreMeta {
    let mut failures = 0;
    loop {
        match shared.meta().await {
            Ok(meta) => return meta,
            Err(failure) => {
                failures += 1;
                let problem = failure.message();
                tracing::warn!(location = %shared.client.location, problem, "etcd is unavailable; readers see older records");
                sleep(client::backoff(failures)).await;
            }
        }
    }
}

/// Explains why the store below the root differs from the followed one; `None` if it is the same.
fn identity_mismatch(shared: &EtcdState, meta: &StoreMeta, next: u64) -> Option<String> {
    if meta.identity.as_ref() != Some(&shared.identity) {
        return Some("another store, or none, is below this root now; start the process again".into());
    }
    (meta.revision + 1 < next).then(|| {
        format!(
            "etcd went back from revision {} to {}, as when an older copy is put back; start the process once with \
             --new-store-id",
            next - 1,
            meta.revision
        )
    })
}

impl EtcdState {
    /// Reads the current metadata of the store.
    pub(super) async fn meta(&self) -> Result<StoreMeta, CallError> {
        read_meta(&self.client, &self.layout).await
    }

    /// Reads the metadata at a revision of the cluster.
    async fn meta_at(&self, revision: u64) -> Result<StoreMeta, CallError> {
        let request = RangeRequest { revision: signed(revision), ..self.layout.meta_request() };
        Ok(self.layout.parse_meta(self.client.range(request).await?))
    }
}

/// Reads the metadata of a store.
pub(super) async fn read_meta(client: &Client, layout: &Layout) -> Result<StoreMeta, CallError> {
    Ok(layout.parse_meta(client.range(layout.meta_request()).await?))
}
