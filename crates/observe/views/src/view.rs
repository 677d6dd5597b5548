//! Records of the RIB, decoded and grouped by service, for display.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    Authorization, DefaultAuthorization, DefaultsByScope, DefaultsScope, Endpoint, FieldOrigin,
    GatewayBackend, GatewayQuota, GatewayService, Hosts, InheritedDefaults, Invalid, KindScope, Label,
    MtlsMode, Placement, Policy, PolicyDefaults, PolicyField, Prefix, Record, RecordKey, RecordKind, Region,
    RegionDrain, RegionTable, Regions, RoundTrips, Service, ServiceName, ShardMap, ShardMove, TableOrigin,
    Tenant, Verdicts, WorkloadEntry, Zone, access::RoleBinding,
};
use fairmesh_wire::{record_encoding, shard_encoding};

/// Maximum number of further unreadable records that an error names.
const MAX_NAMED: usize = 9;

/// A stored record, not decoded.
#[derive(Debug)]
pub struct StoredRecord {
    /// Key of the record.
    pub key: RecordKey,
    /// Encoded value of the record.
    pub value: Bytes,
    /// Revision that wrote the record.
    pub revision: u64,
}

/// A decoded record, and the revision that wrote it.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The decoded record.
    pub value: T,
    /// Revision that wrote the record; 0 if there is no record.
    pub revision: u64,
}

/// All records of one service.
#[derive(Debug, Default)]
pub struct ServiceView {
    /// Declaration of the service.
    pub service: Option<At<Service>>,
    /// Policy as written, with the authorization rules in force.
    pub policy: Option<At<Policy>>,
    /// Defaults of the tenant and the mesh if they were read, and the newest revision that wrote any of them.
    pub inherited: At<InheritedDefaults>,
    /// Endpoints, ordered by name.
    pub endpoints: Vec<At<Endpoint>>,
    /// Verdicts of active health checks.
    pub health: Verdicts,
    /// The shard map, if the service is sharded.
    pub shards: Option<ShardMap>,
    /// Shard moves in flight.
    pub moves: Vec<ShardMove>,
    /// Region tables of the planner, by region of the callers.
    pub tables: BTreeMap<Region, At<RegionTable>>,
    /// Programs that have the identity of the service.
    pub workload: Option<At<WorkloadEntry>>,
    /// Record of the service's own authorization rules; the rules in force are in the policy.
    pub authorization: Option<At<Authorization>>,
    /// How the service uses a gateway with backends.
    pub gateway: Option<At<GatewayService>>,
    /// Backends of the gateway that serve the service.
    pub placement: Option<At<Placement>>,
}

/// Decoded records of a part of the RIB.
#[derive(Debug, Default)]
pub struct View {
    /// Services by name.
    pub services: BTreeMap<ServiceName, ServiceView>,
    /// Declared topology.
    pub regions: At<Regions>,
    /// Measured round-trip times between regions.
    pub round_trips: RoundTrips,
    /// Host types and their speeds.
    pub hosts: At<Hosts>,
    /// Default for services without authorization rules.
    pub authorization: Option<DefaultAuthorization>,
    /// Policy defaults by scope, if they were read.
    pub policy_defaults: DefaultsByScope,
    /// Revisions that wrote the policy defaults.
    pub defaults_revisions: BTreeMap<DefaultsScope, u64>,
    /// Drains of whole regions, if they were read.
    pub drains: BTreeMap<Region, RegionDrain>,
    /// Role bindings for access to records, if they were read.
    pub roles: BTreeMap<Label, At<RoleBinding>>,
    /// Backends of the gateway, if they were read.
    pub gateway_backends: BTreeMap<Label, At<GatewayBackend>>,
    /// Quotas of tenants at the gateway.
    pub gateway_quotas: BTreeMap<Tenant, At<GatewayQuota>>,
    /// Whether the mesh has a trust domain.
    pub has_trust_domain: bool,
    /// Records that this release cannot decode, with the reason. The rest of the view lacks them.
    pub unreadable: BTreeMap<RecordKey, Invalid>,
}

impl ServiceView {
    /// Returns the authorization rules in force.
    pub fn rules(&self) -> Option<&Authorization> {
        self.policy.as_ref()?.value.authorization.as_deref()
    }
}

impl<T: Default> Default for At<T> {
    fn default() -> Self {
        Self { value: T::default(), revision: 0 }
    }
}

/// Returns the time since a moment in milliseconds since 1970, for display. Zero if this machine's clock is behind.
pub fn age_of(at_ms: u64) -> Duration {
    #[allow(clippy::disallowed_methods, reason = "ages of records are shown by the wall clock")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(at_ms))
}

