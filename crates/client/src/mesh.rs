use std::{
    env, fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{
    Invalid, Location, ServiceName,
    arith::{hash_text, mix64},
};
use fairmesh_rib::follower::{Backoff, FollowerConfig};
use fairmesh_wire::{environment, transport::Address};
use tokio::sync::Semaphore;

use crate::{
    ServiceHandle, Stats,
    core::{Clock, Resolver, ResolverConfig, UNUSED},
    explain::Freshness,
    leases::{Leases, OwnLookasides},
    observer::Observer,
    source::Source,
    stats::Counters,
    transport::{Line, OwnAddresses, Wiring},
};

/// How long [`Mesh::connect`] waits for the agent, so that the first calls find it there.
const FIRST_CONTACT: Duration = Duration::from_secs(1);

/// The most copies of calls under way at one time: beyond it they are left out, so that they can hold up nobody.
const MIRRORS: usize = 64;

/// The entrance: one for a program, cheap to clone. Dropping the last clone and the last handle ends it.
#[derive(Clone, Debug)]
pub struct Mesh {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles of a mesh share.
pub(crate) struct Shared {
    pub(crate) source: Source,
    /// Those that policies name.
    pub(crate) own_lookasides: OwnLookasides,
    pub(crate) counters: Arc<Counters>,
    pub(crate) wiring: Wiring,
    pub(crate) clock: Clock,
    /// Who is told of every try.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Places for copies of calls under way.
    pub(crate) mirrors: Arc<Semaphore>,
    seed: AtomicU64,
}

/// How to connect; see [`Mesh::builder`]. What is not set comes from the environment.
#[derive(Clone, Debug, Default)]
pub struct MeshBuilder {
    agent: Option<Address>,
    control: Vec<Address>,
    lookaside: Option<Address>,
    client_id: Option<String>,
    location: Option<Location>,
    cache_dir: Option<PathBuf>,
    local_address: Option<IpAddr>,
    observer: Option<Arc<dyn Observer>>,
    cores: usize,
    unused: Option<Duration>,
}

impl Mesh {
    /// Connects as the environment says: to the agent at `FAIRMESH_AGENT`, or at its usual socket.
    ///
    /// # Errors
    /// When a variable is malformed. A missing agent is no error: see [`MeshBuilder::connect`].
    pub async fn connect() -> Result<Self, Invalid> {
        Self::builder().connect().await
    }

    /// Sets things that the environment does not.
    pub fn builder() -> MeshBuilder {
        MeshBuilder::default()
    }

    /// A service by its name, such as `shop/cart`. Returns at once; what is needed to call it is fetched meanwhile, and
    /// kept current from then on.
    ///
    /// # Errors
    /// When the name is malformed. Whether there is such a service, the first call tells.
    pub fn service(&self, name: impl AsRef<str>) -> Result<ServiceHandle, Invalid> {
        let subscription = self.shared.source.subscription(&ServiceName::new(name)?);
        Ok(ServiceHandle::new(Arc::clone(&self.shared), subscription))
    }

    /// Waits, however long it takes, until anything is known: from the agent, or from what it left on disk. For those who
    /// must not begin to serve before; calls wait by themselves.
    pub async fn informed(&self) {
        self.shared.source.informed().await;
    }

    /// Makes no connections to these addresses from now on: those at which this process accepts the calls that it forwards.
    /// An endpoint there counts as one that cannot be reached.
    pub fn exclude_addresses(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.shared.wiring.own_addresses.add(addresses);
    }

    /// How fresh what is known is, and from whom it comes.
    pub fn freshness(&self) -> Freshness {
        let state = self.shared.source.state().borrow().clone();
        Freshness {
            connected: state.connected,
            age: self.shared.source.data_age(),
            address: state.address,
            location: state.location,
            error: state.error,
        }
    }

    /// What this mesh has done so far.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read(self.shared.source.health_panics(), self.shared.source.data_age())
    }
}

impl Shared {
    /// A fresh seed: a counter, mixed, is as good as chance for a choice and costs less.
    #[inline]
    pub(crate) fn seed(&self) -> u64 {
        mix64(self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }
}

impl MeshBuilder {
    /// The agent's address; without it `FAIRMESH_AGENT`, else the usual socket.
    #[must_use]
    pub fn agent(mut self, address: Address) -> Self {
        self.agent = Some(address);
        self
    }

    /// A control plane to follow directly, where there is no agent; may be given several times.
    #[must_use]
    pub fn control(mut self, address: Address) -> Self {
        self.control.push(address);
        self
    }

    /// A lookaside that says which endpoints to call, on a machine that has no agent: records are not followed then, and what
    /// is said of agents here does not count. It is reached with the first call.
    #[must_use]
    pub fn lookaside(mut self, address: Address) -> Self {
        self.lookaside = Some(address);
        self
    }

    /// Who this caller is: its stable subset of servers hangs on it, so that it must be the same after a restart and
    /// differ between copies of a program. Without it `FAIRMESH_CLIENT_ID`, else host name and program name, which suits
    /// one copy a machine.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Where this program runs. Without it the agent's word is taken, or while it is away what it left beside its copy
    /// on disk; where neither says so, the region in `FAIRMESH_REGION`.
    #[must_use]
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Where the agent keeps its copy on disk, to be read when the agent cannot be reached at start; without it the
    /// agent's usual folder, that of an agent which runs as root or as this user, whichever was written last; or none
    /// where only control planes are followed.
    #[must_use]
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// The address to call from, on a host that has several; without it the system chooses. Endpoints of the other
    /// family of addresses are called as if it were not given.
    #[must_use]
    pub fn local_address(mut self, address: IpAddr) -> Self {
        self.local_address = Some(address);
        self
    }

    /// Who is told of every try of every call.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// How many event loops call, where each is one thread's own and that thread has [said which](crate::on_core): each then
    /// has connections of its own. Without it, all that call share connections.
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = cores;
        self
    }

    /// How long services are followed that are not called and that nobody holds a handle to; 10 min where this is not said. One
    /// that is called again after that is asked for anew, and its connections are opened anew.
    #[must_use]
    pub fn unused_for(mut self, unused: Duration) -> Self {
        self.unused = Some(unused);
        self
    }

    /// Connects, and waits up to a second for the agent. One that does not answer is no error: calls go by its copy on
    /// disk or say that there is none, and everything goes on when it comes. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When a variable of the environment is malformed.
    pub async fn connect(self) -> Result<Mesh, Invalid> {
        let client_id = self.client_id.clone().unwrap_or_else(default_client_id);
        let seed = AtomicU64::new(hash_text(&client_id) ^ u64::from(std::process::id()));
        let own_lookasides = OwnLookasides::new(client_id.clone());
        let source = match &self.lookaside {
            Some(address) => Source::Leases(leases(address, &client_id)?),
            None => Source::Records(self.follow(client_id).await?),
        };
        let counters = Arc::<Counters>::default();
        let wiring = Wiring {
            counters: Arc::clone(&counters),
            local: self.local_address,
            own_addresses: OwnAddresses::default(),
            cores: self.cores,
        };
        let mirrors = Arc::new(Semaphore::new(MIRRORS));
        let (clock, observer) = (Clock::start(), self.observer);
        let shared = Shared { source, own_lookasides, counters, wiring, clock, observer, mirrors, seed };
        Ok(Mesh { shared: Arc::new(shared) })
    }

    /// Follows records.
    async fn follow(&self, client_id: String) -> Result<Resolver<Arc<Line>>, Invalid> {
        let region = environment::location(None)?;
        let (location, otherwise) = match self.is_direct() {
            // Nobody says it who could know better, so that nothing is decided before.
            true => (self.location.clone().or(region), None),
            false => (self.location.clone(), region),
        };
        let upstream = FollowerConfig {
            addresses: self.addresses()?,
            software: format!("client {client_id}"),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        // Whoever follows control planes has no agent, and what one left on this machine once is nobody's copy.
        let usual = || (!self.is_direct()).then(environment::agent_copy);
        let cache_dir = self.cache_dir.clone().or_else(usual);
        let unused = self.unused.unwrap_or(UNUSED);
        let resolver =
            Resolver::start(ResolverConfig { upstream, client_id, location, otherwise, cache_dir, unused });
        let mut state = resolver.state();
        // Whether it came or not, calls find out.
        let _ = tokio::time::timeout(
            FIRST_CONTACT,
            state.wait_for(|state| state.connected || state.failures > 0),
        )
        .await;
        Ok(resolver)
    }

    /// Whether only control planes are followed.
    fn is_direct(&self) -> bool {
        self.agent.is_none() && !self.control.is_empty()
    }

    fn addresses(&self) -> Result<Vec<Address>, Invalid> {
        if self.is_direct() {
            return Ok(self.control.clone());
        }
        let agent = match (&self.agent, env::var("FAIRMESH_AGENT")) {
            (Some(agent), _) => agent.clone(),
            (None, Ok(text)) => text.parse().map_err(|e: Invalid| e.within("FAIRMESH_AGENT"))?,
            (None, Err(_)) => environment::agent(),
        };
        Ok([vec![agent], self.control.clone()].concat())
    }
}

fn leases(address: &Address, client_id: &str) -> Result<Leases, Invalid> {
    Leases::new(address.clone(), client_id.to_owned()).map_err(|error| {
        Invalid::new(
            "lookaside",
            format!("{address} cannot be called: {error}"),
            "write host:port, or unix:/path",
        )
    })
}

fn default_client_id() -> String {
    if let Ok(id) = env::var("FAIRMESH_CLIENT_ID") {
        return id;
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let program = env::args_os().next().map(PathBuf::from);
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
    format!("{}/{program}", host.trim())
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("source", &self.source).finish_non_exhaustive()
    }
}
