use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{
    Endpoint, EndpointState, Hosts, InstanceId, Location, Policy, Protocol, Regions, RoundTrips, Service,
    ServiceName, Verdict, Verdicts,
};

use crate::{ReceivedReport, Shards};

/// The records that a snapshot is compiled from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The service.
    pub name: &'a ServiceName,
    /// Its kind and protocol.
    pub service: &'a Service,
    /// Its policy.
    pub policy: &'a Policy,
    /// Its endpoints, in any order.
    pub endpoints: &'a [Endpoint],
    /// Its shard map: compiled once a version ([`Shards::compile`]), not again with every change of an endpoint.
    pub shards: Option<&'a Arc<Shards>>,
    /// Where the caller runs.
    pub location: &'a Location,
    /// The regions of the fleet.
    pub regions: &'a Regions,
    /// Round trips between them.
    pub round_trips: &'a RoundTrips,
    /// How fast the machines of endpoints are.
    pub hosts: &'a Hosts,
    /// What active checks found of the endpoints.
    pub health: &'a Verdicts,
    /// The caller's id, as routes for certain callers name it.
    pub client_id: &'a str,
    /// The caller's id, hashed by [`fairmesh_model::arith::hash_text`]; the same after its restart.
    pub client: u64,
}

/// One endpoint as a caller needs it to connect. Kept (the same `Arc`) from snapshot to snapshot while nothing changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTarget {
    /// Its identity.
    pub instance: InstanceId,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it runs.
    pub location: Location,
    /// Whether it should get calls.
    pub state: EndpointState,
    /// Its own weight in thousandths.
    pub weight: u32,
    /// The speed of its machine in thousandths of an ordinary one.
    pub speed: u32,
    /// What it can do, by which it is picked: the two together, in thousandths of an ordinary instance.
    pub power: u32,
    /// What it speaks.
    pub protocol: Protocol,
    /// The metric to read of its load reports, where the service is balanced by one.
    pub metric: Option<Arc<str>>,
    /// Whether picks go by latency, so that it is to be [observed](crate::Held::observe).
    pub by_latency: bool,
}

impl EndpointTarget {
    pub(crate) fn new(
        (endpoint, hosts): (&Endpoint, &Hosts),
        protocol: Protocol,
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
            protocol,
            metric: metric.cloned(),
            by_latency,
        }
    }
}

/// How far away an endpoint is, in the order in which callers turn to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The ring, from 0, or `None` where the policy does not let this caller go.
    pub ring: Option<u16>,
    /// The round trip to its region, where it is known.
    pub round_trip: Option<Duration>,
    /// Whether its region is being emptied, and so comes after all others.
    pub draining: bool,
}

/// One endpoint of a snapshot, with what this client knows of it.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its index.
    pub index: u32,
    /// What it is.
    pub target: &'a Arc<EndpointTarget>,
    /// How far away it is.
    pub reach: &'a Reach,
    /// Whether it is one of the endpoints that this client keeps to within its ring: those of a ring that is not in use
    /// are chosen already. True of whatever may be called for services called by key, whose endpoints the key chooses.
    pub in_subset: bool,
    /// What active checks last found of it, whether it has force or not.
    pub verdict: Option<&'a Verdict>,
    /// Calls begun and not finished, without streams.
    pub outstanding: u32,
    /// Calls that turned out to be streams and have not ended.
    pub streams: u32,
    /// Failures in a row.
    pub failures: u32,
    /// When its penalty ends, in nanoseconds of the caller's clock; 0 without one.
    pub penalised_until: u64,
    /// What it last said of its load.
    pub report: Option<ReceivedReport>,
}
