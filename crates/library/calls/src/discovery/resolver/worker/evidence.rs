//! Regions that verdicts speak against: the caller's own calls tell whether that is so.

use std::time::Duration;

use super::Worker;
use crate::discovery::endpoint_transport::EndpointTransport;

/// How often services with contested regions are judged anew: a checker that is wrong is noticed this late.
pub(super) const EVIDENCE_INTERVAL: Duration = Duration::from_secs(1);

impl<T: EndpointTransport> Worker<T> {
    /// Has the services compiled again whose verdicts the caller's own calls confirm or refute by now.
    pub(super) fn judge_contested(&mut self) {
        let (services, topology) = (&self.services, &self.topology);
        self.contested.retain(|name| services.get(name).is_some_and(|service| service.is_contested()));
        let outdated = |name: &&_| services.get(*name).is_some_and(|one| one.is_evidence_outdated(topology));
        let outdated: Vec<_> = self.contested.iter().filter(outdated).cloned().collect();
        self.stale.extend(outdated);
    }
}
