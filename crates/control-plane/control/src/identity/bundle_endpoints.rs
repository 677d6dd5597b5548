//! Updates the roots of federated trust domains from their bundle endpoints (SPIFFE Federation, 5.2.1:
//! `https_web`).

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    mem,
    time::Duration,
};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
use fairmesh_identity::{BundleHints, MAX_BUNDLE_DOCUMENT, NewestDocument, read_bundle_document};
use fairmesh_model::{BundleEndpoint, FederatedDomains, Prefix, Record, RecordKey, TrustBundle};
use fairmesh_rib::{Expect, MAX_VALUE_BYTES, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use super::recorded_bundle;
use crate::http_fetch::{WebUrl, fetch};

/// Interval at which the record is checked.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two fetches if the document states none, as SPIFFE recommends, and the bounds of stated times.
const REFRESH: Duration = Duration::from_secs(300);
const REFRESH_BOUNDS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3600));
/// Pause after a failed fetch.
const RETRY: Duration = Duration::from_secs(60);
/// Maximum size up to which documents let the record grow, in bytes. It leaves room for domains that operators add.
const MAX_RECORD: usize = MAX_VALUE_BYTES / 4 * 3;

/// A bundle endpoint whose documents are fetched.
#[derive(Clone, Debug)]
struct FollowedEndpoint {
    /// Time of the next fetch.
    due: Instant,
    newest: NewestDocument,
    /// Fetched roots that are not yet recorded.
    unrecorded: Option<TrustBundle>,
    /// Reason why the last document was not used.
    problem: Option<String>,
}

/// Records the roots of federated trust domains, as served by their bundle endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct FederationController {
    followed: HashMap<BundleEndpoint, FollowedEndpoint>,
}

/// A document, or why it could not be fetched.
type Fetched = Result<(TrustBundle, BundleHints), String>;

/// The record of federated domains, and the documents that were due.
pub(crate) struct FederationFacts {
    /// The record, with the revision that wrote it.
    domains: Option<(FederatedDomains, u64)>,
    /// The roots of this mesh.
    own: Option<TrustBundle>,
    fetched: Vec<(BundleEndpoint, Fetched)>,
}

impl Controller for FederationController {
    const NAME: &'static str = "federated-bundles";
    /// Time limit of a round. It suffices for many unresponsive servers, since they are tried one after the other.
    const DEADLINE: Duration = Duration::from_secs(600);
    type Facts = FederationFacts;
    type Effect = Infallible;

