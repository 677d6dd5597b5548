//! Which service a request is for.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use fairmesh_client::{Mesh, Region, ServiceHandle, ServiceName, core::View};
use tokio::time::timeout;

use crate::{Listen, lasts::Last, metrics::Golden};

/// The most services that one proxy calls: each costs a subscription and labels of metrics, and requests may name any.
const MOST: usize = 4096;

/// How long it may take to learn whether there is a service of a name: the agent is asked, and at most the control plane by it.
const LEARN: Duration = Duration::from_secs(1);

/// A service with what is counted of it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) handle: ServiceHandle,
    pub(crate) golden: Golden,
    /// The last request of it that was looked at.
    pub(crate) last: Last,
    forgotten: AtomicBool,
}

impl Target {
    fn new(handle: ServiceHandle) -> Self {
        Self { handle, golden: Golden::default(), last: Last::default(), forgotten: AtomicBool::new(false) }
    }

    /// Whether its name has to be looked up again.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Acquire)
    }

    /// What is known of it now: the region from which it is called, and the revision that this is by.
    pub(crate) fn known(&self) -> Option<(Region, u64)> {
        match &*self.handle.view() {
            View::Ready(ready) => Some((ready.upstream.home().clone(), ready.revision)),
            _ => None,
        }
    }
}

/// The services called so far, by name.
#[derive(Debug)]
pub(crate) struct Services {
    mesh: Mesh,
    known: RwLock<HashMap<ServiceName, Arc<Target>>>,
}

/// Why a request is for no service.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Nobody {
    #[error("the request names no host; send 'Host: service.tenant'")]
    NoHost,
    #[error("'{0}' is no service; send 'Host: service.tenant', as cart.shop for shop/cart")]
    NoName(String),
    #[error("{MOST} services are called through this proxy; run another for more")]
    TooMany,
}

impl Services {
    pub(crate) fn new(mesh: Mesh) -> Self {
        Self { mesh, known: RwLock::default() }
    }

    /// The service whose host this is: `cart.shop` for `shop/cart`, with or without a port.
    pub(crate) fn by_host(&self, host: &str) -> Result<Arc<Target>, Nobody> {
        self.by_name(&name_of(host)?)
    }

    pub(crate) fn by_name(&self, name: &ServiceName) -> Result<Arc<Target>, Nobody> {
        if let Some(target) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(Arc::clone(target));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(name) {
            self.make_room(&mut known)?;
        }
        // A name that was read is well formed.
        let handle = self.mesh.service(name.to_string()).map_err(|_| Nobody::NoName(name.to_string()))?;
        Ok(Arc::clone(known.entry(name.clone()).or_insert_with(|| Arc::new(Target::new(handle)))))
    }

    /// Lets go of names that turned out to be nobody's, however the requests for them ended: whoever makes names up must not
    /// keep others out.
    fn make_room(&self, known: &mut HashMap<ServiceName, Arc<Target>>) -> Result<(), Nobody> {
        known.retain(|_, target| {
            let unknown = matches!(*target.handle.view(), View::Unknown);
            if unknown {
                target.forgotten.store(true, Release);
            }
            !unknown
        });
        if known.len() < MOST { Ok(()) } else { Err(Nobody::TooMany) }
    }

    /// Whether this host is that of a service that somebody declared. What cannot be learnt in time is none, so that whoever
    /// passes the rest on does not keep it waiting while there is nobody to ask.
    pub(crate) async fn has(&self, host: &str) -> bool {
        let Ok(target) = self.by_host(host) else { return false };
        let known = timeout(LEARN, target.handle.known()).await.is_ok();
        let declared = known && !matches!(*target.handle.view(), View::Unknown);
        if !declared && target.golden.answers.classes() == [0; 5] {
            self.forget(target.handle.name());
        }
        declared
    }

    /// Nobody knows it: whoever makes names up must not fill the table.
    pub(crate) fn forget(&self, name: &ServiceName) {
        let forgotten = self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(target) = forgotten {
            target.forgotten.store(true, Release);
        }
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<(ServiceName, Arc<Target>)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.iter().map(|(name, target)| (name.clone(), Arc::clone(target))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// Waits, however long it takes, until it is known what to do with what comes to these listeners.
    pub(crate) async fn known(&self, listen: &[Listen]) {
        self.mesh.informed().await;
        let named = listen.iter().filter_map(Listen::service);
        // All are asked for before the first is waited for.
        let targets: Vec<_> = named.filter_map(|name| self.by_name(name).ok()).collect();
        for target in targets {
            target.handle.known().await;
            if matches!(*target.handle.view(), View::Unknown) {
                tracing::warn!(service = %target.handle.name(), "not declared: calls to it fail until it is");
            }
        }
    }
}

fn name_of(host: &str) -> Result<ServiceName, Nobody> {
    let no_name = || Nobody::NoName(host.to_owned());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
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
        for host in ["", "cart", "cart:80", "[::1]:80", "127.0.0.1:80", "10.0.0.1", ".shop", "a b.shop"] {
            assert!(matches!(name_of(host), Err(Nobody::NoName(_))), "{host}");
        }
    }
}
