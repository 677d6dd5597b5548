//! Follows the record of revocations.

use std::sync::Arc;

use fairmesh_model::{Prefix, Record, RecordKey, Revision, Revocations};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, Sink},
};
use fairmesh_wire::{
    records,
    transport::{Address, Transport},
};
use tokio::sync::watch;

use crate::Workload;

/// Whom to follow.
#[derive(Clone, Debug)]
pub struct RevocationSource {
    /// The agent of the machine.
    pub agent: Address,
    /// How it is connected to.
    pub transport: Transport,
    /// The description of this process, for operators.
    pub software: String,
}

/// Keeps what `workload` refuses as the record says, from its first certificate on. Ends never; the last revocations stay
/// in force while the agent is away.
pub async fn follow_revocations(workload: Arc<Workload>, source: RevocationSource) {
    workload.ready().await;
    let RevocationSource { agent, transport, software } = source;
    let config = FollowerConfig {
        transport,
        addresses: vec![agent],
        software,
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let (applied, mut revisions) = watch::channel(None);
    let handle = Follower::spawn(config, RevocationSink { workload, applied });
    handle.subscribe(Prefix::from(&RecordKey::Revocations));
    while revisions.changed().await.is_ok() {
        let revision: Option<Revision> = *revisions.borrow_and_update();
        revision.into_iter().for_each(|revision| handle.ack(revision));
    }
}

struct RevocationSink {
    workload: Arc<Workload>,
    applied: watch::Sender<Option<Revision>>,
}

impl Sink for RevocationSink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.workload.note_revocations();
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, _: &Prefix, reason: &str) {
        self.workload.note_revocations();
        tracing::debug!(reason, "revocations cannot be followed");
    }
}

impl Mirror for RevocationSink {
    fn retain(&mut self, snapshot: &Snapshot) {
        if !snapshot.holds(&RecordKey::Revocations.to_string()) {
            self.workload.revoke(Revocations::default());
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match records::decode(&key, record.value) {
            Ok(Record::Revocations(revocations)) => self.workload.revoke(revocations),
            Ok(_) => {}
            // The last ones stay in force.
            Err(error) => {
                tracing::error!(%error, "the revocations are not understood; keeping the last ones")
            }
        }
    }

    fn delete(&mut self, _: &str, _: &RecordKey) {
        self.workload.revoke(Revocations::default());
    }

    fn mark_current(&mut self, _: &Prefix) {}
}
