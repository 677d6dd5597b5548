//! How a program describes its endpoint.

use std::{collections::BTreeMap, fs, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{
    EndpointState, FULL_WEIGHT, InstanceId, Invalid, KeyRange, Location, Protocol, Service, ServiceKind,
    ServiceName, ShardId, arith::hash_text,
};
use fairmesh_wire::{environment, transport::Address};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Cpu, DEFAULT_LEASE, HookResult, Inner, Lease, Link, Registration, SHARDS_AWARE, SHARDS_LABEL, Server,
    ServerLayer, ShardHooks, Standing, UsageReports, drain::Phase, drain_deadline, gate::Gate, layer::Shared,
    load::Load, meter::CpuMeter, registry_addresses, shards, work::WorkReports,
};

/// How long `start` waits for the first registration before it goes on in the background.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Describes an endpoint before it starts; from [`Server::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is registered before start"]
pub struct ServerBuilder {
    service: String,
    instance: Option<String>,
    address: Option<SocketAddr>,
    location: Option<Location>,
    weight: u32,
    labels: BTreeMap<String, String>,
    protocol: Option<Protocol>,
    lease: Duration,
    drain_deadline: Option<Duration>,
    addresses: Vec<Address>,
    /// Whether one of the addresses was given as an agent's.
    knows_agent: bool,
    hooks: Option<ShardHooks>,
    starting: bool,
    finishes_late: bool,
    at_most: Option<u32>,
    adaptive: bool,
}

impl ServerBuilder {
    pub(super) fn new(service: String) -> Self {
        Self {
            service,
            instance: None,
            address: None,
            location: None,
            weight: FULL_WEIGHT,
            labels: BTreeMap::new(),
            protocol: None,
            lease: DEFAULT_LEASE,
            drain_deadline: None,
            addresses: Vec::new(),
            knows_agent: false,
            hooks: None,
            starting: false,
            finishes_late: false,
            at_most: None,
            adaptive: false,
        }
    }

