use std::sync::{
    OnceLock,
    atomic::{AtomicU8, Ordering::Relaxed},
};

use crate::{discovery::RouteBackendIndex, dispatch::AllowedCall};

const ABORT: u8 = 1;
const DELAY: u8 = 2;

/// Facts about a call, available even if it failed, for the proxy's counters, access log and spans.
#[derive(Debug, Default)]
pub struct CallInfo {
    route_backend: AtomicU8,
    injected: AtomicU8,
    allowed: OnceLock<Box<AllowedCall>>,
}

impl CallInfo {
    /// Route and backend; known once the call was routed.
    pub fn route_backend(&self) -> RouteBackendIndex {
        RouteBackendIndex::from_byte(self.route_backend.load(Relaxed))
    }

    /// Names of the faults that the call's route injected, if any.
    pub fn injected(&self) -> Option<&'static str> {
        match self.injected.load(Relaxed) {
            0 => None,
            ABORT => Some("abort"),
            DELAY => Some("delay"),
            _ => Some("delay,abort"),
        }
    }

    /// Takes the authorization of the call that opened a connection by an upgrade for a principal.
    pub fn take_allowed(&mut self) -> Option<Box<AllowedCall>> {
        self.allowed.take()
    }

    pub(crate) fn note_allowed(&self, allowed: AllowedCall) {
        let _ = self.allowed.set(Box::new(allowed));
    }

    pub(crate) fn set_route_backend(&self, route_backend: RouteBackendIndex) {
        self.route_backend.store(route_backend.to_byte(), Relaxed);
    }

    pub(crate) fn note_abort(&self) {
        self.injected.fetch_or(ABORT, Relaxed);
    }

    pub(crate) fn note_delay(&self) {
        self.injected.fetch_or(DELAY, Relaxed);
    }
}
