//! Which service a request is for.

mod idle;

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use fairmesh_client::{Mesh, Region, ServiceHandle, ServiceName, discovery::ServiceState};
use fairmesh_model::HostPort;
use tokio::time::{Instant, timeout};

use crate::{Limits, Listen, lasts::Last, metrics::Golden};
use idle::Activity;

/// How many services have series of their own among the metrics: those that were called first. The rest are counted together.
const MAX_LABELLED: usize = 4096;

/// How long it may take to learn whether there is a service of a name: the agent is asked, and at most the control plane by it.
const LEARN: Duration = Duration::from_secs(1);

/// A service with what is counted of it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) handle: ServiceHandle,
    pub(crate) golden: Golden,
    /// The last request of it that was looked at.
    pub(crate) last: Last,
    /// Whether it has series of its own.
    pub(crate) is_labelled: bool,
    /// Whether it is followed though it is not called.
    is_kept: AtomicBool,
    activity: Mutex<Activity>,
    forgotten: AtomicBool,
}

impl Target {
    fn new(handle: ServiceHandle, is_labelled: bool) -> Self {
        Self {
            handle,
            golden: Golden::default(),
            last: Last::default(),
            is_labelled,
            is_kept: AtomicBool::new(false),
            activity: Mutex::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Whether its name has to be looked up again.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Acquire)
    }

    /// What is known of it now: the region from which it is called, and the revision that this is by.
    pub(crate) fn known(&self) -> Option<(Region, u64)> {
        match &*self.handle.state() {
            ServiceState::Ready(ready) => Some((ready.upstream.home().clone(), ready.revision)),
            _ => None,
        }
    }
}

/// The services called lately, by name.
#[derive(Debug)]
pub(crate) struct Services {
    mesh: Mesh,
    limits: Limits,
    known: RwLock<Known>,
    /// What was counted of services that were let go.
    let_go: Golden,
    /// Services let go since they were not called.
    pub(crate) idle: AtomicU64,
    /// Requests refused since there was no room for another service.
    pub(crate) refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<ServiceName, Arc<Target>>,
    /// How many of them have series of their own.
    labelled: usize,
    /// When room was last looked for.
    searched: Option<Instant>,
}

impl Known {
    fn remove(&mut self, name: &ServiceName) -> Option<Arc<Target>> {
        let target = self.by_name.remove(name)?;
        self.labelled -= usize::from(target.is_labelled);
        target.forgotten.store(true, Release);
        Some(target)
    }
}

/// Why a request is for no service.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Nobody {
    #[error("the request names no host; send 'Host: service.tenant'")]
    NoHost,
    #[error(
        "'{0}' is no host, or a second one; send one name or address, and a port up to 65535 where there is one"
    )]
    Malformed(String),
    #[error("'{0}' is no service; send 'Host: service.tenant', as cart.shop for shop/cart")]
    NoName(String),
    #[error(
        "this proxy follows {most} services already, all of them called lately, and has no room for another; raise \
         --max-services, or run a further proxy for some of the programs"
    )]
    TooMany { most: usize },
}

