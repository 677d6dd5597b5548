use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_router::EndpointTarget;
use http::StatusCode;

/// What became of each try of a call, for tools that show it: a clone in the extensions of a request keeps what is then
/// read here. Calls without one pay nothing for it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Tried>>>);

/// One try that has ended.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Who was asked.
    pub endpoint: EndpointTarget,
    /// From its decision to the head of its answer, or to its failure.
    pub took: Duration,
    /// The answer's status, or what went wrong.
    pub outcome: Result<StatusCode, String>,
}

impl Trace {
    /// One that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the tries seen so far, in their order.
    pub fn take(&self) -> Vec<Tried> {
        mem::take(&mut self.tries())
    }

    pub(crate) fn note(&self, tried: Tried) {
        self.tries().push(tried);
    }

    fn tries(&self) -> MutexGuard<'_, Vec<Tried>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
