use std::sync::Arc;

use fairmesh_balancer::{LoadReport, Outcome, Slots};

use super::Upstream;
use crate::EndpointTarget;

/// The endpoint of a try that lasts, without the snapshot that chose it: a stream that is open for hours would else keep
/// all that was known of the service when it began.
///
/// The index stays with its instance because the try counts there until [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct Held {
    slots: Arc<Slots>,
    target: Arc<EndpointTarget>,
    index: u32,
}

impl Upstream {
    /// What is left to keep of this snapshot for a try that was [begun](Self::begin) at `index`.
    ///
    /// # Panics
    /// When this snapshot knows no endpoint of that index.
    pub fn hold(&self, index: u32) -> Held {
        Held { slots: Arc::clone(&self.slots), target: Arc::clone(self.target(index)), index }
    }
}

impl Held {
    /// The endpoint.
    pub fn target(&self) -> &Arc<EndpointTarget> {
        &self.target
    }

    /// As [`Upstream::report`].
    #[cold]
    pub fn report(&self, load: LoadReport, now: u64) {
        self.slots.report(self.index, load, now);
    }

    /// As [`Upstream::finish`]. Cold, since few tries last, and the others' way is to be kept short.
    #[cold]
    pub fn finish(&self, outcome: Outcome, now: u64) {
        self.slots.finish(self.index, outcome, now);
    }
}
