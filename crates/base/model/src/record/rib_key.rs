//! The key space of the RIB. Keys are segments joined by `/`; segments contain no `/`, since names cannot.

use std::{borrow::Borrow, fmt, sync::Arc};

use crate::{InstanceId, Invalid, Label, Region, ServiceName, ShardId, Tenant};

/// The key of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKey {
    /// `/t/{tenant}/services/{service}`
    Service(ServiceName),
    /// `/t/{tenant}/endpoints/{service}/{region}/{instance}`
    Endpoint(ServiceName, Region, InstanceId),
    /// `/t/{tenant}/health/{service}/{region}/{instance}`: a verdict of active health checks.
    Health(ServiceName, Region, InstanceId),
    /// `/t/{tenant}/policies/{service}`
    Policy(ServiceName),
    /// `/t/{tenant}/shards/{service}/{part}/manifest`
    ShardManifest(ServiceName, ShardPart),
    /// `/t/{tenant}/shards/{service}/{part}/chunks/{hash}`
    ShardChunk(ServiceName, ShardPart, ChunkHash),
    /// `/t/{tenant}/moves/{service}/{shard}`: outside `shards/`, since routers do not need it.
    Move(ServiceName, ShardId),
    /// `/t/{tenant}/tables/{service}/{region}`: the shares by region of calls from this one.
    RegionTable(ServiceName, Region),
    /// `/t/{tenant}/history/{kind}/{service}/{revision}`: an earlier value; outside the prefixes that routers read.
    History(HistoryKind, ServiceName, u64),
    /// `/g/history/{kind}/{revision}`: an earlier value of a record that belongs to no service.
    MeshHistory(MeshHistoryKind, u64),
    /// `/t/{tenant}/workloads/{service}`: the programs that may have the identity of the service.
    Workload(ServiceName),
    /// `/t/{tenant}/authorizations/{service}`: who may call the service; outside what routers and servers read, since the
    /// policy has a copy.
    Authorization(ServiceName),
    /// `/g/topology/regions`
    Regions,
    /// `/g/topology/rtt`
    RoundTrips,
    /// `/g/topology/measured/{region}`: distances that this region measured.
    MeasuredDistances(Region),
    /// `/g/drains/{region}`: a drain of a whole region; outside `topology/`, since routers do not need it.
    RegionDrain(Region),
    /// `/g/topology/hosts`
    Hosts,
    /// `/g/authorization`: what applies to services without rules.
    DefaultAuthorization,
    /// `/g/roles/{name}`: who may do what with the records.
    RoleBinding(Label),
    /// `/g/identity/bundle`: the roots of the trust domain.
    TrustBundle,
    /// `/g/identity/revocations`: the certificates that are no longer accepted.
    Revocations,
    /// `/g/identity/federation`: other trust domains whose certificates are verified.
    FederatedDomains,
    /// `/g/identity/agents/{name}`: an agent that joined the trust domain.
    JoinedAgent(Label),
}

/// The kind of record in a history entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HistoryKind {
    /// Of `services/`.
    Services,
    /// Of `policies/`.
    Policies,
    /// Of `workloads/`.
    Workloads,
    /// Of `authorizations/`.
    Authorizations,
}

/// The kind of record in a history entry of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MeshHistoryKind {
    /// Of `topology/regions`.
    Regions,
    /// Of `topology/rtt`.
    RoundTrips,
    /// Of `topology/hosts`.
    Hosts,
    /// Of `authorization`.
    Authorization,
}

impl MeshHistoryKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Regions, Self::RoundTrips, Self::Hosts, Self::Authorization];

    /// The kind as keys and the admin API name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Regions => "regions",
            Self::RoundTrips => "roundTrips",
            Self::Hosts => "hosts",
            Self::Authorization => "authorization",
        }
    }

    /// The key of the record itself.
    pub fn key(self) -> RecordKey {
        match self {
            Self::Regions => RecordKey::Regions,
            Self::RoundTrips => RecordKey::RoundTrips,
            Self::Hosts => RecordKey::Hosts,
            Self::Authorization => RecordKey::DefaultAuthorization,
        }
    }

    /// The kind of a record; `None` of records without such a history.
    pub fn of(key: &RecordKey) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.key() == *key)
    }

    fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// A part of a shard map. Maps are stored in parts, so that a caller may read the copies of one region only
