use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{
    DistanceSource, Endpoint, EndpointState, Hosts, InstanceId, Location, MtlsMode, Policy, Protocol,
    RegionTable, Regions, RoundTrips, Service, ServiceName, SpiffeId, Verdict, Verdicts,
};

use crate::{ReceivedReport, ShardTable};

/// The records from which a [`ServiceTable`](crate::ServiceTable) is compiled.
#[derive(Clone, Copy, Debug)]
pub struct CompileInput<'a> {
    /// The service.
    pub name: &'a ServiceName,
    /// Its kind and protocol.
    pub service: &'a Service,
    /// Its policy.
    pub policy: &'a Policy,
    /// Its endpoints, in any order.
    pub endpoints: &'a [Endpoint],
    /// Its shard map: compiled once per version ([`ShardTable::compile`]), not again for each change of an endpoint.
    pub shards: Option<&'a Arc<ShardTable>>,
    /// Where the caller runs.
    pub location: &'a Location,
    /// The regions of the fleet.
    pub regions: &'a Regions,
    /// Round trips between them, declared and measured.
    pub round_trips: &'a RoundTrips,
    /// The region table of the caller's region, if it has one.
    pub table: Option<TableInput<'a>>,
    /// Speeds of the machines of endpoints.
    pub hosts: &'a Hosts,
    /// Verdicts of active health checks.
    pub health: &'a Verdicts,
    /// The time of the picks' clock in nanoseconds, by which this caller's own evidence is dated.
    pub now: u64,
    /// The caller's id, which routes for certain clients match.
    pub client_id: &'a str,
    /// The caller's id, hashed by [`fairmesh_model::arith::hash_text`]; the same after a restart.
    pub client: u64,
    /// Whether calls need mutual TLS, unless the policy says `mtls: permissive`: the mesh has a trust domain, as the caller
    /// knows from its identity or from the records.
    pub requires_mtls: bool,
}

impl CompileInput<'_> {
    /// Whether the caller refuses an endpoint: it speaks plaintext in a strict mesh.
    pub(crate) fn refuses(&self, endpoint: &Endpoint) -> bool {
        self.requires_mtls && self.policy.mtls.refuses(Some(self.service), endpoint)
    }
}

/// A region table and how old it is.
#[derive(Clone, Copy, Debug)]
pub struct TableInput<'a> {
    /// The table of the caller's region.
    pub table: &'a RegionTable,
    /// Time since its planner confirmed it, by the age of the data. Compile it again when it
    /// [weakens](RegionTable::weakens_at).
    pub age: Duration,
}

/// Whose identity an endpoint proves by mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// That of its service.
    Service(ServiceName),
    /// An id of its own, as the service declares, which may be of a federated trust domain.
    Id(SpiffeId),
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// An endpoint, with all that a caller needs to connect. Shared between snapshots (the same `Arc`) while it is
/// unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTarget {
    /// Its identity.
    pub instance: InstanceId,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it runs.
    pub location: Location,
    /// Its lifecycle state.
    pub state: EndpointState,
    /// Its own weight in thousandths.
    pub weight: u32,
    /// The speed of its machine in thousandths of an ordinary one.
    pub speed: u32,
    /// Its capacity, by which it is picked: weight times speed, in thousandths of an ordinary instance.
    pub power: u32,
    /// Its application protocol.
    pub protocol: Protocol,
    /// Whose identity it proves by mutual TLS; `None` for plaintext.
    pub identity: Option<PeerIdentity>,
    /// Whether the policy permits plaintext: an endpoint that proves an identity then accepts it too, from callers that have
    /// none, and one that proves none may be called in a mesh with a trust domain.
    pub accepts_plaintext: bool,
    /// The metric of its load reports that the service is balanced by, if any.
    pub metric: Option<Arc<str>>,
    /// Whether the balancing policy uses latencies, so that they have to be
    /// [recorded](crate::EndpointRef::record_latency).
    pub by_latency: bool,
}

impl EndpointTarget {
    pub(crate) fn new(
        (endpoint, hosts): (&Endpoint, &Hosts),
        (name, service): (&ServiceName, &Service),
        mtls: MtlsMode,
        metric: Option<&Arc<str>>,
        by_latency: bool,
    ) -> Self {
        Self {
            instance: endpoint.instance.clone(),
            address: endpoint.address,
            location: endpoint.location.clone(),
            state: endpoint.state,
            weight: endpoint.weight,
            speed: hosts.speed(endpoint),
            power: hosts.power(endpoint),
            protocol: service.protocol,
            identity: match &service.identity {
                Some(id) => Some(PeerIdentity::Id(id.clone())),
                None => endpoint.mtls.then(|| PeerIdentity::Service(name.clone())),
            },
            // Who declares an id wants no other endpoint to be called.
            accepts_plaintext: service.identity.is_none() && mtls == MtlsMode::Permissive,
            metric: metric.cloned(),
            by_latency,
        }
    }
}

/// How far away a region is; regions are preferred in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDistance {
    /// The ring, from 0; `None` if the policy does not allow this caller to use the region.
    pub ring: Option<u16>,
    /// The round trip to the region, if known.
    pub round_trip: Option<Duration>,
    /// The origin of the round trip, if known.
    pub source: Option<DistanceSource>,
    /// Whether the region is draining, and therefore comes after all others.
    pub draining: bool,
}

/// One endpoint of a snapshot, with this client's state of it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its index.
    pub index: u32,
    /// Its target.
    pub target: &'a Arc<EndpointTarget>,
    /// The distance of its region.
    pub distance: &'a RegionDistance,
    /// Whether it is in this client's subset of its ring; subsets of rings that are not in use are chosen too. For
    /// services called by key it is true of each endpoint that may be called, since the key chooses.
    pub in_subset: bool,
    /// The last verdict of active health checks, whether or not it excludes the endpoint.
    pub verdict: Option<&'a Verdict>,
    /// Calls in flight, without streams.
    pub outstanding: u32,
    /// Calls in flight that turned out to be streams.
    pub streams: u32,
    /// Consecutive failures.
    pub consecutive_failures: u32,
    /// When its ejection ends, in nanoseconds of the caller's clock; 0 if it is not ejected.
    pub ejected_until: u64,
    /// Its last load report.
    pub report: Option<ReceivedReport>,
}
