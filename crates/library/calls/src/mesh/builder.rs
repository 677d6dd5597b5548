use std::{env, net::IpAddr, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use fairmesh_connections::{EndpointPool, TransportContext};
use fairmesh_model::{Invalid, Location, ServiceName, SpiffePath};
use fairmesh_rib::follower::{Backoff, FollowerConfig};
use fairmesh_wire::{
    environment::{self, Upstream},
    transport::{Address, Transport},
};

use super::{Mesh, state::MeshState, state_source::Source};
use crate::{
    discovery::{DEFAULT_IDLE_TIMEOUT, Resolver, ResolverConfig},
    fault::{Fault, FaultKind},
    lookaside::Leases,
    observe::Observer,
};

/// Time for which [`Mesh::connect`] waits for the agent, so that it is connected before the first calls.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// Settings of a connection to the mesh; see [`Mesh::builder`]. Unset values come from the environment.
#[derive(Clone, Debug, Default)]
pub struct MeshBuilder {
    transport: Option<Transport>,
    identity: Option<SpiffePath>,
    /// Agents, tried in this order; empty if only control planes are followed.
    agents: Vec<Address>,
    control: Vec<Address>,
    lookaside: Option<Address>,
    client_id: Option<String>,
    location: Option<Location>,
    cache_dir: Option<PathBuf>,
    local_address: Option<IpAddr>,
    observer: Option<Arc<dyn Observer>>,
    event_loops: usize,
    identities_only: bool,
    identity_wait: Option<Duration>,
    authorizes_callers: bool,
    idle_timeout: Option<Duration>,
}

impl MeshBuilder {
    /// Sets how connections are opened. By default, services are called with the identity that the agent issues to this
    /// program if the mesh has a trust domain; all other connections are plaintext.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the identity to request from the agent. Without an agent, this is the identity to join with by a token.
    /// An example is the identity of this program's own service. By default it is an operator named after the machine
    /// and the user.
    #[must_use]
    pub fn identity(mut self, path: SpiffePath) -> Self {
        self.identity = Some(path);
        self
    }

    /// Adds an agent's address. Several agents are tried in turn. If neither agents nor control planes are set, the
    /// environment names them: agents in `FAIRMESH_AGENT`, otherwise control planes in `FAIRMESH_CONTROL`, otherwise
    /// the agent at the default socket.
    #[must_use]
    pub fn agent(mut self, address: Address) -> Self {
        self.agents.push(address);
        self
    }

    /// Adds a control plane to follow directly, without an agent. May be called several times.
    #[must_use]
    pub fn control(mut self, address: Address) -> Self {
        self.control.push(address);
        self
    }

    /// Sets a lookaside that picks the endpoints, for a machine without an agent. Records are not followed then, and
    /// settings for agents are ignored. The first call connects to it.
    #[must_use]
    pub fn lookaside(mut self, address: Address) -> Self {
        self.lookaside = Some(address);
        self
    }

    /// Sets the id of this caller, which determines its stable subset of servers. It must stay the same after a
    /// restart, and differ between copies of a program. The default is `FAIRMESH_CLIENT_ID`, otherwise host name and
    /// program name, which suits one copy per machine.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Sets the location of this program. The default is the location that the agent reports or, while the agent is
    /// away, the one stored beside its copy on disk; without either, the region in `FAIRMESH_REGION`.
    #[must_use]
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the folder of the agent's copy on disk, which is read if the agent cannot be reached at start. The default
    /// is `FAIRMESH_STATE_DIR`, otherwise the default folder of an agent that runs as root or as this user, whichever
    /// was written last. There is none if only control planes are followed.
    #[must_use]
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// Sets the local address of connections, on a host with several addresses. By default the system chooses. Not used
    /// for endpoints of the other address family.
    #[must_use]
    pub fn local_address(mut self, address: IpAddr) -> Self {
        self.local_address = Some(address);
        self
    }

    /// Sets an observer that receives every attempt of every call.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// See [`with_event_loops`](crate::forwarding::with_event_loops).
    pub(crate) fn event_loops(mut self, event_loops: usize) -> Self {
        self.event_loops = event_loops;
        self
    }

    /// See [`with_identities_only`](crate::forwarding::with_identities_only).
    pub(crate) fn identities_only(mut self) -> Self {
        self.identities_only = true;
        self
    }

    /// See [`with_identity_wait`](crate::forwarding::with_identity_wait).
    pub(crate) fn identity_wait(mut self, wait: Duration) -> Self {
        self.identity_wait = Some(wait);
        self
    }

    /// See [`with_principals`](crate::forwarding::with_principals).
    pub(crate) fn authorizes_callers(mut self) -> Self {
        self.authorizes_callers = true;
        self
    }

    /// Sets how long a service without calls and handles is followed; 10 min by default. A later call subscribes again.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Connects within a tokio runtime. Waits a second for the agent, and 15 s for the identity of an agent that listens
    /// and does not answer. A missing agent is no error: calls use its copy on disk or fail until it arrives.
    ///
    /// # Errors
    /// A variable of the environment is malformed.
    pub async fn connect(self) -> Result<Mesh, Invalid> {
        self.connecting().await
    }

    /// Connects. The future is boxed, so that what it starts is compiled once, in this crate.
    fn connecting(self) -> Pin<Box<dyn Future<Output = Result<Mesh, Invalid>> + Send>> {
        Box::pin(self.start())
    }

    async fn start(mut self) -> Result<Mesh, Invalid> {
        self.read_environment()?;
        let client_id = self.client_id.clone().unwrap_or_else(default_client_id);
        let given = self.transport.take();
        let is_shared = given.is_some();
        let transport = match given {
            Some(transport) => transport,
            None => self.transport_of_agent(&client_id).await?,
        };
        let source = match &self.lookaside {
            Some(address) => Source::Leases(Leases::new(&transport, address.clone(), client_id.clone())),
            None => Source::Records(self.follow(client_id.clone(), transport.clone()).await?),
        };
        let transport = TransportContext {
            transport,
            counters: Arc::default(),
            local: self.local_address,
            own_addresses: Default::default(),
            connection_hook: Default::default(),
            event_loops: self.event_loops,
            identities_only: self.identities_only,
        };
        let mut state = MeshState::new(source, client_id, transport, self.observer);
        state.shares_identity = is_shared;
        Ok(Mesh { state: Arc::new(state) })
    }

    /// Like [`connect`](Self::connect), but also waits until there are records to decide calls from, obtained from the
    /// agent, a control plane, or the copy on disk. For programs that call at once, such as jobs, whose calls would
    /// otherwise fail before the first contact. [`ServiceHandle::prepare`](crate::ServiceHandle::prepare) tells whether
    /// there are records of a certain service.
    ///
    /// # Errors
    /// [`FaultKind::Unavailable`] with the reason if there are no records within `timeout`; [`FaultKind::Invalid`] if a
    /// variable of the environment is malformed.
    pub async fn connect_ready(self, timeout: Duration) -> Result<Mesh, Fault> {
        let invalid = |error| Fault::new(FaultKind::Invalid, "the mesh cannot be connected").caused_by(error);
        let mesh = self.connect().await.map_err(invalid)?;
        match tokio::time::timeout(timeout, mesh.first_snapshot()).await {
            Ok(()) => Ok(mesh),
            Err(_) => Err(Fault::new(
                FaultKind::Unavailable,
                format!("the mesh was not reached within {timeout:?}: {}", mesh.freshness().lack()),
            )),
        }
    }

    /// Reads settings from the environment that the program did not set.
    fn read_environment(&mut self) -> Result<(), Invalid> {
        if self.agents.is_empty() && self.control.is_empty() && self.lookaside.is_none() {
            match environment::upstream()? {
                Upstream::Agents(agents) => self.agents = agents,
                Upstream::ControlPlanes(control_planes) => self.control = control_planes,
            }
        }
        Ok(())
    }

    /// Returns a transport with this program's identity. An agent or a Workload API issues the identity; a program
    /// with a token and without an agent gets it from the control plane. Without any of these, the transport is
    /// plaintext.
    #[cfg(feature = "tls")]
    async fn transport_of_agent(&self, client_id: &str) -> Result<Transport, Invalid> {
        let workload_api = environment::workload_api()?;
        let followed = self.agents.iter().chain(&self.control).chain(&self.lookaside);
        let is_direct = self.agents.is_empty() && self.lookaside.is_none();
        let control_planes = if is_direct { self.control.clone() } else { Vec::new() };
        let agent = match workload_api.is_some() || !control_planes.is_empty() {
            true => followed.into_iter().next(),
            false => Address::first_local(&self.agents).await.or(self.agents.first()),
        };
        let Some(agent) = agent else {
            return Ok(Transport::default());
        };
        let token = match control_planes.is_empty() {
            true => None,
            false => fairmesh_identity::JoinToken::of_environment()?,
        };
        let request = fairmesh_identity::IdentityRequest {
            agent: agent.clone(),
            workload_api,
            control_planes,
            token,
            path: self.identity.clone(),
            software: format!("client {client_id}"),
            patience: self.identity_wait.unwrap_or(fairmesh_identity::FIRST_CERTIFICATE_WAIT),
        };
        request.check()?;
        let identity = fairmesh_identity::ProgramIdentity::of_caller(request).await;
        Ok(identity.map(fairmesh_identity::ProgramIdentity::transport).unwrap_or_default())
    }

    /// Returns a plaintext transport: without the feature `tls`, this program has no identity.
    #[cfg(not(feature = "tls"))]
    async fn transport_of_agent(&self, _client_id: &str) -> Result<Transport, Invalid> {
        Ok(Transport::default())
    }

    /// Follows records.
    async fn follow(
        &self,
        client_id: String,
        transport: Transport,
    ) -> Result<Resolver<Arc<EndpointPool>>, Invalid> {
        let region = environment::location(None)?;
        let (location, fallback_location) = match self.is_direct() {
            // Control planes do not report a location, so there is nothing to wait for.
            true => (self.location.clone().or(region), None),
            false => (self.location.clone(), region),
        };
        let upstream = FollowerConfig {
            transport,
            addresses: [self.agents.clone(), self.control.clone()].concat(),
            software: format!("client {client_id}"),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        // A program that follows control planes has no agent, and must not use the copy of a former agent.
        let usual = || (!self.is_direct()).then(environment::copy_on_disk);
        let cache_dir = self.cache_dir.clone().or_else(usual);
        let idle_timeout = self.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT);
        let resolver = Resolver::start(ResolverConfig {
            upstream,
            client_id,
            caller: self.service(),
            location,
            fallback_location,
            cache_dir,
            idle_timeout,
            authorizes_callers: self.authorizes_callers,
        });
        let mut state = resolver.state();
        // Calls report whether the agent is connected.
        let _ =
            tokio::time::timeout(CONNECT_WAIT, state.wait_for(|state| state.connected || state.failures > 0))
                .await;
        Ok(resolver)
    }

    /// The service whose identity this program has, if any.
    fn service(&self) -> Option<ServiceName> {
        match &self.identity {
            Some(SpiffePath::Service(service)) => Some(service.clone()),
            _ => None,
        }
    }

    /// Whether only control planes are followed.
    fn is_direct(&self) -> bool {
        self.agents.is_empty() && !self.control.is_empty()
    }
}

fn default_client_id() -> String {
    if let Ok(id) = env::var("FAIRMESH_CLIENT_ID") {
        return id;
    }
    let host = environment::host_name().unwrap_or_default();
    let program = env::args_os().next().map(PathBuf::from);
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
    format!("{host}/{program}")
}