    /// The identity of this copy, the same after a restart; unless given, the host's name and the port.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Where callers reach it; there is no default.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Where it runs; unless given, in region `FAIRMESH_REGION`, else where the agent says.
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Relative compute power in thousandths; 1000, an ordinary host, unless given.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Adds labels.
    pub fn labels<N: Into<String>, V: Into<String>>(
        mut self,
        labels: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.labels.extend(labels.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// What it speaks. Declares the service in case nobody has, so that callers find it without further ado.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// How long the endpoint is believed when renewals stop; 10 s unless given.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a planned stop may take; unless given `FAIRMESH_DRAIN_DEADLINE`, else 25 s.
    pub fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.drain_deadline = Some(deadline);
        self
    }

    /// The agent to register through. Addresses given here and by [`control`](Self::control) are tried in that order;
    /// without any, those of [`registry_addresses`].
    pub fn agent(mut self, address: Address) -> Self {
        self.knows_agent = true;
        self.addresses.push(address);
        self
    }

    /// A control plane to register at where there is no agent. It does not know where this program runs: give
    /// [`location`](Self::location) or `FAIRMESH_REGION` with it.
    pub fn control(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Registers as starting, so that no calls come before [`Server::ready`].
    pub fn starting(mut self) -> Self {
        self.starting = true;
        self
    }

    /// Goes on with calls after the time that their callers gave. Unless told so, they are [cut off](ServerLayer): for services
    /// that must not be dropped halfway.
    pub fn finish_late_calls(mut self) -> Self {
        self.finishes_late = true;
        self
    }

    /// Calls and streams at one time, at least 1; no bound unless given. Further ones are answered at once with 503, or gRPC
    /// `UNAVAILABLE`, marked so that callers send them elsewhere within their retry budget and hold nothing against this server.
    pub fn at_most(mut self, calls: u32) -> Self {
        self.at_most = Some(calls.max(1));
        self
    }

    /// Takes fewer calls at a time while they take too long for their number, and refuses the others
    /// [likewise](Self::at_most); see [`AdaptiveConcurrency`](fairmesh_balancer::AdaptiveConcurrency). It begins with the bound that is
    /// given, or 1024. Streams are not counted.
    pub fn adaptive(mut self) -> Self {
        self.adaptive = true;
        self
    }

    /// Loads a shard that is to be held here, before any call for it comes. A failure is logged and tried again. The
    /// endpoint takes no calls before the shards that it holds at start are loaded, and a move of a shard to it waits.
    ///
    /// A split comes as the start of the new shard, whose keys this server holds already. A merge comes as the start of the
    /// shard that remains, once more and with its wider range, all of which this server holds already; the other one is
    /// not stopped.
    pub fn on_shard_start<F>(mut self, hook: impl Fn(ShardId, KeyRange) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.hooks.get_or_insert_default().start = Some(Arc::new(move |id, range| Box::pin(hook(id, range))));
        self
    }

    /// Lets go of a shard that is not held here any more; no calls for it come any longer. A shard that comes back is
    /// loaded once this has ended; a loading that is called off is dropped before this begins.
    pub fn on_shard_stop<F>(mut self, hook: impl Fn(ShardId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.hooks.get_or_insert_default().stop = Some(Arc::new(move |id| Box::pin(hook(id))));
        self
    }

    /// Registers and keeps registered. Waits at most 2 s for the registry: without one, it goes on trying in the
    /// background, and the program serves meanwhile. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When something given, here or in the environment, is not valid; and when no region is given, no agent either, and
    /// who answers does not know one: the program could never be registered.
    pub async fn start(mut self) -> Result<Server, Invalid> {
        let registration = self.registration()?;
        let drain_deadline = drain_deadline(self.drain_deadline)?;
        let addresses = registry_addresses(&self.addresses)?;
        let software = format!("server {} {}", registration.service, registration.instance);
        let link = Arc::new(Link::new(addresses, software));
        let started = Instant::now() + START_TIMEOUT;
        if registration.location.is_none() && !self.knows_agent {
            located(&link, started).await?;
        }
        let state = match self.starting || self.hooks.is_some() {
            true => EndpointState::Starting,
            false => EndpointState::Serving,
        };
        let lease = Arc::new(Lease::keep(Arc::clone(&link), registration.clone(), state));
        let layer = ServerLayer { shared: Arc::new(self.shared(&registration)) };
        let (cpu, load) = (Cpu::of_this_program(), &layer.shared.load);
        let meter = CpuMeter::start(cpu.clone(), Arc::clone(load));
        let usage = UsageReports::of_server(Arc::clone(&link), registration.clone(), cpu, Arc::clone(load));
        let shared = Arc::clone(&layer.shared);
        let work = WorkReports::start(Arc::clone(&link), registration.clone(), shared);
        let watching = shards::Watching {
            link,
            lease: Arc::clone(&lease),
            shared: Arc::clone(&layer.shared),
            registration,
            hooks: self.hooks.take(),
            serves_when_loaded: !self.starting,
        };
        let shards = AbortOnDropHandle::new(tokio::spawn(watching.run()));
        let mut standing = lease.standing();
        // What came of it is logged by the lease, and it goes on either way.
        let _ = timeout_at(started, standing.wait_for(|now| matches!(now, Standing::Registered(_)))).await;
        let phase = watch::Sender::new(Phase::Running);
        Ok(Server {
            inner: Arc::new(Inner {
                layer,
                lease,
                phase,
                drain_deadline,
                _shards: shards,
                _usage: usage,
                _work: work,
                _meter: meter,
            }),
        })
    }

    fn shared(&self, registration: &Registration) -> Shared {
        // Differs between the servers of a service, so that they do not look for their bounds in step.
        let seed = self.adaptive.then(|| hash_text(registration.instance.as_str()));
        let gate = Gate::new(self.at_most, seed);
        let name = format!("{}/{}", registration.service, registration.instance);
        let load = Arc::new(Load::of(&name));
        Shared { load, finishes_late: self.finishes_late, gate, ..Shared::default() }
    }

    fn registration(&mut self) -> Result<Registration, Invalid> {
        let Some(address) = self.address else {
            return Err(Invalid::new(
                "address",
                "none is given",
                "call .address(..) with where callers reach it",
            ));
        };
        let instance = match &self.instance {
            Some(instance) => InstanceId::new(instance).map_err(|e| e.within("instance"))?,
            None => default_instance(address)?,
        };
        if self.hooks.is_some() {
            self.labels.insert(SHARDS_LABEL.into(), SHARDS_AWARE.into());
        }
        let kind = if self.hooks.is_some() { ServiceKind::Sharded } else { ServiceKind::Replicated };
        let declaration = self.protocol.map(|protocol| Service { kind, protocol, virtual_address: None });
        let registration = Registration {
            service: ServiceName::new(&self.service).map_err(|e| e.within("service"))?,
            instance,
            address,
            location: environment::location(self.location.take())?,
            weight: self.weight,
            lease: self.lease,
            labels: std::mem::take(&mut self.labels),
            declaration,
        };
        registration.validate()?;
        Ok(registration)
    }
}

/// Fails where whoever answers until `deadline` does not say where this program runs; nobody may answer yet.
async fn located(link: &Link, deadline: Instant) -> Result<(), Invalid> {
    match timeout_at(deadline, link.location()).await {
        Ok(Ok(None)) => Err(Invalid::new(
            "location",
            "none is given, and a control plane does not know where this program runs",
            "call .location(..), set FAIRMESH_REGION, or register through an agent",
        )),
        _ => Ok(()),
    }
}

/// The identity of a program that names none: its host and port, which a restart keeps.
pub fn default_instance(address: SocketAddr) -> Result<InstanceId, Invalid> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => address.ip().to_string().trim_start_matches(':').to_owned(),
        host => host.to_owned(),
    };
    InstanceId::new(format!("{host}:{}", address.port())).map_err(|e| e.within("instance"))
}
