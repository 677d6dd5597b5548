use fairmesh_model::{
    Capacities, DistanceSource, EndpointState, InstanceId, Region, ServiceName, Standing, Timeouts, Verdict,
};

use super::{Explanation, ServiceTable};
use crate::{
    EndpointTarget, Headers, PickParams, RegionDistance, RequestView,
    decision_trace::{DecisionTracer, StepRecorder},
    locality::RegionRanks,
    route_actions::describe_limit,
};

/// Maximum number of unhealthy endpoints that are listed.
const MAX_LISTED: usize = 5;

pub(super) fn explain<H: Headers + ?Sized>(
    table: &ServiceTable,
    request: &RequestView<'_, H>,
    params: &PickParams<'_>,
    (now, seed): (u64, u64),
    empty: &[ServiceName],
) -> Explanation {
    let mut explanation = explain_route(table, request, params, (now, seed), empty);
    if explanation.direct_response.is_none() && explanation.target == table.name {
        let (class, role) = (explanation.class.clone(), explanation.role.clone());
        let params =
            PickParams { key: explanation.key, role: role.as_ref(), class: class.as_ref(), ..*params };
        let pick = explain_pick(table, &params, now, seed);
        explanation.steps.extend(pick.steps);
        explanation.picked = pick.picked;
    }
    explanation
}

pub(super) fn explain_route<H: Headers + ?Sized>(
    table: &ServiceTable,
    request: &RequestView<'_, H>,
    params: &PickParams<'_>,
    (now, seed): (u64, u64),
    empty: &[ServiceName],
) -> Explanation {
    let mut recorder = StepRecorder { table, now, steps: Vec::new() };
    let routed = table.decide_route(request, seed, |name| empty.contains(name), &mut recorder);
    let (target, class, actions) = (routed.target.clone(), routed.class.cloned(), routed.actions);
    if let Some(timeouts) = describe_timeouts(&routed.timeouts) {
        recorder.record_step("route", || timeouts);
    }
    if let Some(bucket) = table.bucket.as_deref() {
        recorder.record_step("action", || describe_limit("the service", bucket, now));
    }
    for words in actions.iter().flat_map(|actions| actions.describe(request, now, seed)) {
        recorder.record_step("action", || words);
    }
    let direct_response = actions.and_then(|actions| actions.direct_response(request, seed));
    let key = params.key.or_else(|| table.key(request));
    if params.key.is_none()
        && let Some(key) = key
    {
        recorder.record_step("key", || format!("the policy reads key {key} from the request"));
    }
    let role = params.role.or_else(|| actions.and_then(|actions| actions.role())).cloned();
    Explanation { steps: recorder.steps, target, key, role, class, direct_response, picked: None }
}

pub(super) fn explain_pick(
    table: &ServiceTable,
    params: &PickParams<'_>,
    now: u64,
    seed: u64,
) -> Explanation {
    let mut recorder = StepRecorder { table, now, steps: Vec::new() };
    let picked = table.decide(params, now, seed, &mut recorder);
    let target = table.name.clone();
    Explanation {
        steps: recorder.steps,
        target,
        key: params.key,
        role: params.role.cloned(),
        class: params.class.cloned(),
        direct_response: None,
        picked: Some(picked),
    }
}

impl ServiceTable {
    /// Records the round-trip time to each region with an endpoint, and the region's share of the service's capacity.
    #[inline]
    pub(super) fn trace_regions<W: DecisionTracer>(&self, tracer: &mut W) {
        tracer.record_step("region", || {
            let capacities = self.capacities();
            let describe = |(region, distance)| {
                format!("{}, {}", describe(region, distance, &self.locality), share(region, &capacities))
            };
            let regions: Vec<_> = self.locality.regions().map(describe).collect();
            if regions.is_empty() { "no region has an endpoint".to_owned() } else { regions.join("; ") }
        });
        self.trace_refused(tracer);
        self.trace_health(tracer);
    }

