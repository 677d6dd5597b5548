use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{
    DistanceSource, Endpoint, EndpointState, Hosts, InstanceId, Location, MtlsMode, Policy, Protocol,
    RegionTable, Regions, RoundTrips, Service, ServiceName, SpiffeId, Verdict, Verdicts,
};

use crate::{ReceivedReport, ShardTable};

/// The records from which a [`ServiceTable`](crate::ServiceTable) is compiled.
#[derive(Clone, Copy, Debug)]
pub struct CompileInput<'a> {
    /// Name of the service.
    pub name: &'a ServiceName,
    /// Kind and protocol of the service.
    pub service: &'a Service,
    /// The service's policy.
    pub policy: &'a Policy,
    /// The service's endpoints, in any order.
    pub endpoints: &'a [Endpoint],
    /// The service's shard map. It is compiled once per version ([`ShardTable::compile`]), not for every change of an
    /// endpoint.
    pub shards: Option<&'a Arc<ShardTable>>,
    /// Location of the caller.
    pub location: &'a Location,
    /// The regions of the fleet.
    pub regions: &'a Regions,
    /// Round trips between the regions, declared and measured.
    pub round_trips: &'a RoundTrips,
    /// The table for the caller's region, if any.
    pub table: Option<TableInput<'a>>,
    /// Speeds of the machines of endpoints.
    pub hosts: &'a Hosts,
    /// Verdicts of active health checks.
    pub health: &'a Verdicts,
    /// Current time of the picks' clock in nanoseconds, from which the age of this caller's own evidence follows.
    pub now: u64,
    /// The caller's ID, for routes with a client condition.
    pub client_id: &'a str,
    /// Hash of the caller's ID by [`fairmesh_model::arith::hash_text`]; unchanged after a restart.
    pub client: u64,
    /// Whether calls need mutual TLS unless the policy sets `mtls: permissive`. True if the mesh has a trust domain,
    /// which the caller knows from its identity or from the records.
    pub requires_mtls: bool,
    /// Whether this process authorizes the calls of its own callers, as a gateway does. Other processes leave that to
    /// servers and keep no rules: their tables allow no caller.
    pub authorizes_callers: bool,
}

impl CompileInput<'_> {
    /// Whether the caller refuses an endpoint, because it speaks plaintext in a strict mesh.
    pub(crate) fn refuses(&self, endpoint: &Endpoint) -> bool {
        self.requires_mtls && self.policy.mtls.refuses(Some(self.service), endpoint)
    }
}

/// A region table with its age.
#[derive(Clone, Copy, Debug)]
pub struct TableInput<'a> {
    /// The table for the caller's region.
    pub table: &'a RegionTable,
    /// Time since the planner confirmed the table, by the age of the data. The service must be compiled again when the
    /// table [weakens](RegionTable::weakens_at).
    pub age: Duration,
}

/// The identity that an endpoint must prove by mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The service's identity.
    Service(ServiceName),
    /// Another ID declared by the service, possibly in a federated trust domain.
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

/// An endpoint with all data that a caller needs to connect. Snapshots share the same `Arc` while it is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTarget {
    /// Identity of the instance.
    pub instance: InstanceId,
    /// Address at which the endpoint listens.
    pub address: SocketAddr,
    /// Location of the endpoint.
    pub location: Location,
    /// Lifecycle state of the endpoint.
    pub state: EndpointState,
    /// The endpoint's own weight in thousandths.
    pub weight: u32,
    /// Speed of the machine, in thousandths of an ordinary one.
    pub speed: u32,
    /// Capacity used in picks: weight times speed, in thousandths of an ordinary instance.
    pub power: u32,
    /// Application protocol of the endpoint.
    pub protocol: Protocol,
    /// The identity that the endpoint must prove by mutual TLS; `None` for plaintext.
    pub identity: Option<PeerIdentity>,
    /// Whether the policy permits plaintext. An endpoint with an identity then also accepts callers without one, and an
    /// endpoint without an identity may be called in a mesh with a trust domain.
    pub accepts_plaintext: bool,
    /// Address of the pod, if a node listens at `address` on the pod's behalf.
    pub pod: Option<SocketAddr>,
    /// The load report metric by which the service is balanced, if any.
    pub metric: Option<Arc<str>>,
    /// Whether the balancing policy uses latencies, which callers must then
    /// [record](crate::EndpointRef::record_latency).
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
            // A service that declares an ID must not fall back to plaintext.
            accepts_plaintext: service.identity.is_none() && mtls == MtlsMode::Permissive,
            pod: endpoint.pod(),
            metric: metric.cloned(),
            by_latency,
        }
    }
}

/// Distance of a region from the caller. Regions are preferred in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDistance {
    /// Ring number, from 0; `None` if the policy does not let this caller use the region.
    pub ring: Option<u16>,
    /// Round-trip time to the region, if known.
    pub round_trip: Option<Duration>,
    /// Origin of the round-trip time, if known.
    pub source: Option<DistanceSource>,
    /// Whether the region is draining; if so, it comes after all others.
    pub draining: bool,
}

/// One endpoint of a snapshot, with the state that this client has recorded about it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Index of the endpoint.
    pub index: u32,
    /// The endpoint's address, identity and other data for connecting.
    pub target: &'a Arc<EndpointTarget>,
    /// Distance of the endpoint's region.
    pub distance: &'a RegionDistance,
    /// Whether the endpoint is in this client's subset of its ring; unused rings have subsets too. Always true for
    /// callable endpoints of a service that is called by key, since the key chooses the endpoint.
    pub in_subset: bool,
    /// The last verdict of active health checks, even if it does not exclude the endpoint.
    pub verdict: Option<&'a Verdict>,
    /// Number of calls in flight, excluding streams.
    pub outstanding: u32,
    /// Number of calls in flight that have become streams.
    pub streams: u32,
    /// Number of consecutive failures.
    pub consecutive_failures: u32,
    /// End of the ejection, in nanoseconds of the caller's clock; 0 if not ejected.
    pub ejected_until: u64,
    /// Last load report of the endpoint.
    pub report: Option<ReceivedReport>,
}
