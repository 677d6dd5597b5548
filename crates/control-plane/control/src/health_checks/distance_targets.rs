use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Triggers, Wake};
use fairmesh_model::{
    Endpoint, MAX_MEASURED_REGIONS, Prefix, Protocol, Record, RecordKey, Region, ServiceName,
};
use fairmesh_rib::Node;
use fairmesh_wire::record_encoding;

use super::Checks;

/// Maximum number of targets per region. With several, one slow or restarting target does not determine the distance.
const MAX_TARGETS: usize = 3;
/// Maximum number of a region's services that are considered for targets.
const MAX_SERVICES: usize = 64;
/// Minimum interval between two choices of targets.
const CHOICE_INTERVAL: Duration = Duration::from_secs(1);

/// An endpoint to which the checkers of other regions measure round-trip times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DistanceTarget {
    pub(super) address: SocketAddr,
    pub(super) http2: bool,
    /// Service whose identity the endpoint proves by mutual TLS; `None` for plaintext.
    pub(super) service: Option<ServiceName>,
}

/// The targets by region.
pub(crate) type DistanceTargets = BTreeMap<Region, Vec<DistanceTarget>>;

/// Keys of serving endpoints by region, updated by commits.
#[derive(Debug, Default)]
pub(super) struct ServingEndpoints {
    by_region: BTreeMap<Region, BTreeSet<Arc<str>>>,
}

impl ServingEndpoints {
    /// Indexes a change of an endpoint. Returns whether the choice of targets may change.
    pub(super) fn index(&mut self, key: &Arc<str>, serving: bool) -> bool {
        let Ok(RecordKey::Endpoint(_, region, _)) = RecordKey::parse(key) else { return false };
        if serving {
            self.by_region.entry(region).or_default().insert(key.clone());
            // Even a known endpoint may have got a new address.
            return true;
        }
        let Some(keys) = self.by_region.get_mut(&region) else { return false };
        let removed = keys.remove(key);
        if keys.is_empty() {
            self.by_region.remove(&region);
        }
        removed
    }

    /// Chooses the targets of all regions. The choice depends only on records, so it rarely changes.
    pub(super) fn choose(&self, node: &Node) -> DistanceTargets {
        let regions = self.by_region.iter().take(MAX_MEASURED_REGIONS);
        let chosen = regions.map(|(region, keys)| (region.clone(), choose_in(keys, node)));
        chosen.filter(|(_, targets)| !targets.is_empty()).collect()
    }
}

/// Chooses endpoints of different services if possible, since they are more likely to run on different machines.
fn choose_in(keys: &BTreeSet<Arc<str>>, node: &Node) -> Vec<DistanceTarget> {
    let mut candidates = Vec::new();
    let mut after = String::new();
    for _ in 0..MAX_SERVICES {
        let mut rest = keys.range::<str, _>((Bound::Included(after.as_str()), Bound::Unbounded));
        let Some(RecordKey::Endpoint(service, ..)) = rest.next().and_then(|key| RecordKey::parse(key).ok())
        else {
            break;
        };
        let folder = Prefix::endpoints(&service, None);
        if let Some(http2) = protocol(&service, node) {
            let here = keys.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded));
            let here = here.take_while(|key| folder.covers(key)).take(MAX_TARGETS);
            let requires_mtls = requires_mtls(&service, node);
            let targets = here.filter_map(|key| {
                let Endpoint { address, mtls, .. } = endpoint(key, node)?;
                if requires_mtls && !mtls {
                    return None;
                }
                Some(DistanceTarget { address, http2, service: mtls.then(|| service.clone()) })
            });
            candidates.extend(targets.enumerate());
        }
        if candidates.iter().filter(|(rank, _)| *rank == 0).count() >= MAX_TARGETS {
            break;
        }
        // The first key after the folder: '0' follows '/'.
        after = format!("{}0", folder.as_str().trim_end_matches('/'));
    }
    candidates.sort_by_key(|(rank, _)| *rank);
    candidates.into_iter().take(MAX_TARGETS).map(|(_, target)| target).collect()
}

/// Whether the endpoints of a service speak HTTP/2; `None` if callers in other regions may not reach them.
fn protocol(service: &ServiceName, node: &Node) -> Option<bool> {
    let policy = RecordKey::Policy(service.clone());
    if let Some(entry) = node.get(&policy.to_string())
        // Decodes only the message: full validation would compile its expressions.
        && record_encoding::is_local_only(&entry.value)
    {
        return None;
    }
    let key = RecordKey::Service(service.clone());
    match record_encoding::decode(&key, &node.get(&key.to_string())?.value) {
        Ok(Record::Service(service)) => Some(service.protocol != Protocol::Http1),
        _ => None,
    }
}

/// Whether callers refuse to connect to the service's endpoints in plaintext.
fn requires_mtls(service: &ServiceName, node: &Node) -> bool {
    let policy = node.get(&RecordKey::Policy(service.clone()).to_string());
    node.get(&RecordKey::TrustBundle.to_string()).is_some()
        && !policy.is_some_and(|entry| record_encoding::permits_plaintext(&entry.value))
}

fn endpoint(key: &str, node: &Node) -> Option<Endpoint> {
    match record_encoding::decode(&RecordKey::parse(key).ok()?, &node.get(key)?.value) {
        Ok(Record::Endpoint(endpoint)) => Some(endpoint),
        _ => None,
    }
}

/// Publishes the targets for measuring distances. Checkers receive them.
#[derive(Clone, Debug)]
pub(crate) struct TargetController(pub(crate) Checks);

/// Effect: publish changed targets.
#[derive(Debug)]
pub(crate) struct PublishTargets(DistanceTargets);

impl fmt::Display for PublishTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: usize = self.0.values().map(Vec::len).sum();
        write!(f, "publish {targets} targets of measured distances in {} regions", self.0.len())
    }
}

impl Controller for TargetController {
    const NAME: &'static str = "distance-targets";
    /// The targets, as chosen from the records.
    type Facts = DistanceTargets;
    type Effect = PublishTargets;

    fn triggers(&self) -> Triggers {
        let notify = Some(Arc::clone(&self.0.check_index.targets_changed));
        Triggers { notify, min_gap: CHOICE_INTERVAL, ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<Self::Facts, BoxError> {
        Ok(self.0.check_index.choose_targets(node))
    }

    fn reconcile(&mut self, targets: Self::Facts, _: Now) -> Decision<Self::Effect> {
        let is_known = **self.0.targets.borrow() == targets;
        let effects = (!is_known).then_some(PublishTargets(targets)).into_iter().collect();
        Decision { effects, ..Decision::default() }
    }

    async fn apply(&mut self, PublishTargets(targets): PublishTargets) -> Result<(), BoxError> {
        self.0.targets.send_replace(Arc::new(targets));
        Ok(())
    }
}
