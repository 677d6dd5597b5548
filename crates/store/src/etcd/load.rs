//! Reads all of a store at one revision.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_rib::Entry;

use super::{
    failure::Failure,
    layout::signed,
    proto::{RangeRequest, RangeResponse},
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
    let range = shared.layout.records();
    let (mut from, mut entries) = (range.start, Vec::new());
    loop {
        let page = RangeRequest {
            key: from,
            range_end: range.end.clone(),
            limit: PAGE,
            revision: signed(state.revision),
            ..RangeRequest::default()
        };
        let RangeResponse { kvs, more, .. } = shared.client.range(page).await?;
        let after = kvs.last().map(|kv| after(&kv.key));
        entries.extend(kvs.into_iter().filter_map(|kv| shared.layout.entry(kv)).map(compact));
        match after.filter(|_| more) {
            Some(after) => from = after,
            None => return Ok((state.last, entries)),
        }
    }
}

/// The first key behind another.
fn after(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

/// Frees the page that a value came in: one entry that stays would keep all of it.
fn compact((key, entry): (Arc<str>, Entry)) -> (Arc<str>, Entry) {
    (key, Entry { value: Bytes::copy_from_slice(&entry.value), ..entry })
}