/// Formats a time in milliseconds since 1970 as RFC 3339.
pub fn instant(at_ms: u64) -> String {
    let time = i64::try_from(at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// Returns the age of a table by this machine's clock, for display. Routers use the age of their data instead.
pub fn table_age(table: &RegionTable) -> Duration {
    match table.origin {
        TableOrigin::ByHand => Duration::ZERO,
        TableOrigin::Planned(confirmed) => age_of(confirmed.at_ms),
    }
}

/// The services that a command or page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every service.
    All,
    /// The services of one tenant.
    Tenant(Tenant),
    /// One service.
    Service(ServiceName),
}

/// Prefix of the records of all tenants.
pub const ALL_TENANTS: &str = "/t/";

/// Returns all kinds of records that belong to services, except their history.
pub fn every_kind() -> Vec<RecordKind> {
    let of_services = RecordKind::ALL.iter().copied().filter(|kind| kind.scope() == KindScope::Service);
    of_services.filter(|kind| *kind != RecordKind::History).collect()
}

impl Scope {
    /// Returns the prefixes of the policy defaults that concern the scope.
    pub fn policy_defaults(&self) -> Vec<Prefix> {
        let of = |scope| Prefix::from(&RecordKey::PolicyDefaults(scope));
        let tenant = match self {
            Self::All => return vec![Prefix::policy_defaults()],
            Self::Tenant(tenant) => tenant,
            Self::Service(name) => &name.tenant,
        };
        vec![of(DefaultsScope::Mesh), of(DefaultsScope::Tenant(tenant.clone()))]
    }

    /// Returns whether the service is in the scope.
    pub fn contains(&self, name: &ServiceName) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(tenant) => name.tenant == *tenant,
            Self::Service(one) => name == one,
        }
    }

    fn prefixes(&self, kinds: &[RecordKind]) -> Vec<Prefix> {
        match self {
            // There is no list of tenants, so all services are read and filtered here.
            Self::All => Prefix::new(ALL_TENANTS).into_iter().collect(),
            Self::Tenant(tenant) => kinds.iter().map(|kind| Prefix::tenant(tenant, *kind)).collect(),
            Self::Service(name) => kinds.iter().map(|kind| kind.prefix_of(name)).collect(),
        }
    }
}

impl View {
    /// Returns the prefixes to read: records of `scope` of these kinds, the topology, and records that concern all
    /// services.
    pub fn prefixes(scope: &Scope, kinds: &[RecordKind]) -> Vec<Prefix> {
        let mut prefixes = scope.prefixes(kinds);
        prefixes.push(Prefix::topology());
        prefixes.push(Prefix::from(&RecordKey::DefaultAuthorization));
        prefixes.push(Prefix::from(&RecordKey::TrustBundle));
        prefixes
    }

    /// Decodes records into a view.
    ///
    /// # Errors
    /// If a record cannot be decoded; the error names its key.
    pub fn of(stored: Vec<StoredRecord>) -> Result<Self, Invalid> {
        Self::of_readable(stored).complete()
    }

    /// Decodes the records that this release can read, and lists the others as [`unreadable`](Self::unreadable): one
    /// unreadable record must not hide a whole mesh.
    pub fn of_readable(stored: Vec<StoredRecord>) -> Self {
        let mut view = Self::default();
        let mut parts: BTreeMap<ServiceName, Vec<(RecordKey, Bytes)>> = BTreeMap::new();
        for one in stored {
            match &one.key {
                RecordKey::ShardManifest(name, _) | RecordKey::ShardChunk(name, ..) => {
                    parts.entry(name.clone()).or_default().push((one.key, one.value));
                }
                RecordKey::History(..) | RecordKey::MeshHistory(..) => {}
                _ => {
                    let key = one.key.clone();
                    if let Err(invalid) = view.take(one) {
                        view.unreadable.insert(key, invalid);
                    }
                }
            }
        }
        for (name, parts) in parts {
            view.take_map(name, parts);
        }
        view.inherit();
        view
    }

    /// Returns the view if all its records were decoded.
    ///
    /// # Errors
    /// The reasons of the unreadable records: the first, followed in its problem by the others.
    pub fn complete(self) -> Result<Self, Invalid> {
        let mut unreadable = self.unreadable.values();
        let Some(mut invalid) = unreadable.next().cloned() else { return Ok(self) };
        let unnamed = unreadable.len().saturating_sub(MAX_NAMED);
        for Invalid { field, problem, .. } in unreadable.take(MAX_NAMED) {
            invalid.problem += &format!("; {field}: {problem}");
        }
        if unnamed > 0 {
            invalid.problem += &format!("; and {unnamed} more");
        }
        Err(invalid)
    }