    fn triggers(&self) -> Triggers {
        let prefixes = vec![Prefix::from(&RecordKey::FederatedDomains)];
        Triggers { prefixes, interval: Some(INTERVAL), ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<FederationFacts, BoxError> {
        let (domains, mut fetched) = (federated_domains(node), Vec::new());
        for endpoint in domains.iter().flat_map(|(domains, _)| &domains.endpoints) {
            let followed = self.followed.get(endpoint);
            if followed.is_none_or(|followed| followed.due <= Instant::now()) {
                fetched.push((endpoint.clone(), fetch_bundle(endpoint).await));
            }
        }
        Ok(FederationFacts { domains, own: recorded_bundle(node), fetched })
    }

    fn reconcile(&mut self, facts: FederationFacts, now: Now) -> Decision<Infallible> {
        let FederationFacts { domains, own, fetched } = facts;
        let Some((domains, revision)) = domains else {
            self.followed.clear();
            return Decision::default();
        };
        self.followed.retain(|endpoint, _| domains.endpoints.contains(endpoint));
        for (endpoint, fetched) in fetched {
            self.note(endpoint, fetched, own.as_ref(), now.at);
        }
        let writes = self.writes(&domains, revision);
        let refusal = |endpoint: &BundleEndpoint| {
            let problem = self.followed.get(endpoint)?.problem.as_ref()?;
            let reason = format!("its roots cannot be fetched, and the roots before stay in use: {problem}");
            Some(Refusal { subject: endpoint.domain.to_string(), reason })
        };
        let refused = domains.endpoints.iter().filter_map(refusal).collect();
        Decision { writes, refused, ..Decision::default() }
    }

    async fn apply(&mut self, effect: Infallible) -> Result<(), BoxError> {
        match effect {}
    }

    fn written(&mut self, domains: &str) {
        self.followed.values_mut().for_each(|followed| followed.unrecorded = None);
        tracing::info!(domains, "federated trust domains have other keys");
    }
}

impl FederationController {
    /// Records the result of a fetch from an endpoint.
    fn note(&mut self, endpoint: BundleEndpoint, fetched: Fetched, own: Option<&TrustBundle>, now: Instant) {
        let unknown =
            FollowedEndpoint { due: now, newest: NewestDocument::default(), unrecorded: None, problem: None };
        let followed = self.followed.entry(endpoint).or_insert(unknown);
        let accepted = fetched.and_then(|(bundle, hints)| {
            followed.newest.accept(hints.sequence, now)?;
            if own.is_some_and(|own| bundle.roots.iter().any(|root| own.roots.contains(root))) {
                return Err("the bundle has a root of the mesh itself".into());
            }
            Ok((bundle, hints.refresh.unwrap_or(REFRESH).clamp(REFRESH_BOUNDS.0, REFRESH_BOUNDS.1)))
        });
        match accepted {
            Ok((bundle, pause)) => {
                (followed.unrecorded, followed.problem, followed.due) = (Some(bundle), None, now + pause);
            }
            Err(problem) => (followed.problem, followed.due) = (Some(problem), now + RETRY),
        }
    }

    /// Returns the write that records the unrecorded roots. They count as unrecorded until the write succeeds.
    fn writes(&mut self, domains: &FederatedDomains, revision: u64) -> Vec<Write> {
        let encode =
            |domains: &FederatedDomains| record_encoding::encode(&Record::FederatedDomains(domains.clone()));
        let most = encode(domains).len().max(MAX_RECORD);
        let (mut changed, mut next) = (Vec::new(), domains.clone());
        for endpoint in &domains.endpoints {
            let Some(followed) = self.followed.get_mut(endpoint) else { continue };
            let known = next.bundles.iter().position(|known| known.domain == endpoint.domain);
            let (Some(known), Some(fetched)) = (known, &followed.unrecorded) else { continue };
            if has_same_keys(&next.bundles[known], fetched) {
                followed.unrecorded = None;
                continue;
            }
            let before = mem::replace(&mut next.bundles[known], fetched.clone());
            // The changes of other domains are written without it.
            if encode(&next).len() > most {
                next.bundles[known] = before;
                let problem = format!("with it, the record of all domains has more than {MAX_RECORD} bytes");
                followed.problem = Some(problem);
                continue;
            }
            changed.push(endpoint.domain.to_string());
        }
        if changed.is_empty() {
            return Vec::new();
        }
        let op = Op::put(RecordKey::FederatedDomains.to_string(), encode(&next))
            .expecting(Expect::Revision(revision));
        let (subject, reason) = (changed.join(", "), "its bundle endpoint serves other keys");
        vec![Write { subject, reason, ops: vec![op] }]
    }
}

/// Whether two bundles have the same keys. The order of roots is ignored: a server may change it each time, and each change
/// would make all processes begin new TLS sessions.
fn has_same_keys(one: &TrustBundle, other: &TrustBundle) -> bool {
    let roots = |bundle: &TrustBundle| bundle.roots.iter().cloned().collect::<BTreeSet<_>>();
    roots(one) == roots(other) && one.jwt_keys == other.jwt_keys
}

async fn fetch_bundle(endpoint: &BundleEndpoint) -> Fetched {
    let url: WebUrl = endpoint.url.parse().map_err(|error: fairmesh_model::Invalid| error.to_string())?;
    let document = fetch(&url, None, MAX_BUNDLE_DOCUMENT).await.map_err(|error| error.to_string())?;
    let bundle =
        read_bundle_document(endpoint.domain.clone(), &document).map_err(|error| error.to_string())?;
    Ok((bundle, BundleHints::of(&document)))
}

/// The record of federated domains, with the revision that wrote it.
fn federated_domains(node: &Node) -> Option<(FederatedDomains, u64)> {
    let entry = node.get(&RecordKey::FederatedDomains.to_string())?;
    match record_encoding::decode(&RecordKey::FederatedDomains, &entry.value) {
        Ok(Record::FederatedDomains(domains)) => Some((domains, entry.revision)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{JwtKey, TrustDomain};

    use super::*;

    fn bundle(root: u8) -> TrustBundle {
        TrustBundle::new(TrustDomain::new("other.example").unwrap(), vec![vec![root]])
    }

    /// A round on a record with root 1, in which the endpoint serves `fetched`.
    fn reconcile(controller: &mut FederationController, fetched: Option<Fetched>) -> Decision<Infallible> {
        let domain = TrustDomain::new("other.example").unwrap();
        let endpoint = BundleEndpoint { domain, url: "https://other.example/bundle".into() };
        let domains = FederatedDomains { bundles: vec![bundle(1)], endpoints: vec![endpoint.clone()] };
        let own = TrustBundle::new(TrustDomain::new("prod").unwrap(), vec![vec![9]]);
        let fetched = fetched.map(|fetched| (endpoint, fetched)).into_iter().collect();
        let facts = FederationFacts { domains: Some((domains, 7)), own: Some(own), fetched };
        controller.reconcile(facts, Now { at: Instant::now(), wall_ms: 0 })
    }

    #[test]
    fn changed_federated_roots_are_written_again_until_write_succeeds() {
        let mut controller = FederationController::default();
        let serving = |root| Some(Ok((bundle(root), BundleHints::default())));
        assert!(reconcile(&mut controller, serving(1)).writes.is_empty(), "the record has it");
        let decision = reconcile(&mut controller, serving(2));
        assert_eq!(decision.writes[0].subject, "other.example");
        assert_eq!(decision.writes[0].ops[0].expect, Expect::Revision(7));
        // Another writer was faster, and nothing new is fetched meanwhile.
        assert_eq!(reconcile(&mut controller, None).writes.len(), 1);
        controller.written("other.example");
        assert!(reconcile(&mut controller, None).writes.is_empty());
    }

    #[test]
    fn bundle_without_room_is_refused_and_those_of_other_domains_are_written() {
        let of = |number: u8, jwt_keys: usize| {
            let domain = TrustDomain::new(format!("domain-{number}")).unwrap();
            let key = |i: usize| JwtKey { jwk: vec![i as u8; 2_000], expires_at: None };
            let jwt_keys = (0..jwt_keys).map(key).collect();
            TrustBundle { jwt_keys, ..TrustBundle::new(domain, vec![vec![number]]) }
        };
        let (full, empty) = ((0..6).map(|number| of(number, 16)), [of(8, 0), of(9, 0)]);
        let bundles: Vec<_> = full.chain(empty).collect();
        let endpoint = |number: u8| {
            let domain = TrustDomain::new(format!("domain-{number}")).unwrap();
            BundleEndpoint { domain, url: format!("https://domain-{number}/bundle") }
        };
        let endpoints = vec![endpoint(8), endpoint(9)];
        let domains = Some((FederatedDomains { bundles, endpoints }, 7));
        let serves =
            |number, jwt_keys| (endpoint(number), Ok((of(number, jwt_keys), BundleHints::default())));
        let facts = FederationFacts { domains, own: None, fetched: vec![serves(8, 16), serves(9, 1)] };
        let mut controller = FederationController::default();
        let decision = controller.reconcile(facts, Now { at: Instant::now(), wall_ms: 0 });
        assert_eq!(decision.writes[0].subject, "domain-9");
        let refused: Vec<_> = decision.refused.iter().map(|refusal| &*refusal.subject).collect();
        assert_eq!(refused, ["domain-8"]);
    }

    #[test]
    fn unusable_federated_roots_are_refused_until_endpoint_serves_usable_ones() {
        let mut controller = FederationController::default();
        let reason = |decision: &Decision<Infallible>| decision.refused[0].reason.clone();
        let refused = reconcile(&mut controller, Some(Err("it does not respond".into())));
        assert!(reason(&refused).ends_with("it does not respond") && refused.writes.is_empty());
        assert!(reason(&reconcile(&mut controller, None)).ends_with("it does not respond"), "it stays");
        let refused = reconcile(&mut controller, Some(Ok((bundle(9), BundleHints::default()))));
        assert!(reason(&refused).ends_with("the bundle has a root of the mesh itself"));
        assert!(refused.writes.is_empty());
        let mended = reconcile(&mut controller, Some(Ok((bundle(2), BundleHints::default()))));
        assert_eq!((mended.refused, mended.writes.len()), (vec![], 1));
    }
}
