//! Configuration of an endpoint.

use std::{collections::BTreeMap, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_identity::{IdentityRequest, JoinToken, LateIdentity, ProgramIdentity, ServerIdentity};
use fairmesh_model::{
    EndpointState, FULL_WEIGHT, InstanceId, Invalid, KeyRange, Location, Protocol, Service, ServiceKind,
    ServiceName, ShardId, SpiffePath, arith::hash_text,
};
use fairmesh_signals::TraceParents;
use fairmesh_wire::{
    environment,
    transport::{Address, Transport},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    Cpu, DEFAULT_LEASE, HookResult, Inner, Lease, MeshServer, Registration, RegistrationState,
    RegistryClient, SHARDS_AWARE, SHARDS_LABEL, ServerLayer, ShardHooks, SignalReports,
    authorization::Authorizer,
    cpu::sampler::CpuSampler,
    drain::Phase,
    drain_deadline,
    layer::{
        LayerState, concurrency_limit::ConcurrencyLimit, processed_call::ServedClasses,
        server_load::ServerLoad,
    },
    registry_addresses,
    shards::{self, shard_load::ShardLoadReports},
};

/// Time for which `start` waits for the first registration. Registration then continues in the background.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Configures an endpoint before it starts; see [`MeshServer::builder`].
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
    /// Whether one of the addresses is an agent's.
    knows_agent: bool,
    hooks: Option<ShardHooks>,
    starting: bool,
    finishes_late: bool,
    registers_later: bool,
    forwards_bodies: bool,
    at_most: Option<u32>,
    adaptive: bool,
    transport: Option<Transport>,
    shares_identity: bool,
    cpu: Option<Cpu>,
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
            registers_later: false,
            forwards_bodies: false,
            at_most: None,
            adaptive: false,
            transport: None,
            shares_identity: false,
            cpu: None,
        }
    }

    /// Sets the identity of this endpoint, which must stay the same after a restart. The default is host name and port.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Uses the address of a listener as the address for callers. The listener is bound before anything is registered,
    /// so that a second copy of a program fails instead of replacing the first.
    ///
    /// # Errors
    /// The system does not report the address.
    pub fn listener(self, listener: &TcpListener) -> io::Result<Self> {
        Ok(self.address(listener.local_addr()?))
    }

    /// Sets the address for callers, if it differs from that of the listener. There is no default.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets how connections are accepted, and opened to the registry. With TLS, the endpoint is registered as accepting
    /// only mutual TLS. By default, the server uses the identity of its service that the agent issues if the mesh has a
    /// trust domain, and plaintext otherwise. While the agent does not answer or has not reached a control plane, the
    /// server accepts plaintext and is not registered; it decides as soon as the agent knows.
    pub fn transport(mut self, transport: Transport) -> Self {
        (self.transport, self.shares_identity) = (Some(transport), true);
        self
    }

    /// Sets the location. The default is the region in `FAIRMESH_REGION`, otherwise the agent's location.
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the relative compute capacity in thousandths. The default, 1000, is an ordinary host.
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

    /// Sets the protocol. If the service is not declared yet, it is declared with this protocol, so that callers find
    /// it at once.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Sets how long the endpoint stays live without a renewal. The default is 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long a graceful stop may take. The default is `FAIRMESH_DRAIN_DEADLINE`, otherwise 25 s.
    pub fn drain_deadline(mut self, deadline: Duration) -> Self {
        self.drain_deadline = Some(deadline);
        self
    }

    /// Adds an agent to register through. Addresses added here and by [`control`](Self::control) are tried in that
    /// order. Without any, the environment names them: agents in `FAIRMESH_AGENT`, otherwise control planes in
    /// `FAIRMESH_CONTROL`, otherwise the agent at its default socket.
    pub fn agent(mut self, address: Address) -> Self {
        self.knows_agent = true;
        self.addresses.push(address);
        self
    }

    /// Makes this process remember each request's trace (`traceparent`). It can then find the parent of calls that
    /// the program makes through it. For a proxy that handles both the calls to and the calls from a program.
    #[doc(hidden)]
    pub fn remember_traces(self) -> Self {
        TraceParents::enable(Instant::now().into_std());
        self
    }

    /// Declares that the service forwards request bodies. The service itself counts them with the
    /// [`RequestBytes`](crate::RequestBytes) in their extensions.
    #[doc(hidden)]
    pub fn forwards_bodies(mut self) -> Self {
        self.forwards_bodies = true;
        self
    }

    /// Sets the source of CPU usage and its limit. The default is this program. For a process with several servers, and
    /// for work that takes worker slots and no CPU.
    #[doc(hidden)]
    pub fn cpu(mut self, cpu: Cpu) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Adds a control plane to register with, without an agent. It does not know this program's location, so set
    /// [`location`](Self::location) or `FAIRMESH_REGION` as well.
    pub fn control(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Registers the endpoint as starting: no calls arrive before [`MeshServer::ready`].
    pub fn starting(mut self) -> Self {
        self.starting = true;
        self
    }

    /// Registers the endpoint only when [`MeshServer::register`] is called, because another process holds the
    /// registration until then.
    #[doc(hidden)]
    pub fn register_later(mut self) -> Self {
        self.registers_later = true;
        self
    }

    /// Continues calls after the caller's deadline; by default they are [cancelled](ServerLayer). For services whose
    /// calls must not be dropped halfway.
    pub fn finish_late_calls(mut self) -> Self {
        self.finishes_late = true;
        self
    }

    /// Limits the number of concurrent calls and streams to `calls`, at least 1; unlimited by default. Further calls
    /// get 503, or gRPC `UNAVAILABLE`, at once. These responses are marked, so that callers send the calls to another
    /// server within their retry budget and do not count them as failures of this one.
    pub fn at_most(mut self, calls: u32) -> Self {
        self.at_most = Some(calls.max(1));
        self
    }

    /// Lowers the concurrency limit while latency rises with concurrency, and rejects excess calls as
    /// [`at_most`](Self::at_most) does; see [`AdaptiveConcurrency`](fairmesh_balancer::AdaptiveConcurrency). The limit
    /// starts at the one given, or at 1024. Streams are not counted.
    pub fn adaptive(mut self) -> Self {
        self.adaptive = true;
        self
    }

    /// Sets a hook that loads a shard which this server will hold, before any call for the shard arrives. A failure is
    /// logged and retried. The endpoint accepts no calls before the shards it holds at start are loaded, and a move of
    /// a shard to this server waits for the hook.
    ///
    /// A split starts the new shard, whose keys this server already holds. A merge starts the remaining shard again
    /// with its wider range, all of which this server already holds; the merged shard is not stopped.
    pub fn on_shard_start<F>(mut self, hook: impl Fn(ShardId, KeyRange) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.hooks.get_or_insert_default().start = Some(Arc::new(move |id, range| Box::pin(hook(id, range))));
        self
    }

    /// Sets a hook that releases a shard which this server no longer holds, after the shard's calls have ended. If
    /// the shard is assigned again, it is loaded only after this hook has ended. A cancelled load is dropped before
    /// this hook begins.
    pub fn on_shard_stop<F>(mut self, hook: impl Fn(ShardId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.hooks.get_or_insert_default().stop = Some(Arc::new(move |id| Box::pin(hook(id))));
        self
    }

    /// Registers the endpoint and keeps it registered. Waits at most 2 s for the registry; after that it retries in the
    /// background, and the program serves meanwhile. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The configuration, here or in the environment, is invalid. Or neither an agent nor the control plane knows a
    /// region, so that the program could never be registered.
    pub async fn start(mut self) -> Result<MeshServer, Invalid> {
        let mut registration = self.registration()?;
        let drain_deadline = drain_deadline(self.drain_deadline)?;
        let addresses = registry_addresses(&self.addresses)?;
        let ServerTransport { transport, undecided } =
            self.open_transport(&addresses, &mut registration).await;
        let registry = RegistryClient::new(addresses, software(&registration), transport.clone());
        let registry = Arc::new(registry.undecided(undecided));
        let started = Instant::now() + START_TIMEOUT;
        if registration.location.is_none() && !self.knows_agent {
            check_location(&registry, started).await?;
        }
        let layer = ServerLayer { shared: Arc::new(self.shared(&registration, &transport)) };
        let policy = layer.shared.authorizer.follow(&registry, &layer.shared.served);
        registry.wait_for_policy(&layer.shared.authorizer);
        // Before the server knows who may call, it would refuse the callers that find it.
        let _ = timeout_at(started, layer.shared.authorizer.ready()).await;
        let lease = Arc::new(self.keep_lease(&registry, &registration));
        let cpu = self.cpu.take().unwrap_or_else(Cpu::of_this_program);
        let cpu_sampler = CpuSampler::start(cpu.clone(), Arc::clone(&layer.shared.load));
        let signals =
            SignalReports::of_server(Arc::clone(&registry), registration.clone(), cpu, &layer.shared);
        let shared = Arc::clone(&layer.shared);
        let shard_load = ShardLoadReports::start(Arc::clone(&registry), registration.clone(), shared);
        let watching = shards::ShardWatch {
            registry,
            lease: Arc::clone(&lease),
            shared: Arc::clone(&layer.shared),
            registration,
            hooks: self.hooks.take(),
            serves_when_loaded: !self.starting,
        };
        let shards = watching.start();
        wait_registered(&lease, started).await;
        let phase = watch::Sender::new(Phase::Running);
        Ok(MeshServer {
            inner: Arc::new(Inner {
                layer,
                lease,
                phase,
                drain_deadline,
                transport,
                shares_identity: self.shares_identity,
                shards,
                signals,
                _shard_load: shard_load,
                _cpu_sampler: cpu_sampler,
                policy,
            }),
        })
    }

    fn keep_lease(&self, registry: &Arc<RegistryClient>, registration: &Registration) -> Lease {
        let lease = Lease::keep_later(Arc::clone(registry), registration.clone(), self.first_state());
        if !self.registers_later {
            lease.begin();
        }
        lease
    }

    /// The state in which the endpoint is first registered.
    fn first_state(&self) -> EndpointState {
        match self.starting || self.hooks.is_some() {
            true => EndpointState::Starting,
            false => EndpointState::Serving,
        }
    }

    /// Chooses how connections are accepted. The registration states this choice for callers.
    async fn open_transport(
        &mut self,
        addresses: &[Address],
        registration: &mut Registration,
    ) -> ServerTransport {
        let opened = match self.transport.take() {
            Some(transport) => ServerTransport { transport: transport.of_server(), undecided: None },
            None => transport_of_agent(addresses, registration).await,
        };
        registration.mtls = opened.transport.is_tls();
        opened
    }

    fn shared(&self, registration: &Registration, transport: &Transport) -> LayerState {
        // Differs between the servers of a service, so that they do not probe their limits in step.
        let seed = self.adaptive.then(|| hash_text(registration.instance.as_str()));
        let concurrency_limit = ConcurrencyLimit::new(self.at_most, seed);
        let name = format!("{}/{}", registration.service, registration.instance);
        let load = Arc::new(ServerLoad::of(&name));
        let authorizer = Arc::new(Authorizer::of_server(registration.service.clone(), transport));
        let served = Arc::new(ServedClasses::of_server(registration.service.clone()));
        LayerState {
            load,
            served,
            finishes_late: self.finishes_late,
            forwards_bodies: self.forwards_bodies,
            concurrency_limit,
            authorizer,
            ..LayerState::default()
        }
    }

    fn registration(&mut self) -> Result<Registration, Invalid> {
        environment::workload_api()?;
        JoinToken::of_environment()?;
        let Some(address) = self.address else {
            return Err(Invalid::new(
                "address",
                "is missing",
                "call .listener(..) with the listener, or .address(..) with the address for callers",
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
        let declaration =
            self.protocol.map(|protocol| Service { kind, protocol, virtual_address: None, identity: None });
        let registration = Registration {
            service: ServiceName::new(&self.service).map_err(|e| e.within("service"))?,
            instance,
            address,
            location: environment::location(self.location.take())?,
            weight: self.weight,
            lease: self.lease,
            mtls: false,
            labels: std::mem::take(&mut self.labels),
            declaration,
        };
        registration.validate()?;
        Ok(registration)
    }
}

fn software(registration: &Registration) -> String {
    format!("server {} {}", registration.service, registration.instance)
}

/// How a server accepts connections.
#[derive(Clone, Debug, Default)]
pub struct ServerTransport {
    /// Accepts connections, and opens connections to the registry.
    pub transport: Transport,
    /// Identity of the transport, until the agent has said whether the mesh has a trust domain; see
    /// [`RegistryClient::undecided`].
    pub undecided: Option<Arc<LateIdentity>>,
}

/// Chooses how a server of the endpoint accepts connections. It uses the identity of its service if the agent among the
/// registry's addresses is a member of a trust domain, if the environment names a Workload API, or if, without an
/// agent, it has a token to join with.
pub async fn transport_of_agent(addresses: &[Address], registration: &Registration) -> ServerTransport {
    // A malformed variable was already reported as an error.
    let workload_api = environment::workload_api().ok().flatten();
    let token = JoinToken::of_environment().ok().flatten();
    let (agent, control_planes) = match Address::first_local(addresses).await {
        Some(agent) if workload_api.is_none() => (Some(agent), Vec::new()),
        _ => (addresses.first(), addresses.to_vec()),
    };
    let Some(agent) = agent else { return ServerTransport::default() };
    let request = IdentityRequest {
        agent: agent.clone(),
        workload_api,
        control_planes,
        token,
        path: Some(SpiffePath::Service(registration.service.clone())),
        software: software(registration),
        patience: START_TIMEOUT,
    };
    match ProgramIdentity::of_server(request).await {
        ServerIdentity::Secured(identity) => {
            ServerTransport { transport: identity.transport().of_server(), undecided: None }
        }
        ServerIdentity::Plaintext => ServerTransport::default(),
        ServerIdentity::Undecided(late) => {
            let transport = Transport::tls(Arc::clone(&late) as Arc<_>).of_server();
            ServerTransport { transport, undecided: Some(late) }
        }
    }
}

/// Waits for the registration. The lease logs the result, and continues either way.
async fn wait_registered(lease: &Lease, until: Instant) {
    if !lease.has_begun() {
        return;
    }
    let mut state = lease.registration_state();
    let registered = state.wait_for(|now| matches!(now, RegistrationState::Registered(_)));
    let _ = timeout_at(until, registered).await;
}

/// Fails if a registry responds within `deadline` and does not know this program's location. A missing response is no
/// failure.
async fn check_location(registry: &RegistryClient, deadline: Instant) -> Result<(), Invalid> {
    match timeout_at(deadline, registry.location()).await {
        Ok(Ok(None)) => Err(Invalid::new(
            "location",
            "is missing, and a control plane does not know where this program runs",
            "call .location(..), set FAIRMESH_REGION, or register through an agent",
        )),
        _ => Ok(()),
    }
}

/// Returns the default identity: host name and port, which stay the same after a restart.
///
/// # Errors
/// The host name is not a valid identity.
pub fn default_instance(address: SocketAddr) -> Result<InstanceId, Invalid> {
    let host = environment::host_name()
        .unwrap_or_else(|| address.ip().to_string().trim_start_matches(':').to_owned());
    InstanceId::new(format!("{host}:{}", address.port())).map_err(|e| e.within("instance"))
}