    /// Adds the shard map of a service to the view.
    fn take_map(&mut self, name: ServiceName, parts: Vec<(RecordKey, Bytes)>) {
        let first = parts.first().map(|(key, _)| key.clone());
        match (shard_encoding::decode_map(parts), first) {
            (Ok(map), _) => self.services.entry(name).or_default().shards = map,
            (Err(invalid), Some(key)) => {
                self.unreadable.insert(key, invalid.within(format!("shards of {name}")));
            }
            (Err(_), None) => {}
        }
    }

    /// Adds the inherited policy defaults to each service.
    fn inherit(&mut self) {
        for (name, service) in &mut self.services {
            let revisions = self.defaults_revisions.iter().filter(|(scope, _)| scope.includes(&name.tenant));
            let revision = revisions.map(|(_, revision)| *revision).max().unwrap_or_default();
            service.inherited = At { value: self.policy_defaults.of(&name.tenant), revision };
        }
    }

    /// Adds a record to the view. The `match` has no wildcard, so that a new kind of record without an arm does not
    /// compile.
    fn take(&mut self, stored: StoredRecord) -> Result<(), Invalid> {
        let StoredRecord { key, value, revision } = stored;
        let record = record_encoding::decode(&key, &value).map_err(|e| e.within(key.to_string()))?;
        match record {
            Record::Service(value) => self.set(&key, |of| of.service = Some(At { value, revision })),
            Record::Policy(value) => self.set(&key, |of| of.policy = Some(At { value, revision })),
            Record::Authorization(value) => {
                self.set(&key, |of| of.authorization = Some(At { value, revision }));
            }
            Record::Workload(value) => self.set(&key, |of| of.workload = Some(At { value, revision })),
            Record::Endpoint(value) => self.set(&key, |of| of.endpoints.push(At { value, revision })),
            Record::Move(value) => self.set(&key, |of| of.moves.push(value)),
            Record::Verdict(value) => {
                if let RecordKey::Health(name, region, instance) = key {
                    self.services.entry(name).or_default().health.put(region, instance, value);
                }
            }
            Record::RegionTable(value) => {
                if let RecordKey::RegionTable(name, from) = key {
                    self.services.entry(name).or_default().tables.insert(from, At { value, revision });
                }
            }
            Record::Regions(value) => self.regions = At { value, revision },
            Record::RoundTrips(value) => self.round_trips.set_declared(value),
            Record::MeasuredDistances(value) => {
                if let RecordKey::MeasuredDistances(from) = key {
                    self.round_trips.set_measured(from, Some(value));
                }
            }
            Record::Hosts(value) => self.hosts = At { value, revision },
            Record::DefaultAuthorization(value) => self.authorization = Some(value),
            Record::PolicyDefaults(value) => self.take_defaults(key, value, revision),
            Record::RoleBinding(value) => {
                if let RecordKey::RoleBinding(name) = key {
                    self.roles.insert(name, At { value, revision });
                }
            }
            Record::GatewayBackend(_)
            | Record::GatewayQuota(_)
            | Record::GatewayService(_)
            | Record::Placement(_) => self.take_gateway(key, record, revision),
            Record::RegionDrain(value) => {
                if let RecordKey::RegionDrain(region) = key {
                    self.drains.insert(region, value);
                }
            }
            Record::TrustBundle(_) => self.has_trust_domain = true,
            // `fairmesh identity` and `explain` read these records themselves.
            Record::Revocations(_) | Record::FederatedDomains(_) | Record::TokenIssuers(_) => {}
            Record::JoinedAgent(_) | Record::ElectedChecker(_) => {}
        }
        Ok(())
    }

    fn take_defaults(&mut self, key: RecordKey, value: PolicyDefaults, revision: u64) {
        if let RecordKey::PolicyDefaults(scope) = key {
            self.defaults_revisions.insert(scope.clone(), revision);
            self.policy_defaults.set(scope, Some(value));
        }
    }

