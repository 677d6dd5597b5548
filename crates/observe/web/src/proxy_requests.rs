//! Requests of services as proxies see them: the last ones with their decisions, and requests as they complete.
//!
//! Proxies have both on their admin pages. While a web page looks at a service, a task reads these pages of the proxies
//! that the control plane was started with. A viewer names a service and never an address.

mod proxy_pages;
mod seen_requests;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::ServiceName;
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use self::seen_requests::SeenRequests;
use crate::{command_queries::problem, event_delta::Shown};

/// Maximum number of services whose requests are read at the same time. A proxy has eight taps for all its readers.
const MAX_SERVICES: usize = 4;
/// Time without a look after which the requests of a service are no longer read.
const UNUSED_AFTER: Duration = Duration::from_secs(10);
/// Interval between two checks for that.
const UNUSED_CHECK: Duration = Duration::from_secs(1);
/// Interval between two reads of the last requests, and pause before a tap that ended is opened again.
const PAUSE: Duration = Duration::from_secs(2);

/// Reads the requests of the services that pages look at.
#[derive(Debug)]
pub(crate) struct ProxyRequests {
    proxies: Vec<SocketAddr>,
    readers: Mutex<BTreeMap<ServiceName, Arc<Mutex<SeenRequests>>>>,
    closing: CancellationToken,
}

impl ProxyRequests {
    /// Creates a reader of the admin pages at these addresses. It ends with `closing`.
    pub(crate) fn new(proxies: Vec<SocketAddr>, closing: CancellationToken) -> Self {
        Self { proxies, readers: Mutex::default(), closing }
    }

    /// Shows the last requests of a service with their decisions, and the state of each proxy. From now on these
    /// requests are read, until nobody has looked for a while. Callers are on a thread of the runtime.
    pub(crate) fn last(&self, service: &ServiceName) -> Shown {
        self.shown(service, SeenRequests::last)
    }

    /// Shows requests of a service as they complete; like [`last`](Self::last), this starts to read them.
    pub(crate) fn live(&self, service: &ServiceName) -> Shown {
        self.shown(service, SeenRequests::live)
    }

    fn shown(&self, service: &ServiceName, show: impl Fn(&mut SeenRequests) -> Shown) -> Shown {
        if self.proxies.is_empty() {
            return Shown::head(&json!({ "proxies": [] }));
        }
        match self.reader(service) {
            Some(seen) => show(&mut seen.lock().unwrap_or_else(PoisonError::into_inner)),
            None => problem("pages show the requests of other services at the moment; close one of them"),
        }
    }

    /// The requests of a service, which are read from now on; `None` if those of too many services are read.
    fn reader(&self, service: &ServiceName) -> Option<Arc<Mutex<SeenRequests>>> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|_, seen| !is_unused(seen));
        if let Some(seen) = readers.get(service) {
            return Some(Arc::clone(seen));
        }
        if readers.len() >= MAX_SERVICES {
            return None;
        }
        let seen = Arc::new(Mutex::new(SeenRequests::of(&self.proxies)));
        readers.insert(service.clone(), Arc::clone(&seen));
        let reading = read(Arc::clone(&seen), self.proxies.clone(), service.clone());
        let closing = self.closing.clone();
        tokio::spawn(async move { closing.run_until_cancelled(reading).await });
        Some(seen)
    }
}

fn is_unused(seen: &Mutex<SeenRequests>) -> bool {
    seen.lock().unwrap_or_else(PoisonError::into_inner).is_unused_for(UNUSED_AFTER)
}

/// Reads requests of a service from each proxy until nobody looks at them.
async fn read(seen: Arc<Mutex<SeenRequests>>, proxies: Vec<SocketAddr>, service: ServiceName) {
    // Dropping the set ends its tasks.
    let mut tasks = JoinSet::new();
    for proxy in proxies {
        tasks.spawn(read_last(Arc::clone(&seen), proxy, service.clone()));
        tasks.spawn(read_live(Arc::clone(&seen), proxy, service.clone()));
    }
    while !is_unused(&seen) {
        sleep(UNUSED_CHECK).await;
    }
}

async fn read_last(seen: Arc<Mutex<SeenRequests>>, proxy: SocketAddr, service: ServiceName) {
    loop {
        let last = proxy_pages::last(proxy, &service).await;
        seen.lock().unwrap_or_else(PoisonError::into_inner).set_last(proxy, last);
        sleep(PAUSE).await;
    }
}

async fn read_live(seen: Arc<Mutex<SeenRequests>>, proxy: SocketAddr, service: ServiceName) {
    loop {
        let take = |line: &[u8]| seen.lock().unwrap_or_else(PoisonError::into_inner).add_live(proxy, line);
        // A proxy that does not respond is reported with its last requests.
        let ended = proxy_pages::tap(proxy, &service, take).await;
        tracing::debug!(%proxy, %service, "tap ended: {ended}");
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(requests: &ProxyRequests, service: &str) -> String {
        requests.last(&ServiceName::new(service).unwrap()).since(None).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_bounded_number_of_services_are_read_until_unused() {
        let proxies = vec!["127.0.0.1:1".parse().unwrap()];
        let requests = ProxyRequests::new(proxies, CancellationToken::new());
        for number in 0..MAX_SERVICES {
            assert!(!shown(&requests, &format!("shop/s{number}")).contains("problem\":\"pages"));
        }
        assert!(shown(&requests, "shop/more").contains("problem\":\"pages show the requests of other"));
        tokio::time::advance(UNUSED_AFTER).await;
        assert!(!shown(&requests, "shop/more").contains("problem\":\"pages"));
        assert_eq!(requests.readers.lock().unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_read_without_proxies() {
        let requests = ProxyRequests::new(Vec::new(), CancellationToken::new());
        assert!(shown(&requests, "shop/web").contains("\"proxies\":[]"));
        assert!(requests.readers.lock().unwrap().is_empty());
    }
}
