//! Keeps the roots of federated trust domains current that serve them at a URL (SPIFFE Federation, 5.2.1: `https_web`).

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use fairmesh_identity::{BundleHints, MAX_BUNDLE_DOCUMENT, read_bundle_document};
use fairmesh_model::{BundleEndpoint, FederatedDomains, Record, RecordKey, TrustBundle};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_store::author::saying;
use fairmesh_wire::records;
use tokio::time::{Instant, sleep};

use super::{IdentityService, recorded_bundle};
use crate::web::{WebUrl, fetch};

/// How often the record is looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two fetches of a document that does not name it, as SPIFFE recommends, and the bounds of one that does.
const REFRESH: Duration = Duration::from_secs(300);
const REFRESH_BOUNDS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3600));
/// The same after one that failed.
const RETRY: Duration = Duration::from_secs(60);
/// How long an older document is refused after a newer one: servers of an endpoint may differ for a while, but one that was restored
/// begins anew.
const SUPERSEDED: Duration = Duration::from_secs(3600);

/// What is known of an endpoint.
#[derive(Debug)]
struct Followed {
    due: Instant,
    newest: NewestDocument,
}

/// The number of the newest document that an endpoint served, and when it did so last.
#[derive(Clone, Copy, Debug, Default)]
struct NewestDocument(Option<(u64, Instant)>);

impl NewestDocument {
    /// Notes a document, unless it is older (SPIFFE Trust Domain and Bundle, 4.1.1).
    fn accept(&mut self, sequence: Option<u64>, now: Instant) -> Result<(), String> {
        let Some(sequence) = sequence else { return Ok(()) };
        match self.0 {
            Some((newest, served)) if sequence < newest && now < served + SUPERSEDED => {
                Err(format!("the endpoint serves the document {sequence}, and served {newest} before"))
            }
            _ => {
                self.0 = Some((sequence, now));
                Ok(())
            }
        }
    }
}

impl IdentityService {
    /// Fetches the roots of other trust domains, and records those that have changed. Several control planes of a store may do so:
    /// only one of them writes.
    pub(crate) async fn follow_bundle_endpoints(self) {
        let mut followed: HashMap<BundleEndpoint, Followed> = HashMap::new();
        loop {
            sleep(INTERVAL).await;
            let Some((domains, _)) = self.federated_domains() else { continue };
            followed.retain(|endpoint, _| domains.endpoints.contains(endpoint));
            for endpoint in domains.endpoints {
                let known = followed.get(&endpoint);
                if known.is_some_and(|known| Instant::now() < known.due) {
                    continue;
                }
                let mut newest = known.map_or(NewestDocument::default(), |known| known.newest);
                let pause = match self.refresh_from(&endpoint, &mut newest).await {
                    Ok(hint) => hint.unwrap_or(REFRESH).clamp(REFRESH_BOUNDS.0, REFRESH_BOUNDS.1),
                    Err(problem) => {
                        tracing::warn!(
                            domain = %endpoint.domain, problem,
                            "the roots of a federated trust domain cannot be fetched; those before stay in use"
                        );
                        RETRY
                    }
                };
                followed.insert(endpoint, Followed { due: Instant::now() + pause, newest });
            }
        }
    }

    /// After which time the document wants to be read again, if it says so.
    async fn refresh_from(
        &self,
        endpoint: &BundleEndpoint,
        newest: &mut NewestDocument,
    ) -> Result<Option<Duration>, String> {
        let url: WebUrl = endpoint.url.parse().map_err(|error: fairmesh_model::Invalid| error.to_string())?;
        let document = fetch(&url, None, MAX_BUNDLE_DOCUMENT).await?;
        let bundle =
            read_bundle_document(endpoint.domain.clone(), &document).map_err(|error| error.to_string())?;
        let hints = BundleHints::of(&document);
        newest.accept(hints.sequence, Instant::now())?;
        self.record_roots(endpoint, bundle).await?;
        Ok(hints.refresh)
    }

    async fn record_roots(&self, endpoint: &BundleEndpoint, bundle: TrustBundle) -> Result<(), String> {
        let own = recorded_bundle(&self.node);
        if own.is_some_and(|own| bundle.roots.iter().any(|root| own.roots.contains(root))) {
            return Err("the bundle has a root of the mesh itself".into());
        }
        // The record may have changed meanwhile.
        let Some((mut domains, revision)) = self.federated_domains() else { return Ok(()) };
        if !domains.endpoints.contains(endpoint) {
            return Ok(());
        }
        let Some(known) = domains.bundles.iter_mut().find(|known| known.domain == bundle.domain) else {
            return Ok(());
        };
        // In whatever order: a server may give another one each time, and all processes would begin new sessions.
        let known_roots: BTreeSet<_> = known.roots.iter().collect();
        if known_roots == bundle.roots.iter().collect() {
            return Ok(());
        }
        let roots = bundle.roots.len();
        *known = bundle;
        let value = records::encode(&Record::FederatedDomains(domains));
        let op = Op {
            expect: Expect::Revision(revision),
            ..Op::put(RecordKey::FederatedDomains.to_string(), value)
        };
        let write = self.store.write(Batch { ops: vec![op] });
        saying("its bundle endpoint serves other roots".into(), write)
            .await
            .map_err(|error| format!("the new roots cannot be recorded: {error}"))?;
        tracing::info!(domain = %endpoint.domain, roots, "a federated trust domain has other roots");
        Ok(())
    }

    /// The record, and the revision that wrote it.
    fn federated_domains(&self) -> Option<(FederatedDomains, u64)> {
        let entry = self.node.get(&RecordKey::FederatedDomains.to_string())?;
        match records::decode(&RecordKey::FederatedDomains, &entry.value) {
            Ok(Record::FederatedDomains(domains)) => Some((domains, entry.revision)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_document_is_refused_while_servers_of_an_endpoint_may_differ() {
        let (mut newest, begin) = (NewestDocument::default(), Instant::now());
        newest.accept(None, begin).unwrap();
        newest.accept(Some(4), begin).unwrap();
        newest.accept(Some(5), begin).unwrap();
        let error = newest.accept(Some(4), begin + SUPERSEDED / 2).unwrap_err();
        assert!(error.contains("document 4") && error.contains("served 5"), "{error}");
        newest.accept(Some(5), begin + SUPERSEDED / 2).unwrap();
        newest.accept(Some(4), begin + SUPERSEDED).unwrap_err();
        // It serves 4 alone by now.
        newest.accept(Some(4), begin + 2 * SUPERSEDED).unwrap();
        newest.accept(None, begin + 2 * SUPERSEDED).unwrap();
    }
}