/// (ServiceRouter §3.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShardPart {
    /// The starts of shards, for all regions: `ranges`, a name that no region may have.
    Ranges,
    /// The endpoints of a region and the shards that they hold.
    Region(Region),
}

/// The name of a chunk: a 128-bit hash of its content, so that an unchanged chunk is never sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(pub u128);

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The scope of a watch: every key below a folder, or one key. Clones share one string, since a follower of many
/// prefixes keeps each in several places.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// Validates a prefix that starts with `/`; if it ends in `/` it is a folder, otherwise one key.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.starts_with('/') && text.len() <= 512 && !text.contains("//") {
            return Ok(Self(text.into()));
        }
        Err(Invalid::new(
            "prefix",
            format!("'{text}' is not a RIB prefix"),
            "start with '/', end a folder with '/', and keep it under 512 bytes, such as /t/shop/endpoints/cart/",
        ))
    }

    /// Everything in the RIB.
    pub fn everything() -> Self {
        Self("/".into())
    }

    /// The drains of regions.
    pub fn drains() -> Self {
        Self("/g/drains/".into())
    }

    /// All records of one kind of a tenant, such as `services`.
    pub fn tenant(tenant: &Tenant, kind: &str) -> Self {
        Self(format!("/t/{tenant}/{kind}/").into())
    }

    /// The endpoints of a service, of one region or all.
    pub fn endpoints(service: &ServiceName, region: Option<&Region>) -> Self {
        let ServiceName { tenant, service } = service;
        match region {
            Some(region) => Self(format!("/t/{tenant}/endpoints/{service}/{region}/").into()),
            None => Self(format!("/t/{tenant}/endpoints/{service}/").into()),
        }
    }

    /// The verdicts on a service's endpoints, of one region or all.
    pub fn health(service: &ServiceName, region: Option<&Region>) -> Self {
        let ServiceName { tenant, service } = service;
        match region {
            Some(region) => Self(format!("/t/{tenant}/health/{service}/{region}/").into()),
            None => Self(format!("/t/{tenant}/health/{service}/").into()),
        }
    }

    /// The shard map of a service: one part, or all.
    pub fn shards(service: &ServiceName, part: Option<&ShardPart>) -> Self {
        let ServiceName { tenant, service } = service;
        match part {
            Some(part) => Self(format!("/t/{tenant}/shards/{service}/{part}/").into()),
            None => Self(format!("/t/{tenant}/shards/{service}/").into()),
        }
    }

    /// The moves in progress of a service.
    pub fn moves(service: &ServiceName) -> Self {
        Self(format!("/t/{}/moves/{}/", service.tenant, service.service).into())
    }

    /// The region tables of a service, of all regions.
    pub fn tables(service: &ServiceName) -> Self {
        Self(format!("/t/{}/tables/{}/", service.tenant, service.service).into())
    }

    /// The earlier values of one record, oldest first.
    pub fn history(kind: HistoryKind, service: &ServiceName) -> Self {
        Self(format!("/t/{}/history/{kind}/{}/", service.tenant, service.service).into())
    }

    /// The earlier values of one record of the mesh, oldest first.
    pub fn mesh_history(kind: MeshHistoryKind) -> Self {
        Self(format!("/g/history/{}/", kind.as_str()).into())
    }

    /// Regions, round trips, measured distances and hosts.
    pub fn topology() -> Self {
        Self("/g/topology/".into())
    }

    /// The bindings of roles.
    pub fn roles() -> Self {
        Self("/g/roles/".into())
    }

    /// The trust bundle and the agents that joined.
    pub fn identity() -> Self {
        Self("/g/identity/".into())
    }

    /// The agents that joined.
    pub fn agents() -> Self {
        Self("/g/identity/agents/".into())
    }

    /// Whether it is a folder rather than one key.
    pub fn is_folder(&self) -> bool {
        self.0.ends_with('/')
    }

    /// Whether it includes a key.
    pub fn covers(&self, key: &str) -> bool {
        if self.is_folder() { key.starts_with(&*self.0) } else { *key == *self.0 }
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Prefix {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&RecordKey> for Prefix {
    /// Exactly this key.
    fn from(key: &RecordKey) -> Self {
        Self(key.to_string().into())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ShardPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranges => f.write_str("ranges"),
            Self::Region(region) => region.fmt(f),
        }
    }
}

impl fmt::Display for HistoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Services => "services",
            Self::Policies => "policies",
            Self::Workloads => "workloads",
            Self::Authorizations => "authorizations",
        })
    }
}

