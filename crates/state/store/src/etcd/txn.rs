//! Batches and lease operations as etcd transactions, and their outcomes.

use std::time::Duration;

use fairmesh_rib::{Batch, Conflict, Expect, Op};
use tokio::time::{Instant, timeout_at};

use super::{
    client::{Client, RetryPolicy},
    key_layout::{Layout, number, signed},
    proto::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare, request_op, response_op,
    },
    state::EtcdState,
};

/// Time limit of [`probe_write`] for all clusters of a store. It is well below the 3 s for which `fairmesh check` waits for
/// `/readyz`, so that the page says why before its readers give up.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Outcome of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TxnOutcome {
    /// Written at this revision.
    Written(u64),
    /// The batch was not written, because an expectation does not hold.
    Conflict(Conflict),
    /// The store was deleted or replaced by another store.
    StoreReplaced,
    /// This process does not hold the writer lease.
    Fenced,
}

/// Preconditions of every write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard<'a> {
    /// Value of the metadata key `store`.
    pub(super) identity: &'a [u8],
    /// Revision that created the key `holder`, if writes need the writer lease.
    pub(super) fence: Option<u64>,
}

/// Writes the whole batch if the guard and every expectation hold; otherwise reads the current values.
pub(super) fn write_batch(layout: &Layout, guard: Guard<'_>, batch: &Batch) -> TxnRequest {
    let same_store = Compare {
        target: compare::Target::Value.into(),
        key: layout.identity_key(),
        operand: Some(compare::Operand::Value(guard.identity.to_vec().into())),
        ..Compare::default()
    };
    let fenced = guard.fence.map(|fence| Compare {
        target: compare::Target::Create.into(),
        key: layout.holder_key(),
        operand: Some(compare::Operand::CreateRevision(signed(fence))),
        ..Compare::default()
    });
    let last = PutRequest { key: layout.last_key(), ..PutRequest::default() };
    let expected = || batch.ops.iter().filter_map(|op| Some((op, revision(op.expect)?)));
    let compare = expected().map(|(op, revision)| Compare {
        target: compare::Target::Mod.into(),
        key: layout.record_key(&op.key),
        operand: Some(compare::Operand::ModRevision(signed(revision))),
        ..Compare::default()
    });
    let reads = expected().map(|(op, _)| RangeRequest {
        key: layout.record_key(&op.key),
        // Only the revision is needed, not the value.
        keys_only: true,
        ..RangeRequest::default()
    });
    TxnRequest {
        compare: std::iter::once(same_store).chain(fenced).chain(compare).collect(),
        success: batch
            .ops
            .iter()
            .map(|op| change(layout, op))
            .chain([request_op::Request::Put(last)])
            .map(request_op)
            .collect(),
        failure: reads
            .chain([layout.meta_request()])
            .map(request_op::Request::Range)
            .map(request_op)
            .collect(),
    }
}

/// The deadline of a probe that begins now.
pub(super) fn probe_deadline() -> Instant {
    Instant::now() + PROBE_TIMEOUT
}

/// Tests whether etcd accepts writes. Sends a transaction whose condition never holds: etcd proposes it and checks
/// for space as for a write.
///
/// # Errors
/// Why etcd accepts no writes.
pub(super) async fn probe_write(client: &Client, layout: &Layout, deadline: Instant) -> Result<(), String> {
    let never = Compare {
        result: compare::Result::Less.into(),
        target: compare::Target::Mod.into(),
        key: layout.identity_key(),
        operand: Some(compare::Operand::ModRevision(0)),
    };
    let put = PutRequest { key: layout.last_key(), ..PutRequest::default() };
    let probe = TxnRequest {
        compare: vec![never],
        success: vec![request_op(request_op::Request::Put(put))],
        failure: Vec::new(),
    };
    match timeout_at(deadline, client.txn(RetryPolicy::Repeatable, probe)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(failure)) => Err(failure.message()),
        Err(_) => Err(format!("no member of etcd responds within {PROBE_TIMEOUT:?}")),
    }
}

