use fairmesh_model::{Capacities, EndpointState, Region, Verdict};

use super::{Explanation, Upstream};
use crate::{
    Ask, EndpointTarget, Headers, Reach, RequestView,
    treatment::describe_limit,
    witness::{Notes, Witness},
};

/// How many unhealthy endpoints are named.
const NAMED: usize = 5;

pub(super) fn explain<H: Headers + ?Sized>(
    upstream: &Upstream,
    request: &RequestView<'_, H>,
    ask: &Ask<'_>,
    now: u64,
    seed: u64,
) -> Explanation {
    let mut explanation = explain_route(upstream, request, ask, now, seed);
    if explanation.instead.is_none() && explanation.target == upstream.name {
        let ask = Ask { key: explanation.key, ..*ask };
        let pick = explain_pick(upstream, &ask, now, seed);
        explanation.steps.extend(pick.steps);
        explanation.picked = pick.picked;
    }
    explanation
}

pub(super) fn explain_route<H: Headers + ?Sized>(
    upstream: &Upstream,
    request: &RequestView<'_, H>,
    ask: &Ask<'_>,
    now: u64,
    seed: u64,
) -> Explanation {
    let mut notes = Notes { upstream, now, steps: Vec::new() };
    let routed = upstream.decide_route(request, seed, &mut notes);
    let (target, treatment) = (routed.target.clone(), routed.treatment);
    if let Some(bucket) = upstream.bucket.as_deref() {
        notes.note("action", || describe_limit("the service", bucket, now));
    }
    for words in treatment.iter().flat_map(|treatment| treatment.describe(request, now, seed)) {
        notes.note("action", || words);
    }
    let instead = treatment.and_then(|treatment| treatment.instead(request, seed));
    let key = ask.key.or_else(|| upstream.key(request));
    if ask.key.is_none()
        && let Some(key) = key
    {
        notes.note("key", || format!("the policy reads key {key} in the request"));
    }
    Explanation { steps: notes.steps, target, key, instead, picked: None }
}

pub(super) fn explain_pick(upstream: &Upstream, ask: &Ask<'_>, now: u64, seed: u64) -> Explanation {
    let mut notes = Notes { upstream, now, steps: Vec::new() };
    let picked = upstream.decide(ask, now, seed, &mut notes);
    let target = upstream.name.clone();
    Explanation { steps: notes.steps, target, key: ask.key, instead: None, picked: Some(picked) }
}

impl Upstream {
    /// Writes down how far each region with an endpoint is, and how much of the service it has.
    #[inline]
    pub(super) fn note_regions<W: Witness>(&self, witness: &mut W) {
        witness.note("region", || {
            let (home, capacities) = (self.horizon.home(), self.capacities());
            let describe = |(region, reach)| {
                format!("{}, {}", describe(region, reach, home), share(region, &capacities))
            };
            let regions: Vec<_> = self.horizon.regions().map(describe).collect();
            if regions.is_empty() { "none has an endpoint".to_owned() } else { regions.join("; ") }
        });
        self.note_health(witness);
    }

    /// Writes down which ring is looked at.
    #[inline]
    pub(super) fn note_rank<W: Witness>(&self, rank: u32, witness: &mut W) {
        witness.note("region", || format!("candidates from {}", self.horizon.describe(rank)));
    }
}

impl Upstream {
    /// Writes down which endpoints active checks found unhealthy, and whether that is ignored.
    #[inline]
    fn note_health<W: Witness>(&self, witness: &mut W) {
        if !W::LOOKS {
            return;
        }
        let unhealthy =
            || self.candidates().filter_map(|c| Some((c.target, c.verdict.filter(|v| !v.healthy)?)));
        if unhealthy().next().is_some() {
            witness.note("health", || {
                let named =
                    unhealthy().take(NAMED).map(|(target, verdict)| describe_verdict(target, verdict));
                let named = named.collect::<Vec<_>>().join("; ");
                match unhealthy().count().saturating_sub(NAMED) {
                    0 => named,
                    more => format!("{named}; and {more} more"),
                }
            });
        }
        for region in &self.panics {
            witness.note("health", || {
                format!("panic: more than half of the power that serves in {region} was found unhealthy, so that this is ignored there")
            });
        }
    }

    /// What the endpoints that serve can do where.
    fn capacities(&self) -> Capacities {
        let mut capacities = Capacities::default();
        for target in self.targets.iter().flatten().filter(|target| target.state == EndpointState::Serving) {
            capacities.add(&target.location, target.power);
        }
        capacities
    }
}

/// `cart-1 is unhealthy (75.0 % sure): status 503`.
fn describe_verdict(target: &EndpointTarget, verdict: &Verdict) -> String {
    let Verdict { confidence, cause, stale, .. } = verdict;
    let stale = if *stale { ", long ago" } else { "" };
    format!(
        "{} is unhealthy ({}.{} % sure{stale}): {cause}",
        target.instance,
        confidence / 10,
        confidence % 10
    )
}

/// `62.5 % of the capacity`.
fn share(region: &Region, capacities: &Capacities) -> String {
    let here = capacities.regions.get(region).copied().unwrap_or_default();
    let share = here.thousandths_of(capacities.total);
    format!("{}.{} % of the capacity", share / 10, share % 10)
}

fn describe(region: &Region, reach: &Reach, home: &Region) -> String {
    let distance = match reach.round_trip {
        _ if region == home => "here (0 ms)".to_owned(),
        Some(rtt) => format!("{rtt:?} away"),
        None => "at an unknown distance".to_owned(),
    };
    let ring = match reach.ring {
        Some(ring) => format!("ring {ring}"),
        None => "not allowed by the policy".to_owned(),
    };
    let draining = if reach.draining { ", draining, so after all others" } else { "" };
    format!("{region} is {distance}: {ring}{draining}")
}
