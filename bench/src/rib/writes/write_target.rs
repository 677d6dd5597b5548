//! Targets of writes: a control plane through its API, or plain etcd with the same batches as transactions.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use fairmesh_rib::Batch;
use fairmesh_wire::{handshake::Connection, v1};
use futures_util::{StreamExt, TryStreamExt, stream};
use prost::{Message, Oneof};
use tonic::transport::Channel;

use super::write_workload::WriteWorkload;
use crate::{
    load_generator::Call,
    rib::etcd::{self, Header},
};

/// Concurrent batches while a store is filled.
const FILLING: usize = 32;

#[derive(Clone, Debug)]
pub(super) enum Target {
    Fairmesh(Box<Connection>),
    Etcd(Channel),
}

/// The stream of writes and its target.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    target: Target,
    workload: Arc<Mutex<WriteWorkload>>,
    written: Arc<Mutex<Written>>,
}

/// Acknowledged writes so far.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) batches: u64,
    /// Bytes of keys and values.
    pub(super) bytes: u64,
    pub(super) revision: u64,
    pub(super) keys: Keys,
}

/// By hash of the key: the last revision that wrote the key, and whether the key exists.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Keys(HashMap<u64, (u64, bool)>);

impl Keys {
    /// Records a change unless a later one is known.
    pub(super) fn note(&mut self, key: &str, revision: u64, there: bool) {
        let noted = self.0.entry(xxhash_rust::xxh3::xxh3_64(key.as_bytes())).or_default();
        if noted.0 <= revision {
            *noted = (revision, there);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of keys that differ from `other`. Revisions of deleted keys are ignored, because a watcher does not
    /// receive them.
    pub(super) fn missing_from(&self, other: &Self) -> usize {
        let same = |key, &(revision, there): &(u64, bool)| match other.0.get(key) {
            Some(&(found, true)) => there && found == revision,
            Some(&(_, false)) | None => !there,
        };
        self.0.iter().filter(|(key, noted)| !same(*key, noted)).count()
    }
}

impl Writer {
    /// Starts at the current state of `workload`.
    pub(super) fn new(target: Target, workload: WriteWorkload) -> Self {
        Self { target, workload: Arc::new(Mutex::new(workload)), written: Arc::default() }
    }

    pub(super) fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }
}

impl Call for Writer {
    async fn call(&self) -> Result<(), String> {
        let batch = lock(&self.workload).change();
        let keys: Vec<_> = batch.ops.iter().map(|op| (op.key.clone(), op.value.is_some())).collect();
        let bytes = size(&batch);
        let revision = self.target.write(batch).await?;
        let mut written = self.written();
        written.batches += 1;
        written.bytes += bytes;
        written.revision = written.revision.max(revision);
        // There is no etcd watcher in this benchmark.
        if let Target::Fairmesh(_) = self.target {
            keys.iter().for_each(|(key, there)| written.keys.note(key, revision, *there));
        }
        Ok(())
    }
}

impl Target {
    /// Writes a batch. Returns its revision once the batch is durable.
    pub(super) async fn write(&self, batch: Batch) -> Result<u64, String> {
        match self {
            Self::Fairmesh(connection) => {
                let ops = batch.ops.into_iter();
                let ops = ops.map(|op| v1::Op { key: op.key.to_string(), value: op.value, condition: None });
                let request = v1::WriteRequest { ops: ops.collect() };
                let written = connection.rib().write(request).await;
                let revision = written.map_err(|status| status.to_string())?.into_inner().revision;
                revision.map(|revision| revision.number).ok_or_else(|| "a write without revision".into())
            }
            Self::Etcd(channel) => {
                let success = batch.ops.into_iter().map(|op| {
                    let key = op.key.to_string().into();
                    RequestOp {
                        request: Some(match op.value {
                            Some(value) => Request::Put(Put { key, value }),
                            None => Request::Delete(Delete { key }),
                        }),
                    }
                });
                let request = Txn { success: success.collect() };
                let answer: TxnAnswer = etcd::call(channel, "/etcdserverpb.KV/Txn", request).await?;
                answer.header.map(|h| h.revision.unsigned_abs()).ok_or_else(|| "no revision".into())
            }
        }
    }
}

/// Writes a whole workload once, with several batches in flight. Returns the number of bytes.
pub(super) async fn fill<W>(workload: &mut WriteWorkload, write: impl Fn(Batch) -> W) -> Result<u64, String>
where
    W: Future<Output = Result<(), String>>,
{
    let (mut bytes, mut told) = (0, 0);
    let mut filling = stream::iter(workload.filling())
        .map(|batch| {
            let bytes = size(&batch);
            let written = write(batch);
            async move { written.await.map(|()| bytes) }
        })
        .buffer_unordered(FILLING);
    while let Some(more) = filling.try_next().await? {
        bytes += more;
        if bytes / 1_000_000_000 > told {
            told = bytes / 1_000_000_000;
            eprintln!("  {told} GB");
        }
    }
    Ok(bytes)
}

fn size(batch: &Batch) -> u64 {
    batch.ops.iter().map(|op| (op.key.len() + op.value.as_ref().map_or(0, Bytes::len)) as u64).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `etcdserverpb.TxnRequest`. This and the following messages have only the fields that are used here.
#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(oneof = "Request", tags = "2, 3")]
    request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Request {
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}
