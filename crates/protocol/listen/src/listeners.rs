use std::sync::{Arc, Mutex, PoisonError};

use crate::{Acceptor, Limits, Memory, listener_table::ListenerInfo};

/// The listeners of one process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    memory: Memory,
    acceptors: Arc<Mutex<Vec<Acceptor>>>,
}

impl Listeners {
    /// Creates an acceptor for the listeners of one row of the [table](crate::listener_table).
    pub fn acceptor(&self, listener: &ListenerInfo, limits: Limits) -> Acceptor {
        let acceptor = Acceptor::new(listener.name, limits, self.memory.clone());
        // No code that holds the lock panics.
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner).push(acceptor.clone());
        acceptor
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn all(&self) -> (Vec<Acceptor>, &Memory) {
        (self.acceptors.lock().unwrap_or_else(PoisonError::into_inner).clone(), &self.memory)
    }
}