impl RecordKey {
    /// The key of a record with history, of a kind as the admin API names it; `name` is a service, or a role binding.
    ///
    /// # Errors
    /// When the kind has no history, or the name is none.
    pub fn with_history(kind: &str, name: &str) -> Result<Self, Invalid> {
        if let Some(kind) = MeshHistoryKind::ALL.into_iter().find(|one| one.as_str() == kind) {
            return Ok(kind.key());
        }
        let named = || name.parse::<ServiceName>().map_err(|e: Invalid| e.within("service"));
        match kind {
            "services" => Ok(Self::Service(named()?)),
            "policies" => Ok(Self::Policy(named()?)),
            "workloads" => Ok(Self::Workload(named()?)),
            "authorizations" => Ok(Self::Authorization(named()?)),
            "roles" => Ok(Self::RoleBinding(Label::new(name).map_err(|e| e.within("service"))?)),
            other => {
                let problem = format!("'{other}' has no history");
                let hint = "write services, policies, workloads, authorizations, roles, regions, roundTrips, hosts or authorization";
                Err(Invalid::new("kind", problem, hint))
            }
        }
    }

    /// The service of the record, if it belongs to one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service(service)
            | Self::Endpoint(service, ..)
            | Self::Health(service, ..)
            | Self::Policy(service)
            | Self::ShardManifest(service, _)
            | Self::ShardChunk(service, ..)
            | Self::Move(service, _)
            | Self::RegionTable(service, _)
            | Self::Workload(service)
            | Self::Authorization(service)
            | Self::History(_, service, _) => Some(service),
            Self::Regions
            | Self::RoundTrips
            | Self::MeasuredDistances(_)
            | Self::RegionDrain(_)
            | Self::Hosts
            | Self::TrustBundle
            | Self::Revocations
            | Self::FederatedDomains
            | Self::DefaultAuthorization
            | Self::MeshHistory(..)
            | Self::RoleBinding(_)
            | Self::JoinedAgent(_) => None,
        }
    }

    /// Parses a key of the RIB.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::read(text).ok_or_else(|| {
            Invalid::new(
                "key",
                format!("'{text}' is not a RIB key"),
                "write a key such as /t/shop/services/cart or /t/shop/endpoints/cart/eu/cart-0",
            )
        })
    }

    /// Parses the segments of a key below `/g/`.
    fn read_global(segments: &[&str]) -> Option<Self> {
        Some(match *segments {
            ["topology", "regions"] => Self::Regions,
            ["topology", "rtt"] => Self::RoundTrips,
            ["topology", "measured", region] => Self::MeasuredDistances(Region::new(region).ok()?),
            ["drains", region] => Self::RegionDrain(Region::new(region).ok()?),
            ["topology", "hosts"] => Self::Hosts,
            ["authorization"] => Self::DefaultAuthorization,
            ["history", kind, revision] => {
                Self::MeshHistory(MeshHistoryKind::read(kind)?, revision.parse().ok()?)
            }
            ["roles", name] => Self::RoleBinding(Label::new(name).ok()?),
            ["identity", "bundle"] => Self::TrustBundle,
            ["identity", "revocations"] => Self::Revocations,
            ["identity", "federation"] => Self::FederatedDomains,
            ["identity", "agents", name] => Self::JoinedAgent(Label::new(name).ok()?),
            _ => return None,
        })
    }

    fn read(text: &str) -> Option<Self> {
        let segments: Vec<&str> = text.strip_prefix('/')?.split('/').collect();
        let named = |tenant: &str, service: &str| -> Option<ServiceName> {
            Some(ServiceName { tenant: Tenant::new(tenant).ok()?, service: Label::new(service).ok()? })
        };
        Some(match segments[..] {
            ["g", ref rest @ ..] => Self::read_global(rest)?,
            ["t", tenant, "services", service] => Self::Service(named(tenant, service)?),
            ["t", tenant, "policies", service] => Self::Policy(named(tenant, service)?),
            ["t", tenant, "workloads", service] => Self::Workload(named(tenant, service)?),
            ["t", tenant, "authorizations", service] => Self::Authorization(named(tenant, service)?),
            ["t", tenant, "endpoints", service, region, instance] => Self::Endpoint(
                named(tenant, service)?,
                Region::new(region).ok()?,
                InstanceId::new(instance).ok()?,
            ),
            ["t", tenant, "health", service, region, instance] => Self::Health(
                named(tenant, service)?,
                Region::new(region).ok()?,
                InstanceId::new(instance).ok()?,
            ),
            ["t", tenant, "shards", service, part, "manifest"] => {
                Self::ShardManifest(named(tenant, service)?, ShardPart::read(part)?)
            }
            ["t", tenant, "shards", service, part, "chunks", hash] if hash.len() == 32 => Self::ShardChunk(
                named(tenant, service)?,
                ShardPart::read(part)?,
                ChunkHash(u128::from_str_radix(hash, 16).ok()?),
            ),
            ["t", tenant, "moves", service, shard] => {
                Self::Move(named(tenant, service)?, ShardId(shard.parse().ok()?))
            }
            ["t", tenant, "tables", service, region] => {
                Self::RegionTable(named(tenant, service)?, Region::new(region).ok()?)
            }
            ["t", tenant, "history", kind, service, revision] => {
                let kind = match kind {
                    "services" => HistoryKind::Services,
                    "policies" => HistoryKind::Policies,
                    "workloads" => HistoryKind::Workloads,
                    "authorizations" => HistoryKind::Authorizations,
                    _ => return None,
                };
                Self::History(kind, named(tenant, service)?, revision.parse().ok()?)
            }
            _ => return None,
        })
    }
}