/// Creates an empty store if none exists.
pub(super) fn create(layout: &Layout, identity: &[u8]) -> TxnRequest {
    let put = |key, value: &[u8]| {
        request_op(request_op::Request::Put(PutRequest { key, value: value.to_vec().into(), lease: 0 }))
    };
    let absent = Compare {
        target: compare::Target::Mod.into(),
        key: layout.identity_key(),
        operand: Some(compare::Operand::ModRevision(0)),
        ..Compare::default()
    };
    TxnRequest {
        compare: vec![absent],
        success: vec![put(layout.identity_key(), identity), put(layout.last_key(), b"")],
        failure: Vec::new(),
    }
}

/// Replaces the identity of a store if it still is `before`.
pub(super) fn regenerate_id(layout: &Layout, before: &[u8], after: &[u8]) -> TxnRequest {
    let put = PutRequest { key: layout.identity_key(), value: after.to_vec().into(), lease: 0 };
    TxnRequest {
        success: vec![request_op(request_op::Request::Put(put))],
        ..write_batch(layout, Guard { identity: before, fence: None }, &Batch::default())
    }
}

/// Writes the `holder` key with a lease if no other process holds the key. With `last`, also requires that nothing
/// was written since that revision.
pub(super) fn acquire_lease(
    shared: &EtcdState,
    last: Option<u64>,
    (lease, holder): (i64, &str),
) -> TxnRequest {
    let EtcdState { layout, identity, .. } = shared;
    let revision = |key, revision| Compare {
        target: compare::Target::Mod.into(),
        key,
        operand: Some(compare::Operand::ModRevision(revision)),
        ..Compare::default()
    };
    let unheld = revision(layout.holder_key(), 0);
    let unwritten = last.map(|last| revision(layout.last_key(), signed(last)));
    let put = PutRequest { key: layout.holder_key(), value: holder.to_owned().into(), lease };
    let trace = shared
        .acquisition_writes_last
        .then(|| PutRequest { key: layout.last_key(), ..PutRequest::default() });
    let TxnRequest { mut compare, .. } =
        write_batch(layout, Guard { identity, fence: None }, &Batch::default());
    compare.extend([unheld].into_iter().chain(unwritten));
    let puts = [put].into_iter().chain(trace).map(|put| request_op(request_op::Request::Put(put)));
    TxnRequest { compare, success: puts.collect(), failure: Vec::new() }
}

/// Parses the response to [`write_batch`].
pub(super) fn outcome(layout: &Layout, guard: Guard<'_>, batch: &Batch, response: TxnResponse) -> TxnOutcome {
    if response.succeeded {
        return TxnOutcome::Written(response.header.map_or(0, |header| number(header.revision)));
    }
    let mut ranges = response.responses.into_iter().map(|op| match op.response {
        Some(response_op::Response::Range(range)) => range,
        None => super::proto::RangeResponse::default(),
    });
    let found: Vec<_> =
        batch.ops.iter().filter(|op| op.expect != Expect::Any).map(|op| (op, ranges.next())).collect();
    let meta = layout.parse_meta(ranges.next().unwrap_or_default());
    if meta.identity.as_deref() != Some(guard.identity) {
        return TxnOutcome::StoreReplaced;
    }
    if guard.fence.is_some() && guard.fence != meta.holder.map(|(fence, _)| fence) {
        return TxnOutcome::Fenced;
    }
    let found = found.into_iter().map(|(op, range)| {
        let stored = range.and_then(|range| range.kvs.into_iter().next());
        (op, stored.map(|KeyValue { mod_revision, .. }| number(mod_revision)))
    });
    let mut unmet = found.filter(|(op, found)| revision(op.expect) != Some(found.unwrap_or(0)));
    match unmet.next() {
        Some((op, found)) => TxnOutcome::Conflict(Conflict {
            key: op.key.clone(),
            expected: op.expect,
            found,
            current: meta.last,
        }),
        // Etcd compares and reads at the same revision, so this response does not belong to the request.
        None => TxnOutcome::StoreReplaced,
    }
}

/// Returns the revision to compare with. In etcd, an absent key has revision 0.
fn revision(expect: Expect) -> Option<u64> {
    match expect {
        Expect::Any => None,
        Expect::Absent => Some(0),
        Expect::Revision(revision) => Some(revision),
    }
}

fn change(layout: &Layout, op: &Op) -> request_op::Request {
    let key = layout.record_key(&op.key);
    match &op.value {
        Some(value) => request_op::Request::Put(PutRequest { key, value: value.clone(), lease: 0 }),
        None => request_op::Request::DeleteRange(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }),
    }
}

pub(super) fn request_op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
