//! Caches the target of a connection's last request: the next request nearly always has the same host.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::services::{host_name::HostError, target::Target};

/// Cache of one connection's last host and service. It has its own lock, whereas all connections share the table of
/// services.
#[derive(Debug, Default)]
pub struct HostCache(Mutex<Option<CachedTarget>>);

#[derive(Debug)]
struct CachedTarget {
    host: Box<str>,
    /// The service. Weak, so that an idle connection does not keep a service subscribed.
    target: Weak<Target>,
}

impl HostCache {
    /// The cached target of this host. Calls `look_up` for another host, or if the target was evicted.
    pub fn get(
        &self,
        host: &str,
        look_up: impl FnOnce() -> Result<Arc<Target>, HostError>,
    ) -> Result<Arc<Target>, HostError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = &*last
            && *cached.host == *host
            && let Some(target) = cached.target.upgrade()
            && !target.is_forgotten()
        {
            return Ok(target);
        }
        let target = look_up()?;
        *last = Some(CachedTarget { host: host.into(), target: Arc::downgrade(&target) });
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fairmesh_calls::Mesh;

    use super::*;
    use crate::{limits::Limits, services::Services};

    #[tokio::test]
    async fn host_cache_looks_removed_service_up_again() {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mesh = Mesh::builder().agent(nowhere).client_id("test").connect().await.unwrap();
        let (services, recent, looked_up) =
            (Services::new(mesh, Limits::default()), HostCache::default(), Cell::new(0));
        let get = || {
            let look_up = || {
                looked_up.set(looked_up.get() + 1);
                services.by_host("one.shop")
            };
            recent.get("one.shop", look_up).unwrap()
        };
        let one = get();
        let made_up = services.by_host("undeclared.shop").unwrap();
        services.forget(made_up.handle.name());
        assert!(Arc::ptr_eq(&get(), &one));
        assert_eq!(looked_up.get(), 1);
        services.forget(one.handle.name());
        assert!(!Arc::ptr_eq(&get(), &one));
        assert_eq!(looked_up.get(), 2);
    }
}
