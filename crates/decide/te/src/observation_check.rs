use thiserror::Error;

use crate::{
    observation::{CallerReport, Observation, RegionObservation, ServerReport},
    planner_state::PlannerState,
    ring_matrix::RingMatrix,
    rings_policy::{MAX_REGIONS, RingsPolicy},
};

/// Reports older than this are not planned from.
pub(crate) const MAX_AGE_MS: u64 = 10_000;
/// Callers of a region without servers are taken for gone with them once their last report is older than this. Reports are
/// seldom older than 3 s, and a lease of 10 s that is renewed every third of it expires 6.7 s after the region is lost at the
/// earliest: the servers are not missed before their callers are, whose calls would otherwise take the room of others.
pub(crate) const GONE_AGE_MS: u64 = 6_500;
/// Utilisation above this is not one: the ORCA report of a server that is full says 1. Signals without an upper bound, such as
/// queues, are cut off at it.
pub const MAX_LOAD: f64 = 1.5;
/// Work per call that differs by this factor from before and from the other regions is a fault of a report.
const MAX_WORK_RATIO: f64 = 4.0;
/// Below this utilisation the load of a region is that of everything but calls: background work, or less than a CPU clock
/// shows. It is no measure of work per call.
pub(crate) const COMPARED_LOAD: f64 = 0.1;
/// From this utilisation on, the load says nothing about further calls.
pub(crate) const FULL: f64 = 0.95;
/// Callers may claim this multiple of what servers got: their intervals end at different times.
const MAX_DISAGREEMENT: f64 = 2.0;
/// Rates below this are too small to compare, in calls per second.
const MIN_RATE: f64 = 5.0;

/// Why a planner keeps the tables in force. Regions are positions.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum Refusal {
    /// The policy, the distances and the observation are of different sizes, or the policy is not valid.
    #[error("the policy and the observation do not fit each other")]
    Mismatch,
    /// A region has serving endpoints and none of their reports.
    #[error("servers of region {0} have not reported")]
    ServersMissing(usize),
    /// The last report of a region's servers is too old, or of the future.
    #[error("the report of the servers of region {0} is stale")]
    ServersStale(usize),
    /// There is no report of a region's callers.
    #[error("callers of region {0} have not reported")]
    CallersMissing(usize),
    /// The last report of a region's callers is too old, or of the future.
    #[error("the report of the callers of region {0} is stale")]
    CallersStale(usize),
    /// A number is not finite, negative, or beyond what is possible.
    #[error("a number of region {0} is impossible")]
    Absurd(usize),
    /// A region serves calls that must load it and claims no load, or is loaded without calls.
    #[error("load and calls of region {0} contradict each other")]
    Contradiction(usize),
    /// The work per call differs by a multiple from that before and that of other regions.
    #[error("the load of region {0} does not fit its calls")]
    WorkPerCall(usize),
    /// Callers say that they sent a region much more than its servers got.
    #[error("callers say that they send region {0} more calls than its servers get")]
    Disagreement(usize),
    /// No region serves.
    #[error("no region has serving endpoints")]
    NoCapacity,
}

impl Refusal {
    /// The reason in one word, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::ServersMissing(_) => "servers_missing",
            Self::ServersStale(_) => "servers_stale",
            Self::CallersMissing(_) => "callers_missing",
            Self::CallersStale(_) => "callers_stale",
            Self::Absurd(_) => "absurd",
            Self::Contradiction(_) => "contradiction",
            Self::WorkPerCall(_) => "work_per_call",
            Self::Disagreement(_) => "disagreement",
            Self::NoCapacity => "no_capacity",
        }
    }

    /// The region whose reports are at fault.
    pub fn region(&self) -> Option<usize> {
        match self {
            Self::Mismatch | Self::NoCapacity => None,
            Self::ServersMissing(region)
            | Self::ServersStale(region)
            | Self::CallersMissing(region)
            | Self::CallersStale(region)
            | Self::Absurd(region)
            | Self::Contradiction(region)
            | Self::WorkPerCall(region)
            | Self::Disagreement(region) => Some(*region),
        }
    }
}

/// Checks that a plan can be made.
pub(crate) fn check(
    policy: &RingsPolicy,
    rings: &RingMatrix,
    observation: &Observation,
    state: &PlannerState,
) -> Result<(), Refusal> {
    let regions = observation.regions.len();
    let fits = rings.regions() == regions && state.fits(regions, policy.classes);
    if policy.validate().is_err() || !fits || regions > MAX_REGIONS {
        return Err(Refusal::Mismatch);
    }
    for (at, region) in observation.regions.iter().enumerate() {
        check_region(policy, observation, (at, region), state)?;
    }
    if observation.regions.iter().all(|region| region.power == 0.0) {
        return Err(Refusal::NoCapacity);
    }
    for (at, region) in observation.regions.iter().enumerate().filter(|(_, region)| region.power > 0.0) {
        let Some(servers) = region.servers else { continue };
        check_agreement(observation, at, &servers)?;
        check_work(observation, at, state)?;
    }
    Ok(())
}