impl ShardPart {
    /// Parses the displayed form of a [`ShardPart`]; `None` if it is neither `ranges` nor the name of a region.
    pub fn read(text: &str) -> Option<Self> {
        if text == "ranges" { Some(Self::Ranges) } else { Region::new(text).ok().map(Self::Region) }
    }
}

/// The segment of a key that says the kind of its record, also of kinds that this release does not know: `policies` of
/// `/t/shop/policies/cart`, `topology` of `/g/topology/rtt`. Names of tenants and services may be the same words.
pub fn key_kind(key: &str) -> Option<&str> {
    let mut segments = key.strip_prefix('/')?.split('/');
    match segments.next()? {
        "t" => segments.nth(1),
        "g" => segments.next(),
        _ => None,
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ServiceName { tenant, service }) = self.service() else {
            return match self {
                Self::Regions => f.write_str("/g/topology/regions"),
                Self::Hosts => f.write_str("/g/topology/hosts"),
                Self::MeshHistory(kind, revision) => write!(f, "/g/history/{}/{revision:020}", kind.as_str()),
                Self::MeasuredDistances(region) => write!(f, "/g/topology/measured/{region}"),
                Self::RegionDrain(region) => write!(f, "/g/drains/{region}"),
                Self::TrustBundle => f.write_str("/g/identity/bundle"),
                Self::Revocations => f.write_str("/g/identity/revocations"),
                Self::FederatedDomains => f.write_str("/g/identity/federation"),
                Self::DefaultAuthorization => f.write_str("/g/authorization"),
                Self::JoinedAgent(name) => write!(f, "/g/identity/agents/{name}"),
                Self::RoleBinding(name) => write!(f, "/g/roles/{name}"),
                _ => f.write_str("/g/topology/rtt"),
            };
        };
        match self {
            Self::Service(_) => write!(f, "/t/{tenant}/services/{service}"),
            Self::Policy(_) => write!(f, "/t/{tenant}/policies/{service}"),
            Self::Workload(_) => write!(f, "/t/{tenant}/workloads/{service}"),
            Self::Authorization(_) => write!(f, "/t/{tenant}/authorizations/{service}"),
            Self::Endpoint(_, region, instance) => {
                write!(f, "/t/{tenant}/endpoints/{service}/{region}/{instance}")
            }
            Self::Health(_, region, instance) => {
                write!(f, "/t/{tenant}/health/{service}/{region}/{instance}")
            }
            Self::ShardManifest(_, part) => write!(f, "/t/{tenant}/shards/{service}/{part}/manifest"),
            Self::ShardChunk(_, part, hash) => write!(f, "/t/{tenant}/shards/{service}/{part}/chunks/{hash}"),
            Self::Move(_, shard) => write!(f, "/t/{tenant}/moves/{service}/{shard}"),
            Self::RegionTable(_, region) => write!(f, "/t/{tenant}/tables/{service}/{region}"),
            // Padded, so that keys sort by revision.
            Self::History(kind, _, revision) => {
                write!(f, "/t/{tenant}/history/{kind}/{service}/{revision:020}")
            }
            Self::Regions
            | Self::RoundTrips
            | Self::MeasuredDistances(_)
            | Self::RegionDrain(_)
            | Self::Hosts
            | Self::TrustBundle
            | Self::Revocations
            | Self::FederatedDomains
            | Self::DefaultAuthorization
            | Self::MeshHistory(..)
            | Self::RoleBinding(_)
            | Self::JoinedAgent(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_key_is_no_name_in_it() {
        for (key, kind) in [
            ("/t/history/policies/tables", Some("policies")),
            ("/t/shop/history/policies/cart/7", Some("history")),
            ("/t/shop/endpoints/health/eu/a", Some("endpoints")),
            ("/g/topology/measured/eu", Some("topology")),
            ("/g/authorization", Some("authorization")),
            ("/t/shop", None),
            ("/x/y", None),
        ] {
            assert_eq!(key_kind(key), kind, "{key}");
        }
    }

    #[test]
    fn every_key_parses_as_displayed() {
        let cart = ServiceName::new("shop/cart").unwrap();
        let eu = Region::new("eu").unwrap();
        let keys = [
            RecordKey::Service(cart.clone()),
            RecordKey::Endpoint(cart.clone(), eu.clone(), InstanceId::new("cart-0:80").unwrap()),
            RecordKey::Health(cart.clone(), eu.clone(), InstanceId::new("cart-0:80").unwrap()),
            RecordKey::Policy(cart.clone()),
            RecordKey::ShardManifest(cart.clone(), ShardPart::Ranges),
            RecordKey::MeasuredDistances(eu.clone()),
            RecordKey::RegionDrain(eu.clone()),
            RecordKey::ShardChunk(cart.clone(), ShardPart::Region(eu), ChunkHash(7)),
            RecordKey::Move(cart.clone(), ShardId(5)),
            RecordKey::RegionTable(cart.clone(), Region::new("eu").unwrap()),
            RecordKey::Workload(cart.clone()),
            RecordKey::Authorization(cart.clone()),
            RecordKey::History(HistoryKind::Authorizations, cart.clone(), 7),
            RecordKey::History(HistoryKind::Workloads, cart.clone(), 7),
            RecordKey::History(HistoryKind::Policies, cart, 42),
            RecordKey::MeshHistory(MeshHistoryKind::RoundTrips, 42),
            RecordKey::Regions,
            RecordKey::RoundTrips,
            RecordKey::Hosts,
            RecordKey::TrustBundle,
            RecordKey::Revocations,
            RecordKey::FederatedDomains,
            RecordKey::DefaultAuthorization,
            RecordKey::RoleBinding(Label::new("shop-operators").unwrap()),
            RecordKey::JoinedAgent(Label::new("web-1").unwrap()),
        ];
        for key in keys {
            assert_eq!(RecordKey::parse(&key.to_string()), Ok(key));
        }
        for wrong in ["", "/", "t/shop/services/cart", "/t/shop/services", "/t/Shop/services/cart", "/g/x"] {
            assert!(RecordKey::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_covers_keys_below_it_and_a_key_only_itself() {
        let cart = ServiceName::new("shop/cart").unwrap();
        let folder = Prefix::endpoints(&cart, None);
        assert!(folder.covers("/t/shop/endpoints/cart/eu/a"));
        assert!(!folder.covers("/t/shop/endpoints/cart2/eu/a"));
        let key = Prefix::from(&RecordKey::Service(cart));
        assert!(key.covers("/t/shop/services/cart") && !key.covers("/t/shop/services/cart2"));
    }
}
