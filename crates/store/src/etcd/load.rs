//! Reads all of a store at one revision.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_rib::Entry;

use super::{
    client::Client,
    failure::Failure,
    layout::signed,
    proto::{KeyValue, RangeRequest, RangeResponse},
    shared::Shared,
};
use crate::{Loaded, StoreError};

/// How many entries are asked for at once: bounds an answer to 64 MB, were all as large as may be.
const PAGE: i64 = 256;
/// How often reading begins anew since its revision was compacted meanwhile.
const TRIES: u32 = 5;

/// Everything at the newest revision.
pub(super) async fn load(shared: &Shared) -> Result<Loaded, StoreError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match all(shared).await {
            Err(Failure::Refused(status)) if tries < TRIES && status.message().contains("compacted") => {}
            loaded => return loaded.map_err(|failure| failure.reading(&shared.client.place)),
        }
    }
}

async fn all(shared: &Shared) -> Result<Loaded, Failure> {
    let state = shared.state().await?;
    let mut entries = Vec::new();
    let mut scan = Scan::new(shared.layout.records(), state.revision);
    while let Some(kvs) = scan.next(&shared.client).await? {
        entries.extend(kvs.into_iter().filter_map(|kv| shared.layout.entry(kv)).map(compact));
    }
    Ok((state.last, entries))
}

/// Reads a range of keys a page at a time.
#[derive(Debug)]
pub(super) struct Scan {
    /// What is asked for next; `None` once there is no more.
    ask: Option<RangeRequest>,
}

impl Scan {
    /// Everything as it was at a revision of the cluster; at 0, each page is the newest.
    pub(super) fn new(range: Range<Bytes>, revision: u64) -> Self {
        let ask = RangeRequest {
            key: range.start,
            range_end: range.end,
            limit: PAGE,
            revision: signed(revision),
            ..RangeRequest::default()
        };
        Self { ask: Some(ask) }
    }

    /// Without values.
    pub(super) fn keys_only(self) -> Self {
        Self { ask: self.ask.map(|ask| RangeRequest { keys_only: true, ..ask }) }
    }

    /// The next page.
    pub(super) async fn next(&mut self, client: &Client) -> Result<Option<Vec<KeyValue>>, Failure> {
        let Some(ask) = self.ask.take() else { return Ok(None) };
        let RangeResponse { kvs, more, .. } = client.range(ask.clone()).await?;
        let behind = kvs.last().map(|kv| after(&kv.key));
        self.ask = behind.filter(|_| more).map(|key| RangeRequest { key, ..ask });
        Ok(Some(kvs))
    }
}

/// The first key behind another.
pub(super) fn after(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

/// Frees the page that a value came in: one entry that stays would keep all of it.
pub(super) fn compact((key, entry): (Arc<str>, Entry)) -> (Arc<str>, Entry) {
    (key, Entry { value: Bytes::copy_from_slice(&entry.value), ..entry })
}