    /// Adds a record of the gateway to the view.
    fn take_gateway(&mut self, key: RecordKey, record: Record, revision: u64) {
        match (record, key) {
            (Record::GatewayBackend(value), RecordKey::GatewayBackend(name)) => {
                self.gateway_backends.insert(name, At { value, revision });
            }
            (Record::GatewayQuota(value), RecordKey::GatewayQuota(tenant)) => {
                self.gateway_quotas.insert(tenant, At { value, revision });
            }
            (Record::GatewayService(value), key) => {
                self.set(&key, |of| of.gateway = Some(At { value, revision }));
            }
            (Record::Placement(value), key) => {
                self.set(&key, |of| of.placement = Some(At { value, revision }));
            }
            _ => {}
        }
    }

    /// Changes the view of the service that a key belongs to.
    fn set(&mut self, key: &RecordKey, change: impl FnOnce(&mut ServiceView)) {
        if let Some(name) = key.service() {
            change(self.services.entry(name.clone()).or_default());
        }
    }

    /// Returns the number of known services that a gateway backend serves.
    pub fn services_on(&self, backend: &Label) -> usize {
        let placements = self.services.values().filter_map(|one| one.placement.as_ref());
        placements.filter(|placement| placement.value.has(backend)).count()
    }

    /// Returns the zones of a region that have endpoints or occur in its tables.
    pub fn zones_in(&self, region: &Region) -> BTreeSet<Zone> {
        let mut zones = BTreeSet::new();
        for service in self.services.values() {
            let here = service.endpoints.iter().map(|endpoint| &endpoint.value.location);
            zones.extend(here.filter(|at| at.region == *region).filter_map(|at| at.zone.clone()));
            let table = service.tables.get(region).into_iter();
            zones.extend(
                table
                    .flat_map(|table| &table.value.zones)
                    .flat_map(|(from, to)| [from].into_iter().chain(to.keys()).cloned()),
            );
        }
        zones
    }

    /// Returns every region that is declared, has endpoints, or occurs in measured round trips.
    pub fn region_names(&self) -> Vec<Region> {
        let used = self.services.values().flat_map(|service| &service.endpoints);
        let used = used.map(|endpoint| endpoint.value.location.region.clone());
        let measured = self.round_trips.measured_regions().cloned();
        let declared = self.regions.value.regions.keys().cloned();
        let mut names: Vec<Region> = declared.chain(used).chain(measured).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl ServiceView {
    /// Returns the endpoints that callers refuse, because they use plaintext in a mesh with a trust domain.
    pub fn refused(&self) -> impl Iterator<Item = &Endpoint> {
        let (mode, service) = (self.mtls(), self.service.as_ref().map(|at| &at.value));
        let endpoints = self.endpoints.iter().map(|at| &at.value);
        endpoints.filter(move |endpoint| mode.refuses(service, endpoint))
    }

    /// Returns whether the service's policy permits plaintext.
    pub fn mtls(&self) -> MtlsMode {
        self.policy.as_ref().map(|policy| policy.value.mtls).unwrap_or_default()
    }

    /// Returns the newest revision among the records by which a caller in `region` decides.
    pub fn revision(&self, region: &Region) -> u64 {
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.revision);
        let policy = self.policy.as_ref().map(|policy| policy.revision);
        let table = self.tables.get(region).map(|table| table.revision);
        let declared = self.service.as_ref().map(|service| service.revision);
        let newest = endpoints.chain(policy).chain(table).chain(declared).max().unwrap_or_default();
        newest.max(self.inherited.revision)
    }

    /// Returns the policy in force: as written, completed with the defaults of tenant and mesh and with built-in
    /// values.
    pub fn effective_policy(&self) -> Policy {
        self.merged_policy().0
    }

    /// Returns the policy in force, and the origin of each field that has a default.
    pub fn merged_policy(&self) -> (Policy, [(PolicyField, FieldOrigin); PolicyField::ALL.len()]) {
        let written = self.policy.as_ref().map(|policy| policy.value.clone());
        self.inherited.value.merge(written.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_incomplete_view_names_every_unreadable_record() {
        let stored = |key: RecordKey| StoredRecord { key, value: Bytes::from_static(&[0xff]), revision: 1 };
        let policy = |number| RecordKey::Policy(ServiceName::new(format!("red/web-{number:02}")).unwrap());
        let keys = [policy(0), RecordKey::DefaultAuthorization];
        let error = View::of(keys.clone().map(stored).into()).unwrap_err().to_string();
        for key in keys {
            assert!(error.contains(&format!("{key}: the bytes are not")), "{error}");
        }
        let many = View::of((0..12).map(policy).map(stored).collect()).unwrap_err();
        assert!(many.problem.contains("web-09: ") && !many.problem.contains("web-10: "), "{many}");
        assert!(many.problem.ends_with("; and 2 more"), "{many}");
    }
}
