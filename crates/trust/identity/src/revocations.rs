//! Follows the records of revocations and of federated trust domains.

use std::sync::Arc;

use fairmesh_model::{
    FederatedDomains, Invalid, Prefix, Record, RecordKey, Revision, Revocations, TrustBundle,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, Sink},
};
use fairmesh_wire::{
    record_encoding,
    transport::{Address, Transport},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{REPAIR_REVOCATIONS, Workload};

/// The followed records. The trust bundle is followed only if the source asks for roots.
const FOLLOWED: [RecordKey; 3] =
    [RecordKey::Revocations, RecordKey::FederatedDomains, RecordKey::TrustBundle];

/// The source from which the records are followed.
#[derive(Clone, Debug)]
pub struct RevocationSource {
    /// Addresses of the machine's agent, or of other processes of the mesh that serve the records; tried in this
    /// order.
    pub addresses: Vec<Address>,
    /// Transport for connections to these addresses.
    pub transport: Transport,
    /// Description of this process, shown to operators.
    pub software: String,
    /// Whether to [report](Workload::root_changes) changes of the domain's roots too.
    pub with_roots: bool,
}

/// Keeps the revocations and federated trust domains of `workload` up to date with the records. Starts when the first
/// certificate is installed, and never returns. The last records stay in force while the agent is unreachable.
pub async fn follow_revocations(workload: Arc<Workload>, source: RevocationSource) {
    follow_until(workload, source, CancellationToken::new()).await;
}

/// Follows the records until `stop`, and then unsubscribes from the agent within a second.
pub(crate) async fn follow_until(workload: Arc<Workload>, source: RevocationSource, stop: CancellationToken) {
    if stop.run_until_cancelled(workload.ready()).await.is_none() {
        return;
    }
    let RevocationSource { addresses, transport, software, with_roots } = source;
    let followed = if with_roots { &FOLLOWED[..] } else { &FOLLOWED[..2] };
    let config =
        FollowerConfig { transport, addresses, software, backoff: Backoff::default(), refuse_lagging: false };
    let (applied, mut revisions) = watch::channel(None);
    let unknown: Vec<_> = followed.iter().map(Prefix::from).collect();
    let sink = RevocationSink { workload, applied, unknown: unknown.clone(), roots: None };
    let handle = Follower::spawn(config, sink);
    for prefix in unknown {
        handle.subscribe(prefix);
    }
    while let Some(Ok(())) = stop.run_until_cancelled(revisions.changed()).await {
        let revision: Option<Revision> = *revisions.borrow_and_update();
        revision.into_iter().for_each(|revision| handle.ack(revision));
    }
    handle.close().await;
}

struct RevocationSink {
    workload: Arc<Workload>,
    applied: watch::Sender<Option<Revision>>,
    /// Prefixes of records that have not been received yet.
    unknown: Vec<Prefix>,
    /// The domain's roots as last received.
    roots: Option<TrustBundle>,
}

impl RevocationSink {
    fn note_if_known(&self) {
        if self.unknown.is_empty() {
            self.workload.note_revocations();
        }
    }

    /// Reports that the roots or the keys for JWT-SVIDs changed. The record is only a hint, because replicas forward it;
    /// roots and keys themselves come from a control plane.
    fn note_roots(&mut self, bundle: TrustBundle) {
        // This process may have asked for roots and keys before its first copy of the record, which may be newer.
        let other_roots = match &self.roots {
            Some(before) => (&before.roots, &before.retired) != (&bundle.roots, &bundle.retired),
            None => self.workload.credentials().is_some_and(|own| own.trust().bundle().roots != bundle.roots),
        };
        let other_keys = self.roots.as_ref().is_none_or(|before| before.jwt_keys != bundle.jwt_keys);
        self.roots = Some(bundle);
        if other_roots {
            self.workload.note_roots();
        }
        if other_keys {
            self.workload.note_jwt_keys();
        }
    }

    /// The last valid records stay in force. Without earlier revocations, all peers are refused but those that pass
    /// the record on.
    fn keep(&self, key: &RecordKey, error: &Invalid) {
        if *key == RecordKey::Revocations && self.workload.revocations_unreadable() {
            tracing::error!(
                %error,
                "the record of revocations is not understood, and no earlier one is known: all peers but control planes, \
                 replicas and agents are refused; upgrade this process, or replace the record {REPAIR_REVOCATIONS}"
            );
            return;
        }
        tracing::error!(%error, %key, "a record is not understood; keeping the last one");
    }
}

impl Sink for RevocationSink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.note_if_known();
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        self.unknown.retain(|unknown| unknown != prefix);
        self.note_if_known();
        tracing::debug!(%prefix, reason, "a record cannot be followed");
    }
}