fn check_region(
    policy: &RingsPolicy,
    observation: &Observation,
    (at, region): (usize, &RegionObservation),
    state: &PlannerState,
) -> Result<(), Refusal> {
    let is_stale = |at_ms: u64| at_ms > observation.now_ms || observation.now_ms - at_ms > MAX_AGE_MS;
    if !is_rate(region.power) || !(0.0..=1.0).contains(&region.keep) {
        return Err(Refusal::Absurd(at));
    }
    // A region without endpoints has no servers to report, and its callers may be gone with them: the demand that they
    // had last is planned for.
    let is_gone = region.power == 0.0 && (state.has_demand(at) || region.callers.is_some());
    match &region.callers {
        Some(callers) => check_callers(policy, observation, at, callers)?,
        None if is_gone => {}
        None => return Err(Refusal::CallersMissing(at)),
    }
    if !is_gone && region.callers.as_ref().is_some_and(|callers| is_stale(callers.at_ms)) {
        return Err(Refusal::CallersStale(at));
    }
    if region.power == 0.0 {
        return Ok(());
    }
    let servers = region.servers.ok_or(Refusal::ServersMissing(at))?;
    if is_stale(servers.at_ms) {
        return Err(Refusal::ServersStale(at));
    }
    let is_possible =
        (0.0..=MAX_LOAD).contains(&servers.load) && is_rate(servers.received) && is_rate(servers.answered);
    let is_possible = is_possible && servers.failing.is_finite() && servers.response_time.is_finite();
    let is_load = |load: f64| (0.0..=MAX_LOAD).contains(&load);
    let is_possible = is_possible && servers.spread.is_none_or(|of| is_load(of.mean) && is_load(of.p90));
    if !is_possible {
        return Err(Refusal::Absurd(at));
    }
    // Background work of an idle region is possible; a full region without any call is not.
    match servers.received < MIN_RATE / 10.0 && servers.load > 0.5 {
        true => Err(Refusal::Contradiction(at)),
        false => Ok(()),
    }
}

fn check_callers(
    policy: &RingsPolicy,
    observation: &Observation,
    at: usize,
    callers: &CallerReport,
) -> Result<(), Refusal> {
    if callers.offered.len() != policy.classes || callers.sent.len() != observation.regions.len() {
        return Err(Refusal::Mismatch);
    }
    let are_rates = callers.offered.iter().chain(&callers.sent).all(|rate| is_rate(*rate));
    match are_rates && (0.0..=1.0).contains(&callers.pinned) {
        true => Ok(()),
        false => Err(Refusal::Absurd(at)),
    }
}

/// A number of calls or of power: finite and not negative, with a bound that keeps sums finite.
fn is_rate(value: f64) -> bool {
    (0.0..=1e12).contains(&value)
}

/// Callers cannot send more than servers get. Servers may get more: not all callers report.
fn check_agreement(observation: &Observation, at: usize, servers: &ServerReport) -> Result<(), Refusal> {
    match observation.sent_to(at) > servers.received * MAX_DISAGREEMENT + MIN_RATE {
        true => Err(Refusal::Disagreement(at)),
        false => Ok(()),
    }
}

/// A region whose work per call changed by a multiple is believed if the other regions have the same: a release can make
/// all calls cheaper, and does so everywhere. Loads that are low, and that should be, are not compared.
fn check_work(observation: &Observation, at: usize, state: &PlannerState) -> Result<(), Refusal> {
    let region = &observation.regions[at];
    let (Some(servers), Some(work)) = (region.servers, work(region)) else { return Ok(()) };
    let others = (0..observation.regions.len()).filter(|other| *other != at);
    let others: Vec<&RegionObservation> = others.map(|other| &observation.regions[other]).collect();
    let loaded = median_work(others.iter().copied().filter(|other| is_loaded(other)));
    let known: Vec<f64> = state.known_work(at).into_iter().chain(loaded).collect();
    // Quiet regions can confirm a change, and contradict none.
    let confirming = median_work(others.into_iter());
    // A full region gets more calls than it can work on, so they seem cheap.
    let is_full = servers.load >= FULL;
    let is_plausible = |known: f64| {
        let expected = known * servers.received / region.power;
        let is_near = work <= known * MAX_WORK_RATIO && (is_full || known <= work * MAX_WORK_RATIO);
        is_near || servers.load.max(expected) < COMPARED_LOAD
    };
    match known.is_empty() || known.into_iter().chain(confirming).any(is_plausible) {
        true => Ok(()),
        false if servers.load == 0.0 => Err(Refusal::Contradiction(at)),
        false => Err(Refusal::WorkPerCall(at)),
    }
}

fn median_work<'a>(regions: impl Iterator<Item = &'a RegionObservation>) -> Option<f64> {
    let mut works: Vec<f64> = regions.filter_map(work).collect();
    works.sort_by(f64::total_cmp);
    works.get(works.len() / 2).copied()
}

/// Work per call: power that one call per second occupies. `None` where there are too few calls to tell.
pub(crate) fn work(region: &RegionObservation) -> Option<f64> {
    let servers = region.servers?;
    let is_known = region.power > 0.0 && servers.received >= MIN_RATE;
    is_known.then(|| servers.load * region.power / servers.received)
}

/// Whether the load of a region's servers is a measure of its calls.
pub(crate) fn is_loaded(region: &RegionObservation) -> bool {
    region.servers.is_some_and(|servers| servers.load >= COMPARED_LOAD)
}
