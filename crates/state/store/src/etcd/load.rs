//! Reads a whole store at one revision.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_rib::Entry;

use super::{
    call_error::CallError,
    client::Client,
    layout::signed,
    proto::{KeyValue, RangeRequest, RangeResponse},
    state::EtcdState,
};
use crate::{StoreError, StoreSnapshot};

/// Entries per page: bounds a response to 64 MB of the largest entries.
const PAGE_ENTRIES: i64 = 256;
/// Attempts to read at one revision, each of which compaction may interrupt.
const MAX_ATTEMPTS: u32 = 5;

/// Reads everything at the newest revision.
pub(super) async fn load(shared: &EtcdState) -> Result<StoreSnapshot, StoreError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match load_once(shared).await {
            Err(CallError::Refused(status))
                if attempts < MAX_ATTEMPTS && status.message().contains("compacted") => {}
            loaded => return loaded.map_err(|failure| failure.into_store_error(&shared.client.location)),
        }
    }
}

async fn load_once(shared: &EtcdState) -> Result<StoreSnapshot, CallError> {
    let meta = shared.meta().await?;
    let mut entries = Vec::new();
    let mut scan = RangeScan::new(shared.layout.record_range(), meta.revision);
    while let Some(kvs) = scan.next(&shared.client).await? {
        entries.extend(kvs.into_iter().filter_map(|kv| shared.layout.entry(kv)).map(detach_value));
    }
    Ok((meta.last, entries))
}

/// Reads a range of keys page by page.
#[derive(Debug)]
pub(super) struct RangeScan {
    /// Request for the next page; `None` after the last.
    request: Option<RangeRequest>,
}

impl RangeScan {
    /// Reads at a revision of the cluster; with 0 each page is read at the newest.
    pub(super) fn new(range: Range<Bytes>, revision: u64) -> Self {
        let request = RangeRequest {
            key: range.start,
            range_end: range.end,
            limit: PAGE_ENTRIES,
            revision: signed(revision),
            ..RangeRequest::default()
        };
        Self { request: Some(request) }
    }

    /// Omits the values.
    pub(super) fn keys_only(self) -> Self {
        Self { request: self.request.map(|request| RangeRequest { keys_only: true, ..request }) }
    }

    /// The next page.
    pub(super) async fn next(&mut self, client: &Client) -> Result<Option<Vec<KeyValue>>, CallError> {
        let Some(request) = self.request.take() else { return Ok(None) };
        let RangeResponse { kvs, more, .. } = client.range(request.clone()).await?;
        let next = kvs.last().map(|kv| successor(&kv.key));
        self.request = next.filter(|_| more).map(|key| RangeRequest { key, ..request });
        Ok(Some(kvs))
    }
}

/// The smallest key greater than `key`.
pub(super) fn successor(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

/// Copies a value out of its page, which a slice would retain in memory.
pub(super) fn detach_value((key, entry): (Arc<str>, Entry)) -> (Arc<str>, Entry) {
    (key, Entry { value: Bytes::copy_from_slice(&entry.value), ..entry })
}
