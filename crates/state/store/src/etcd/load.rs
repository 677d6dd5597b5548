//! Reads a whole store at one revision.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_rib::Entry;

use super::{
    call_error::CallError,
    client::Client,
    key_layout::signed,
    proto::{KeyValue, RangeRequest, RangeResponse},
    state::EtcdState,
};
use crate::{StoreError, StoreSnapshot};

/// Maximum number of entries per page. It bounds a response with the largest entries to 64 MB.
const PAGE_ENTRIES: i64 = 256;
/// Maximum number of attempts to read at one revision. Compaction may interrupt an attempt.
const MAX_ATTEMPTS: u32 = 5;

/// Reads the whole store at its newest revision.
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
    /// Request for the next page; `None` after the last page.
    request: Option<RangeRequest>,
}

impl RangeScan {
    /// Creates a scan at a revision of the cluster. With revision 0, each page is read at the newest revision.
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

    /// Makes the scan omit the values.
    pub(super) fn keys_only(self) -> Self {
        Self { request: self.request.map(|request| RangeRequest { keys_only: true, ..request }) }
    }

    /// Returns the next page; `None` after the last page.
    pub(super) async fn next(&mut self, client: &Client) -> Result<Option<Vec<KeyValue>>, CallError> {
        let Some(request) = self.request.take() else { return Ok(None) };
        let RangeResponse { kvs, more, .. } = client.range(request.clone()).await?;
        let next = kvs.last().map(|kv| successor(&kv.key));
        self.request = next.filter(|_| more).map(|key| RangeRequest { key, ..request });
        Ok(Some(kvs))
    }
}

/// Returns the smallest key greater than `key`.
pub(super) fn successor(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

/// Copies the value out of its page. A slice would keep the whole page in memory.
pub(super) fn detach_value((key, entry): (Arc<str>, Entry)) -> (Arc<str>, Entry) {
    (key, Entry { value: Bytes::copy_from_slice(&entry.value), ..entry })
}