    /// Records the refused endpoints.
    #[inline]
    fn trace_refused<W: DecisionTracer>(&self, tracer: &mut W) {
        if !W::ENABLED || self.refused.is_empty() {
            return;
        }
        tracer.record_step("security", || {
            let named: Vec<_> = self.refused.iter().take(MAX_LISTED).map(InstanceId::as_str).collect();
            let more = match self.refused.len().saturating_sub(MAX_LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("not used: plaintext endpoint in a strict mesh: {}{more}", named.join(", "))
        });
    }

    /// Records the ring that is searched.
    #[inline]
    pub(super) fn trace_rank<W: DecisionTracer>(&self, rank: u32, tracer: &mut W) {
        tracer.record_step("region", || format!("candidates from {}", self.locality.describe(rank)));
    }
}

impl ServiceTable {
    /// Records the endpoints that active health checks found unhealthy, and whether the verdicts are ignored.
    #[inline]
    fn trace_health<W: DecisionTracer>(&self, tracer: &mut W) {
        if !W::ENABLED {
            return;
        }
        let unhealthy =
            || self.candidates().filter_map(|c| Some((c.target, c.verdict.filter(|v| !v.healthy)?)));
        if unhealthy().next().is_some() {
            tracer.record_step("health", || {
                let named =
                    unhealthy().take(MAX_LISTED).map(|(target, verdict)| describe_verdict(target, verdict));
                let named = named.collect::<Vec<_>>().join("; ");
                match unhealthy().count().saturating_sub(MAX_LISTED) {
                    0 => named,
                    more => format!("{named}; and {more} more"),
                }
            });
        }
        for (region, standing) in &self.contested {
            tracer.record_step("health", || describe_standing(region, *standing));
        }
    }

    /// Capacity of serving endpoints, by location.
    fn capacities(&self) -> Capacities {
        let mut capacities = Capacities::default();
        for target in self.targets.iter().flatten().filter(|target| target.state == EndpointState::Serving) {
            capacities.add(&target.location, target.power);
        }
        capacities
    }
}

/// Describes timeouts: `timeouts: 5s for the whole call, 1s without progress`; `None` if all have the default values of
/// the call.
fn describe_timeouts(timeouts: &Timeouts) -> Option<String> {
    let Timeouts { total, response_header, idle } = timeouts;
    let each = [
        total.map(|time| format!("{time:?} for the whole call")),
        response_header.map(|time| format!("{time:?} until the response headers")),
        idle.map(|time| format!("{time:?} without progress")),
    ];
    let each: Vec<_> = each.into_iter().flatten().collect();
    (!each.is_empty()).then(|| format!("timeouts: {}", each.join(", ")))
}

/// Describes a verdict: `cart-1 is unhealthy (75.0 % sure): status 503`.
fn describe_verdict(target: &EndpointTarget, verdict: &Verdict) -> String {
    let Verdict { confidence, cause, stale, .. } = verdict;
    let stale = if *stale { ", stale" } else { "" };
    format!(
        "{} is unhealthy ({}.{} % certain{stale}): {cause}",
        target.instance,
        confidence / 10,
        confidence % 10
    )
}

fn describe_standing(region: &Region, standing: Standing) -> String {
    let doubted = format!("more than half of the capacity in {region} is unhealthy or lost");
    match standing {
        Standing::Believed => format!("{doubted}, and other regions can carry its calls"),
        Standing::Refuted => {
            format!("{doubted}, but this caller's own calls succeed there, so verdicts are ignored there")
        }
        Standing::Panic => {
            format!(
                "panic: {doubted}, and no other region can carry its calls, so verdicts are ignored there"
            )
        }
    }
}

/// Describes a share: `62.5 % of the capacity`.
fn share(region: &Region, capacities: &Capacities) -> String {
    let here = capacities.regions.get(region).copied().unwrap_or_default();
    let share = here.thousandths_of(capacities.total);
    format!("{}.{} % of the capacity", share / 10, share % 10)
}

/// Describes the origin of a distance between regions.
fn origin(source: Option<DistanceSource>) -> &'static str {
    match source {
        Some(DistanceSource::Declared) => " (declared)",
        Some(DistanceSource::Measured) => " (measured)",
        Some(DistanceSource::MeasuredReverse) => " (measured from there)",
        None => "",
    }
}

fn describe(region: &Region, distance: &RegionDistance, locality: &RegionRanks) -> String {
    let rtt_text = match distance.round_trip {
        _ if region == locality.home() => "here (0 ms)".to_owned(),
        Some(rtt) => format!("{rtt:?} away{}", origin(distance.source)),
        None => "at an unknown distance".to_owned(),
    };
    let ring = match distance.ring {
        Some(ring) => format!("ring {ring}"),
        None => "not allowed by the policy".to_owned(),
    };
    let draining = match region == locality.home() {
        true if locality.is_home_draining() => ", draining, which moves callers of other regions only",
        _ if distance.draining => ", draining, so used last",
        _ => "",
    };
    format!("{region} is {rtt_text}: {ring}{draining}")
}
