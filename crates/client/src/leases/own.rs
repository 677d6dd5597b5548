//! The lookasides that services have of their own (ServiceRouter §3.3): their policies name them, and whoever calls asks them for the pick.
//!
//! Everything else stays with the caller's records: routes, deadlines, retries, and who is called while a lookaside has never
//! answered.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{ServiceName, ShardKey};
use fairmesh_wire::transport::Address;

use super::{Leases, cell::Cell};
use crate::{CallContext, core::View};

/// Lookasides that a program asks; beyond it all are forgotten, and those in use asked anew.
const MOST: usize = 64;

/// All of them, by address.
pub(crate) struct OwnLookasides {
    by_address: Mutex<HashMap<Arc<str>, Option<Arc<Leases>>>>,
    client_id: String,
}

impl OwnLookasides {
    /// For a caller of this id; nobody is asked yet.
    pub(crate) fn new(client_id: String) -> Self {
        Self { by_address: Mutex::default(), client_id }
    }

    /// The leases by which a call goes that begins now, of the service, and for the key that it has or that its policy reads.
    /// `None` where there never were any: the first call waits as long as the lookaside may take, unless it is known not to answer.
    pub(crate) async fn called(
        &self,
        address: &Arc<str>,
        name: &ServiceName,
        context: &CallContext,
        read: Option<ShardKey>,
    ) -> Option<Arc<Cell>> {
        let leases = self.at(address)?;
        let cell = match context.key.or(read) {
            key if key == context.key => leases.called(name, context),
            key => leases.called(name, &CallContext { key, ..context.clone() }),
        };
        let mut view = cell.subscription.view();
        // A cell says within a bound what became of its first question.
        while matches!(*view, View::Waiting) {
            // Every further key would wait as long for nothing. The cell goes on asking.
            if leases.is_lost() {
                return None;
            }
            cell.subscription.newer(&view).await;
            view = cell.subscription.view();
        }
        matches!(*view, View::Ready(_)).then_some(cell)
    }

    fn at(&self, address: &Arc<str>) -> Option<Arc<Leases>> {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_address.get(address) {
            return known.clone();
        }
        if by_address.len() >= MOST {
            by_address.clear();
        }
        let read = address.parse::<Address>().map_err(|e| e.to_string());
        let leases =
            read.and_then(|read| Leases::new(read, self.client_id.clone()).map_err(|e| e.to_string()));
        let leases = leases.inspect_err(|error| {
            tracing::warn!(%error, %address, "a lookaside of a service's own cannot be asked; mend `lookaside` in its policy");
        });
        let leases = leases.ok().map(Arc::new);
        by_address.insert(Arc::clone(address), leases.clone());
        leases
    }
}

impl fmt::Debug for OwnLookasides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnLookasides").field("by_address", &self.by_address).finish_non_exhaustive()
    }
}
