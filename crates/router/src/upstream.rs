use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_balancer::{Outcome, Slots};
use fairmesh_model::{
    Endpoint, EndpointState, InstanceId, Location, Policy, Protocol, Regions, RoundTrips, Service,
    ServiceName,
};

use crate::{Ask, Headers, Picked, RequestView, Routed, Shards, Unroutable};

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
    /// Its relative compute power in thousandths.
    pub weight: u32,
    /// What it speaks.
    pub protocol: Protocol,
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
    /// Whether it is one of the endpoints that this client keeps to within its ring (always, for sharded services).
    pub in_subset: bool,
    /// Calls begun and not finished.
    pub outstanding: u32,
    /// Failures in a row.
    pub failures: u32,
    /// When its penalty ends, in nanoseconds of the caller's clock; 0 without one.
    pub penalised_until: u64,
}

/// Why a call goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reasons, in the order of the decision.
    pub steps: Vec<Step>,
    /// The service that gets the call.
    pub target: ServiceName,
    /// The choice, or why there is none; `None` when the call goes to another service, whose snapshot then explains.
    pub picked: Option<Result<Picked, Unroutable>>,
}

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which step it is: `route`, `shard`, `ring`, `subset`, `pick`.
    pub title: &'static str,
    /// What was decided and from what.
    pub detail: String,
}

/// Everything that this client needs to decide about calls to one service: immutable but for the counts.
#[derive(Debug)]
pub struct Upstream {
    name: ServiceName,
    policy: Policy,
    protocol: Protocol,
    slots: Arc<Slots>,
    targets: Vec<Arc<EndpointTarget>>,
}

impl Upstream {
    /// Compiles the records, keeping the counts and indices of `previous`, a snapshot of the same service.
    pub fn compile(facts: &Facts<'_>, previous: Option<&Self>) -> Self {
        Self {
            name: facts.name.clone(),
            policy: facts.policy.clone(),
            protocol: facts.service.protocol,
            slots: previous.map(|p| Arc::clone(&p.slots)).unwrap_or_default(),
            targets: Vec::new(),
        }
    }

    /// The service.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What its endpoints speak.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Which service gets the call and under which rules; the first matching route wins (X7).
    pub fn route<H: Headers + ?Sized>(&self, _request: &RequestView<'_, H>, _seed: u64) -> Routed<'_> {
        let timeout = self.policy.timeout;
        Routed { target: &self.name, route: None, class: None, timeout, idempotent: false }
    }

    /// The endpoint for one try. `now` is nanoseconds of any monotonic clock, the one that `finish` gets too.
    pub fn pick(&self, _ask: &Ask<'_>, _now: u64, _seed: u64) -> Result<Picked, Unroutable> {
        Err(Unroutable::NoEndpoints)
    }

    /// Counts a try that begins at `index`. Every call is followed by one of [`finish`](Self::finish), on this
    /// snapshot or any later one of the service.
    pub fn begin(&self, _index: u32) {}

    /// Counts the end of a try and learns from its outcome.
    pub fn finish(&self, _index: u32, _outcome: Outcome, _now: u64) {}

    /// The endpoint at an index that this snapshot picked.
    ///
    /// # Panics
    /// When this snapshot knows no endpoint of that index.
    pub fn target(&self, index: u32) -> &Arc<EndpointTarget> {
        &self.targets[index as usize]
    }

    /// Every endpoint known, those that may not be called included, by index.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        std::iter::empty()
    }

    /// Decides as [`route`](Self::route) and [`pick`](Self::pick) do, and says why.
    pub fn explain<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        ask: &Ask<'_>,
        now: u64,
        seed: u64,
    ) -> Explanation {
        let target = self.route(request, seed).target.clone();
        Explanation { steps: Vec::new(), target, picked: Some(self.pick(ask, now, seed)) }
    }

    /// Decides as [`pick`](Self::pick) does, and says why: for a call that another service's route sent here.
    pub fn explain_pick(&self, ask: &Ask<'_>, now: u64, seed: u64) -> Explanation {
        Explanation { steps: Vec::new(), target: self.name.clone(), picked: Some(self.pick(ask, now, seed)) }
    }
}
