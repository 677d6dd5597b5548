//! Whom the last request of a connection was for: the next one nearly always is for the same.

use std::sync::{Arc, Mutex, PoisonError};

use crate::service::{Nobody, Services, Target};

/// What was found last; its lock is the connection's own, where the table of services is everybody's.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Option<Found>>);

#[derive(Debug)]
struct Found {
    host: Box<str>,
    epoch: u64,
    target: Arc<Target>,
}

impl Recent {
    /// The target of this host, looked up where it was not the last one or a service was forgotten since.
    pub(crate) fn get(
        &self,
        host: &str,
        services: &Services,
        look_up: impl FnOnce() -> Result<Arc<Target>, Nobody>,
    ) -> Result<Arc<Target>, Nobody> {
        let epoch = services.epoch();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*last
            && found.epoch == epoch
            && *found.host == *host
        {
            return Ok(Arc::clone(&found.target));
        }
        let target = look_up()?;
        *last = Some(Found { host: host.into(), epoch, target: Arc::clone(&target) });
        Ok(target)
    }
}
