//! Regions that health verdicts are against: the caller's own calls show whether the verdicts are right.

use std::time::Duration;

use super::Worker;
use crate::discovery::endpoint_transport::EndpointTransport;

/// Interval at which services with contested regions are judged anew. A faulty checker is noticed with this delay.
pub(super) const EVIDENCE_INTERVAL: Duration = Duration::from_secs(1);

impl<T: EndpointTransport> Worker<T> {
    /// Recompiles services whose verdicts the caller's own calls now confirm or refute.
    pub(super) fn judge_contested(&mut self) {
        let (services, topology) = (&self.services, &self.topology);
        self.contested.retain(|name| services.get(name).is_some_and(|service| service.is_contested()));
        let outdated = |name: &&_| services.get(*name).is_some_and(|one| one.is_evidence_outdated(topology));
        let outdated: Vec<_> = self.contested.iter().filter(outdated).cloned().collect();
        self.stale.extend(outdated);
    }
}
