//! The decision about one call, with its reasons.
//!
//! `ServiceHandle::explain` explains decisions from the state of the running program (its snapshot, subset and counts),
//! for an admin page or a log. `fairmesh explain` explains them for a hypothetical caller, from records that it has
//! just read. Both use the same [`CallExplanation`].

use std::{fmt, sync::Arc};

use fairmesh_model::{BalancingPolicy, ServiceName};
use fairmesh_router::{EndpointTarget, Explanation, Headers, PickParams, RequestView, ServiceTable};

use super::freshness::Freshness;
use crate::fault::FaultKind;

/// One call's decision with its reasons, and the data on which it is based.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallExplanation {
    /// Decisions in order: the called service's, then that of the service to which its route sends the call, if it is
    /// another one.
    pub decisions: Vec<Decision>,
    /// The chosen endpoint; `None` if there is none. The last decision then explains why.
    pub endpoint: Option<Arc<EndpointTarget>>,
    /// Age and source of the records; `None` if they were read for this report.
    pub freshness: Option<Freshness>,
}

/// The call to explain.
#[derive(Debug)]
pub struct Question<'a, H: Headers + ?Sized> {
    /// The request as the input of route conditions.
    pub request: RequestView<'a, H>,
    /// The parameters of the pick.
    pub ask: PickParams<'a>,
    /// The current time, in nanoseconds of the clock of the snapshot's statistics.
    pub now: u64,
    /// Random seed. Another seed may give another endpoint.
    pub seed: u64,
    /// Backends without endpoints, in routes that [redistribute](ServiceTable::redistributed_backends) their calls.
    pub empty: &'a [ServiceName],
}

/// The decision of one service's snapshot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// The service whose records decided.
    pub service: ServiceName,
    /// The reasons for the decision.
    pub explanation: Explanation,
    /// RIB revision of the snapshot; 0 if it came from disk.
    pub revision: u64,
    /// Version of the shard map; 0 without one.
    pub map_version: u64,
    /// The balancing policy that chooses among the remaining endpoints.
    pub policy: BalancingPolicy,
}

impl CallExplanation {
    /// The service to which a route sends the call; its snapshot must decide next.
    pub fn next_service(&self) -> Option<&ServiceName> {
        let last = &self.decisions.last()?.explanation;
        (last.picked.is_none() && last.direct_response.is_none()).then_some(&last.target)
    }
}

/// Adds the decision of a snapshot. The called service comes first. If its route
/// [sends](CallExplanation::next_service) the call to another service, that service's decision follows.
pub fn explain<H: Headers + ?Sized>(
    report: &mut CallExplanation,
    upstream: &ServiceTable,
    revision: u64,
    question: &Question<'_, H>,
) {
    let Question { request, ask, now, seed, empty } = question;
    let explanation = match report.decisions.is_empty() {
        true => upstream.explain_past_empty(request, ask, (*now, *seed), empty),
        // The key that the called service's policy read from the request is kept, and so are the role and class set by
        // its route.
        false => {
            let Decision { explanation: Explanation { key, role, class, .. }, service, .. } =
                &report.decisions[0];
            let (role, class, routed_from) = (role.as_ref(), class.as_ref(), Some(service));
            upstream.explain_pick(&PickParams { key: *key, role, class, routed_from, ..*ask }, *now, *seed)
        }
    };
    if let Some(Ok(picked)) = &explanation.picked {
        report.endpoint = Some(Arc::clone(upstream.target(picked.index)));
    }
    let map_version = upstream.shards().map_or(0, |shards| shards.version());
    let policy = upstream.policy().balancing.policy;
    let service = upstream.name().clone();
    report.decisions.push(Decision { service, explanation, revision, map_version, policy });
}

impl fmt::Display for CallExplanation {
    /// Writes one line per step, then the endpoint or the failure, and the data on which the decision is based.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.decisions.iter().flat_map(|decision| &decision.explanation.steps);
        for step in steps {
            writeln!(f, "{:<8} {}", step.title, step.detail)?;
        }
        if let Some(Decision { explanation, .. }) = self.decisions.last() {
            match (self.endpoint.as_deref(), &explanation.picked) {
                (Some(EndpointTarget { instance, address, location, .. }), _) => {
                    let (service, region) = (&explanation.target, &location.region);
                    writeln!(f, "{:<8} {service} {instance} at {address} in {region}", "goes to")?;
                }
                (None, None) if explanation.direct_response.is_some() => {
                    writeln!(f, "{:<8} without a server", "responds")?;
                }
                (None, Some(Err(why))) => {
                    writeln!(f, "{:<8} {why} ({})", "fails", FaultKind::from(&**why).label())?;
                }
                (None, _) => writeln!(f, "{:<8} {} is not known", "fails", explanation.target)?,
            }
        }
        for Decision { service: of, revision, map_version, policy, .. } in &self.decisions {
            let map = if *map_version == 0 { String::new() } else { format!(", map version {map_version}") };
            let policy = policy.as_str();
            writeln!(f, "{:<8} revision {revision} of {of}{map}, balanced by {policy}", "based on")?;
        }
        self.freshness.iter().try_for_each(|freshness| writeln!(f, "{:<8} {freshness}", ""))
    }
}
