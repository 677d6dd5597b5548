//! A batch as a transaction of etcd, and the answer as a verdict.

use fairmesh_rib::{Batch, Conflict, Expect, Op};

use super::{
    layout::{Layout, number, signed},
    proto::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare, request_op, response_op,
    },
    shared::Shared,
};

/// What became of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is this revision.
    Written(u64),
    /// A key is not as expected.
    Conflict(Conflict),
    /// The store is not there any more, or another one is.
    Replaced,
    /// Somebody else holds the store, or nobody does.
    Deposed,
}

/// What must be so for anything to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard<'a> {
    /// What stands at `store`.
    pub(super) mark: &'a [u8],
    /// The revision that created `holder`, where this process is to hold the store.
    pub(super) fence: Option<u64>,
}

/// Writes all of `batch` if every expectation holds and so does the guard; otherwise reads what contradicts.
pub(super) fn transaction(layout: &Layout, guard: Guard<'_>, batch: &Batch) -> TxnRequest {
    let same_store = Compare {
        target: compare::Target::Value.into(),
        key: layout.store(),
        operand: Some(compare::Operand::Value(guard.mark.to_vec().into())),
        ..Compare::default()
    };
    let held = guard.fence.map(|fence| Compare {
        target: compare::Target::Create.into(),
        key: layout.holder(),
        operand: Some(compare::Operand::CreateRevision(signed(fence))),
        ..Compare::default()
    });
    let last = PutRequest { key: layout.last(), ..PutRequest::default() };
    let expected = || batch.ops.iter().filter_map(|op| Some((op, revision(op.expect)?)));
    let compare = expected().map(|(op, revision)| Compare {
        target: compare::Target::Mod.into(),
        key: layout.record(&op.key),
        operand: Some(compare::Operand::ModRevision(signed(revision))),
        ..Compare::default()
    });
    let reads = expected().map(|(op, _)| RangeRequest {
        key: layout.record(&op.key),
        // The revision alone is wanted.
        keys_only: true,
        ..RangeRequest::default()
    });
    TxnRequest {
        compare: std::iter::once(same_store).chain(held).chain(compare).collect(),
        success: batch
            .ops
            .iter()
            .map(|op| change(layout, op))
            .chain([request_op::Request::Put(last)])
            .map(operation)
            .collect(),
        failure: reads.chain([layout.ask_state()]).map(request_op::Request::Range).map(operation).collect(),
    }
}

/// Creates an empty store, unless there is one.
pub(super) fn creation(layout: &Layout, mark: &[u8]) -> TxnRequest {
    let put = |key, value: &[u8]| {
        operation(request_op::Request::Put(PutRequest { key, value: value.to_vec().into(), lease: 0 }))
    };
    let absent = Compare {
        target: compare::Target::Mod.into(),
        key: layout.store(),
        operand: Some(compare::Operand::ModRevision(0)),
        ..Compare::default()
    };
    TxnRequest {
        compare: vec![absent],
        success: vec![put(layout.store(), mark), put(layout.last(), b"")],
        failure: Vec::new(),
    }
}

/// Gives the store with `before` another mark.
pub(super) fn renewal(layout: &Layout, before: &[u8], after: &[u8]) -> TxnRequest {
    let put = PutRequest { key: layout.store(), value: after.to_vec().into(), lease: 0 };
    TxnRequest {
        success: vec![operation(request_op::Request::Put(put))],
        ..transaction(layout, Guard { mark: before, fence: None }, &Batch::default())
    }
}

/// Takes hold of the store for as long as the lease lasts, if nobody does and, where `last` is given, nobody has written
/// since that revision.
pub(super) fn claim(shared: &Shared, last: Option<u64>, (lease, who): (i64, &str)) -> TxnRequest {
    let Shared { layout, mark, .. } = shared;
    let revision = |key, revision| Compare {
        target: compare::Target::Mod.into(),
        key,
        operand: Some(compare::Operand::ModRevision(revision)),
        ..Compare::default()
    };
    let free = revision(layout.holder(), 0);
    let unwritten = last.map(|last| revision(layout.last(), signed(last)));
    let put = PutRequest { key: layout.holder(), value: who.to_owned().into(), lease };
    let trace = shared.traces_holds.then(|| PutRequest { key: layout.last(), ..PutRequest::default() });
    let TxnRequest { mut compare, .. } = transaction(layout, Guard { mark, fence: None }, &Batch::default());
    compare.extend([free].into_iter().chain(unwritten));
    let puts = [put].into_iter().chain(trace).map(|put| operation(request_op::Request::Put(put)));
    TxnRequest { compare, success: puts.collect(), failure: Vec::new() }
}

/// Reads the answer to [`transaction`].
pub(super) fn verdict(layout: &Layout, guard: Guard<'_>, batch: &Batch, answer: TxnResponse) -> Verdict {
    if answer.succeeded {
        return Verdict::Written(answer.header.map_or(0, |header| number(header.revision)));
    }
    let mut ranges = answer.responses.into_iter().map(|op| match op.response {
        Some(response_op::Response::Range(range)) => range,
        None => super::proto::RangeResponse::default(),
    });
    let found: Vec<_> =
        batch.ops.iter().filter(|op| op.expect != Expect::Any).map(|op| (op, ranges.next())).collect();
    let state = layout.state(ranges.next().unwrap_or_default());
    if state.mark.as_deref() != Some(guard.mark) {
        return Verdict::Replaced;
    }
    if guard.fence.is_some() && guard.fence != state.holder.map(|(fence, _)| fence) {
        return Verdict::Deposed;
    }
    let found = found.into_iter().map(|(op, range)| {
        let there = range.and_then(|range| range.kvs.into_iter().next());
        (op, there.map(|KeyValue { mod_revision, .. }| number(mod_revision)))
    });
    let mut unmet = found.filter(|(op, found)| revision(op.expect) != Some(found.unwrap_or(0)));
    match unmet.next() {
        Some((op, found)) => Verdict::Conflict(Conflict {
            key: op.key.clone(),
            expected: op.expect,
            found,
            current: state.last,
        }),
        // Etcd compares and reads at one revision, so this is not its answer to our question.
        None => Verdict::Replaced,
    }
}

/// The revision that an expectation asks for; etcd's for a key that is not there is 0.
fn revision(expect: Expect) -> Option<u64> {
    match expect {
        Expect::Any => None,
        Expect::Absent => Some(0),
        Expect::Revision(revision) => Some(revision),
    }
}

fn change(layout: &Layout, op: &Op) -> request_op::Request {
    let key = layout.record(&op.key);
    match &op.value {
        Some(value) => request_op::Request::Put(PutRequest { key, value: value.clone(), lease: 0 }),
        None => request_op::Request::DeleteRange(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }),
    }
}

pub(super) fn operation(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
