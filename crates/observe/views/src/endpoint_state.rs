//! The state of endpoints as callers see it: the registered state, combined with the verdicts of health checks.
//!
//! Outlier ejections are not included: each caller ejects endpoints by the outcomes of its own calls, and does not
//! report this. `fairmesh proxy endpoints` shows the ejections of a proxy.

use std::collections::{BTreeMap, HashSet};

use fairmesh_model::{
    ALL_CALLS, Endpoint, EndpointState, InstanceId, Region, ServingPower, Standing, Verdict, VerdictEffect,
};
use serde_json::{Value, json};

use crate::view::{ServiceView, View, instant};

/// State of one endpoint, for display.
#[derive(Clone, Debug)]
pub struct DisplayedState<'a> {
    /// `starting`, `serving`, `draining` or `lost`. For an endpoint registered as serving, also `refused` or
    /// `unhealthy`.
    pub state: &'static str,
    /// Whether callers avoid the endpoint because it is unhealthy or lost. They do not avoid lost endpoints where most
    /// leases of a region have expired at once, and no other region can carry the calls.
    pub is_avoided: bool,
    verdict: Option<(&'a Verdict, &'static str)>,
    endpoint: &'a Endpoint,
}

/// Text that explains why callers refuse an endpoint.
pub const REFUSED: &str =
    "plaintext endpoint in a strict mesh: callers use it only where the policy says 'mtls: permissive'";

/// Returns the states of a service's endpoints, in the same order.
pub fn states<'a>(one: &'a ServiceView, view: &View) -> Vec<DisplayedState<'a>> {
    let hosts = &view.hosts.value;
    let refused: HashSet<&InstanceId> = match view.has_trust_domain {
        true => one.refused().map(|endpoint| &endpoint.instance).collect(),
        false => HashSet::new(),
    };
    let endpoints: Vec<&Endpoint> = one.endpoints.iter().map(|endpoint| &endpoint.value).collect();
    let judged = one.health.judge_for_all(&endpoints, hosts);
    let state = |(endpoint, force): (&'a Endpoint, VerdictEffect)| {
        let panic = judged.standing(&endpoint.location.region) == Some(Standing::Panic);
        let verdict = one.health.on(endpoint).map(|verdict| (verdict, effect(verdict, force, panic)));
        let unhealthy = verdict.is_some_and(|(verdict, _)| !verdict.healthy && !verdict.stale);
        let state = match endpoint.state {
            EndpointState::Serving if refused.contains(&endpoint.instance) => "refused",
            EndpointState::Serving if unhealthy => "unhealthy",
            state => state.as_str(),
        };
        let is_lost = endpoint.state == EndpointState::Lost && force != VerdictEffect::None;
        DisplayedState { state, is_avoided: state == "unhealthy" || is_lost, verdict, endpoint }
    };
    endpoints.into_iter().zip(judged.effects.iter().copied()).map(state).collect()
}

/// Returns the regions whose endpoints cannot carry all calls that a service has there, with the share that they
/// carry in thousandths, by the function of routers. Callers send the rest elsewhere; `explain` says where.
pub fn partly_carried(one: &ServiceView, view: &View) -> BTreeMap<Region, u32> {
    let hosts = &view.hosts.value;
    let endpoints: Vec<&Endpoint> = one.endpoints.iter().map(|endpoint| &endpoint.value).collect();
    let judged = one.health.judge_for_all(&endpoints, hosts);
    let mut powers = BTreeMap::<&Region, ServingPower>::new();
    for (endpoint, effect) in endpoints.into_iter().zip(judged.effects) {
        if endpoint.state == EndpointState::Serving || endpoint.is_expired() {
            let (power, here) =
                (u64::from(hosts.power(endpoint)), powers.entry(&endpoint.location.region).or_default());
            here.all += power;
            here.able += if effect == VerdictEffect::None { power } else { 0 };
        }
    }
    let carried = powers.into_iter().map(|(region, power)| (region.clone(), power.carries()));
    carried.filter(|(_, carries)| *carries < ALL_CALLS).collect()
}

impl DisplayedState<'_> {
    /// Returns the reason for the state: who found the endpoint unhealthy, drained it or lost it, since when and why,
    /// or why callers refuse it. Empty for a serving endpoint.
    pub fn reason(&self) -> String {
        match self.verdict {
            Some((verdict, effect)) if self.state == "unhealthy" => format!(
                "by health checks of {} since {}: {}; to callers: {effect}",
                self.endpoint.location.region,
                instant(verdict.since_ms),
                verdict.cause
            ),
            _ if self.state == "refused" => REFUSED.into(),
            _ => self.cause(),
        }
    }

    fn cause(&self) -> String {
        let drained =
            self.endpoint.drained().map(|(at_ms, by)| format!("drained by {by} since {}", instant(at_ms)));
        match (self.endpoint.state, drained) {
            (EndpointState::Lost, Some(drained)) => format!("{}; {drained}", lost_words(self.endpoint)),
            (EndpointState::Lost, None) => lost_words(self.endpoint),
            (_, Some(drained)) => format!("{drained}, until 'fairmesh undrain'"),
            (EndpointState::Draining, None) => "drained by its own process or source".into(),
            _ => String::new(),
        }
    }

    /// Returns the last verdict of health checks as JSON, if there is any.
    pub fn health(&self) -> Value {
        self.verdict.map_or(Value::Null, |(verdict, effect)| {
            json!({
                "healthy": verdict.healthy,
                "by": format!("health checks of {}", self.endpoint.location.region),
                "since": instant(verdict.since_ms),
                "cause": verdict.cause,
                "stale": verdict.stale,
                "effect": effect,
            })
        })
    }
}

/// Describes since when and why an endpoint is lost.
pub fn lost_words(endpoint: &Endpoint) -> String {
    match lost_cause(endpoint) {
        Some((at_ms, cause)) => format!("lost since {}: {cause}", instant(at_ms)),
        None => "lost".into(),
    }
}

/// Returns when an endpoint was lost, in milliseconds since 1970, and why. `None` if its record does not say so.
pub fn lost_cause(endpoint: &Endpoint) -> Option<(u64, &'static str)> {
    let (at_ms, why) = endpoint.lost()?;
    let cause = match why {
        Endpoint::REPORTED => "its program does not respond to its server's own checks",
        _ => "its lease was not renewed",
    };
    Some((at_ms, cause))
}

/// Describes the effect of a verdict on callers.
pub fn effect(verdict: &Verdict, force: VerdictEffect, panic: bool) -> &'static str {
    match force {
        VerdictEffect::Exclusion => "last resort",
        VerdictEffect::Penalty => "after others",
        VerdictEffect::None if panic && verdict.effect() != VerdictEffect::None => "none: panic",
        VerdictEffect::None if verdict.stale => "none: stale",
        VerdictEffect::None => "none",
    }
}