impl Mirror for RevocationSink {
    fn retain(&mut self, snapshot: &Snapshot) {
        for key in FOLLOWED {
            let text = key.to_string();
            if snapshot.prefix.covers(&text) && !snapshot.holds(&text) {
                self.delete(&text, &key);
            }
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match record_encoding::decode(&key, record.value) {
            Ok(Record::Revocations(revocations)) => self.workload.revoke(revocations),
            Ok(Record::FederatedDomains(domains)) => self.workload.federate(domains),
            Ok(Record::TrustBundle(bundle)) => self.note_roots(bundle),
            Ok(_) => {}
            Err(error) => self.keep(&key, &error),
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        match key {
            RecordKey::FederatedDomains => self.workload.federate(FederatedDomains::default()),
            // A mesh never loses its trust domain, so a deletion is ignored.
            RecordKey::TrustBundle => {}
            _ => self.workload.revoke(Revocations::default()),
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.unknown.retain(|unknown| unknown != prefix);
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{JwtKey, SpiffePath, TrustDomain};

    use super::*;
    use crate::{Authority, Clock as _, Credentials, PrivateKey, SystemClock};

    #[test]
    fn first_copy_of_trust_bundle_counts_if_it_differs_from_what_was_asked_for() {
        let (folder, now) = (tempfile::tempdir().unwrap(), SystemClock.now());
        let domain = TrustDomain::new("prod").unwrap();
        let authority = Authority::open(&folder.path().join("ca"), &domain, now).unwrap();
        let known = authority.bundle();
        let with_keys = |keys: &[&str]| {
            let jwt_keys = keys.iter().map(|jwk| JwtKey { jwk: (*jwk).into(), expires_at: None });
            TrustBundle { jwt_keys: jwt_keys.collect(), ..known.clone() }
        };
        let counted = |bundles: Vec<TrustBundle>| {
            let workload = Arc::<Workload>::default();
            let key = PrivateKey::generate().unwrap();
            let id = "fairmesh/agent/web-1".parse::<SpiffePath>().unwrap().within(&domain);
            let issued = authority.issue(&key.signing_request().unwrap(), &id, now).unwrap();
            workload.install(Credentials::new(key, issued.chain, known.clone(), now).unwrap()).unwrap();
            let (applied, _revisions) = watch::channel(None);
            let mut sink =
                RevocationSink { workload: Arc::clone(&workload), applied, unknown: Vec::new(), roots: None };
            bundles.into_iter().for_each(|bundle| sink.note_roots(bundle));
            (*workload.root_changes().borrow(), *workload.jwt_key_changes().borrow())
        };
        let [one, two] = [&["1"][..], &["1", "2"]].map(with_keys);
        assert_eq!(counted(vec![one.clone()]), (0, 1), "other keys may have been asked for");
        assert_eq!(counted(vec![one.clone(), one.clone(), two]), (0, 2));
        let other = Authority::open(&folder.path().join("other"), &domain, now).unwrap().bundle();
        assert_eq!(counted(vec![other.clone()]), (1, 1), "the certificate came with former roots");
        assert_eq!(counted(vec![one, other]), (1, 2));
    }
}