impl Services {
    pub(crate) fn new(mesh: Mesh, limits: Limits) -> Self {
        Self {
            mesh,
            limits,
            known: RwLock::default(),
            let_go: Golden::default(),
            idle: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The service whose host this is: `cart.shop` for `shop/cart`, with or without a port.
    pub(crate) fn by_host(&self, host: &str) -> Result<Arc<Target>, Nobody> {
        self.by_name(&name_of(host)?)
    }

    pub(crate) fn by_name(&self, name: &ServiceName) -> Result<Arc<Target>, Nobody> {
        if let Some(target) = self.known.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name) {
            return Ok(Arc::clone(target));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = known.by_name.get(name) {
            return Ok(Arc::clone(target));
        }
        if known.by_name.len() >= self.limits.services && !self.make_room(&mut known) {
            return Err(Nobody::TooMany { most: self.limits.services });
        }
        // A name that was read is well formed.
        let handle = self.mesh.service(name.to_string()).map_err(|_| Nobody::NoName(name.to_string()))?;
        let is_labelled = known.labelled < MAX_LABELLED;
        known.labelled += usize::from(is_labelled);
        let target = Arc::new(Target::new(handle, is_labelled));
        known.by_name.insert(name.clone(), Arc::clone(&target));
        Ok(target)
    }

    /// Whether this host is that of a service that somebody declared. What cannot be learnt in time is none, so that whoever
    /// passes the rest on does not keep it waiting while there is nobody to ask.
    pub(crate) async fn has(&self, host: &str) -> bool {
        let Ok(target) = self.by_host(host) else { return false };
        let known = timeout(LEARN, target.handle.resolved()).await.is_ok();
        let declared = known && !matches!(*target.handle.state(), ServiceState::Unknown);
        if !declared && target.golden.answers.classes() == [0; 5] {
            self.forget(target.handle.name());
        }
        declared
    }

    /// Nobody knows it: whoever makes names up must not fill the table.
    pub(crate) fn forget(&self, name: &ServiceName) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // One with a listener of its own stays, and may be declared yet.
        if known.by_name.get(name).is_none_or(|target| !target.is_kept.load(Acquire)) {
            known.remove(name);
        }
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<(ServiceName, Arc<Target>)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let targets = known.by_name.iter();
        let mut all: Vec<_> = targets.map(|(name, target)| (name.clone(), Arc::clone(target))).collect();
        drop(known);
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    /// Those that have series of their own, by name, and what was counted of all others, where anything was.
    pub(crate) fn labelled(&self) -> (Vec<(ServiceName, Arc<Target>)>, Option<Golden>) {
        let (labelled, others): (Vec<_>, Vec<_>) =
            self.all().into_iter().partition(|(_, target)| target.is_labelled);
        let rest = Golden::default();
        rest.add(&self.let_go);
        others.iter().for_each(|(_, target)| rest.add(&target.golden));
        let any = rest.answers.classes() != [0; 5];
        (labelled, any.then_some(rest))
    }

    /// Waits, however long it takes, until it is known what to do with what comes to these listeners.
    pub(crate) async fn known(&self, listen: &[Listen]) {
        self.mesh.first_snapshot().await;
        let named = listen.iter().filter_map(Listen::service);
        // All are asked for before the first is waited for.
        let targets: Vec<_> = named.filter_map(|name| self.by_name(name).ok()).collect();
        for target in targets {
            // A program has a listener of its own for it, which must work on when nothing can be learnt any more.
            target.is_kept.store(true, Release);
            target.handle.resolved().await;
            if matches!(*target.handle.state(), ServiceState::Unknown) {
                tracing::warn!(service = %target.handle.name(), "not declared: calls to it fail until it is");
            }
        }
    }
}

/// The service that a host names.
pub(crate) fn name_of(host: &str) -> Result<ServiceName, Nobody> {
    let no_name = || Nobody::NoName(host.to_owned());
    let name = HostPort::parse(host).ok_or_else(|| Nobody::Malformed(host.to_owned()))?.name();
    // An address of version 4 would pass for a name; one in brackets fails below like any other.
    if name.parse::<Ipv4Addr>().is_ok() {
        return Err(no_name());
    }
    let (service, tenant) = name.rsplit_once('.').ok_or_else(no_name)?;
    ServiceName::new(format!("{tenant}/{service}").to_ascii_lowercase()).map_err(|_| no_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_names_the_service_before_its_tenant() {
        for host in ["cart.shop", "cart.shop:8080", "Cart.Shop.", "cart.shop.:80"] {
            assert_eq!(name_of(host).unwrap().to_string(), "shop/cart", "{host}");
        }
        assert_eq!(name_of("v2.cart.shop").unwrap().to_string(), "shop/v2.cart");
        for host in ["cart", "cart:80", "[::1]:80", "127.0.0.1:80", "10.0.0.1", ".shop", "a,b.shop"] {
            assert!(matches!(name_of(host), Err(Nobody::NoName(_))), "{host}");
        }
        for host in [
            "",
            "a b.shop",
            "cart.shop..",
            "cart.shop:80x",
            "cart.shop:65536",
            "user@cart.shop",
            "cart.shop:8:0",
        ] {
            assert!(matches!(name_of(host), Err(Nobody::Malformed(_))), "{host}");
        }
    }
}
