//! One service: its endpoints, its policy, and the calls from and to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    CallCounts, CallFault, DefaultAuthorization, Endpoint, EndpointState, RecordKind, Region, ResponseClass,
    ServiceName,
    spec::{Document, Resource},
};
use fairmesh_views::{CallRow, CallSum, ServiceView, StoredRecord, View, states};
use fairmesh_wire::v1;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    call_graph::{Numbers, rows},
    event_delta::Shown,
    page_source::InstanceLoad,
};

/// Kinds of records that are read to show a service.
pub(crate) const KINDS: &[RecordKind] = &[
    RecordKind::Service,
    RecordKind::Policy,
    RecordKind::Endpoint,
    RecordKind::Health,
    RecordKind::Authorization,
];

/// Shows the records of a service.
pub(crate) fn records(name: &ServiceName, view: &View, loads: &[InstanceLoad]) -> Shown {
    let empty = ServiceView::default();
    let one = view.services.get(name).unwrap_or(&empty);
    let service = one.service.as_ref().map(|at| &at.value);
    let policy = one.policy.as_ref().map(|at| Resource::Policy(name.clone(), at.value.clone()));
    let in_force = Resource::Policy(name.clone(), one.effective_policy());
    Shown::head(&json!({
        "name": name.to_string(),
        "declared": service.is_some(),
        "kind": service.map(|service| service.kind),
        "protocol": service.map(|service| service.protocol),
        "policy": policy.map(|policy| Document::from(&policy)),
        "policyRevision": one.policy.as_ref().map(|at| at.revision),
        "authorization": json!(Document::from(&in_force))["authorization"],
        "withoutRules": default_name(view.authorization.unwrap_or_default()),
        "endpoints": endpoints(one, view, loads),
    }))
}

/// Returns the default for services without rules, as named in documents of kind Authorization.
pub(crate) const fn default_name(default: DefaultAuthorization) -> &'static str {
    match default {
        DefaultAuthorization::Allow => "allow",
        DefaultAuthorization::Audit => "audit",
        DefaultAuthorization::Deny => "deny",
    }
}

/// Returns the newest revision among the records by which callers of a service decide.
pub(crate) fn newest_revision(stored: &[StoredRecord]) -> u64 {
    stored.iter().filter(|one| one.key.service().is_some()).map(|one| one.revision).max().unwrap_or_default()
}

/// Returns endpoints, each with two shares of its region's calls: the share that its power entitles it to, and the
/// share that it received. `settled` tells whether both are of the same endpoints.
fn endpoints(one: &ServiceView, view: &View, loads: &[InstanceLoad]) -> Vec<Value> {
    let hosts = &view.hosts.value;
    let mut power: BTreeMap<&Region, u64> = BTreeMap::new();
    for endpoint in one.endpoints.iter().map(|at| &at.value).filter(|endpoint| serves(endpoint)) {
        *power.entry(&endpoint.location.region).or_default() += u64::from(hosts.power(endpoint));
    }
    let load = |endpoint: &Endpoint| loads.iter().find(|load| load.instance == endpoint.instance);
    let unsettled = unsettled_regions(one, loads);
    let mut received: BTreeMap<&Region, u64> = BTreeMap::new();
    for endpoint in one.endpoints.iter().map(|at| &at.value) {
        let requests = load(endpoint).map_or(0, |load| load.requests);
        *received.entry(&endpoint.location.region).or_default() += requests;
    }
    let part = |part: u64, whole: Option<&u64>| {
        whole.filter(|whole| **whole > 0).map(|whole| part as f64 / *whole as f64)
    };
    let states = states(one, view);
    let shown = one.endpoints.iter().zip(&states).map(|(at, state)| {
        let endpoint = &at.value;
        let region = &endpoint.location.region;
        let own = u64::from(hosts.power(endpoint));
        let load = load(endpoint);
        json!({
            "instance": endpoint.instance.to_string(),
            "address": endpoint.address.to_string(),
            "region": region.to_string(),
            "zone": endpoint.location.zone.as_ref().map(ToString::to_string),
            "state": state.state,
            "reason": state.reason(),
            "health": state.health(),
            "mtls": endpoint.mtls,
            "version": endpoint.labels.get("version"),
            "power": own,
            "due": serves(endpoint).then(|| part(own, power.get(region))).flatten(),
            "received": load.filter(|load| load.requests > 0).and_then(|load| part(load.requests, received.get(region))),
            "settled": unsettled.as_ref().is_some_and(|regions| !regions.contains(region)),
            "cores": load.filter(|load| load.covered_ms > 0).map(|load| load.cpu_us as f64 / 1_000.0 / load.covered_ms as f64),
            "revision": at.revision,
        })
    });
    shown.collect()
}

/// Returns regions whose serving endpoints are not those that received the calls of the last minutes; `None` if a
/// removed endpoint received calls, since its region is not known.
fn unsettled_regions<'a>(one: &'a ServiceView, loads: &[InstanceLoad]) -> Option<BTreeSet<&'a Region>> {
    let endpoints = || one.endpoints.iter().map(|at| &at.value);
    let received = || loads.iter().filter(|load| load.requests > 0);
    if received().any(|load| endpoints().all(|endpoint| endpoint.instance != load.instance)) {
        return None;
    }
    let longest = loads.iter().map(|load| load.covered_ms).max().unwrap_or_default();
    let is_settled = |endpoint: &&Endpoint| {
        let own = || loads.iter().filter(|load| load.instance == endpoint.instance);
        match serves(endpoint) {
            // Reports of all endpoints end within seconds of each other.
            true => own().any(|load| load.covered_ms.saturating_mul(10) >= longest.saturating_mul(8)),
            false => own().all(|load| load.requests == 0),
        }
    };
    let unsettled = one.endpoints.iter().map(|at| &at.value).filter(|endpoint| !is_settled(endpoint));
    Some(unsettled.map(|endpoint| &endpoint.location.region).collect())
}

fn serves(endpoint: &Endpoint) -> bool {
    endpoint.state == EndpointState::Serving
}

/// Counts of a step, and the part of the step that reports cover.
type Step = (CallCounts, Duration);

/// Calls from and to a service over a window.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceCalls {
    /// Calls to the service, by caller and regions.
    callers: Vec<Path>,
    /// Calls of the service, by called service and regions.
    called: Vec<Path>,
    /// Number of calls to the service, by response class and by fault.
    outcomes: BTreeMap<&'static str, u64>,
    denied: Vec<Denied>,
    steps: Steps,
    window_ms: u64,
    history_ms: u64,
}

/// Path of calls: the other service, the class, both regions, and the figures.
#[derive(Debug, Serialize)]
struct Path(String, String, [String; 2], Numbers);

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Denied {
    caller: String,
    rule: String,
    method: String,
    path: String,
    audit: bool,
    count: u64,
    minutes_ago: u64,
}

/// Figures for each step of the window, oldest first; `null` for a gap. The last step is the present one and a gap:
/// some processes have not reported it yet, and its figures would dip.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Steps {
    step_ms: u32,
    rate: Vec<Option<f64>>,
    failed: Vec<Option<f64>>,
    /// Calls that rules refuse; they are among the failed ones.
    refused: Vec<Option<f64>>,
    p50_us: Vec<Option<u64>>,
    p99_us: Vec<Option<u64>>,
}

/// Reads the calls of one service from a response.
pub(crate) fn calls(
    name: &ServiceName,
    response: &v1::ReadCallsResponse,
    denied: Vec<(v1::DeniedCalls, u64)>,
    (steps, window_ms): (&[Option<Step>], u64),
) -> ServiceCalls {
    let (name, rows) = (name.to_string(), rows(response));
    let (to, from): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.service == name);
    let from: Vec<_> = from.into_iter().filter(|row| row.caller == name).collect();
    let mut sum = CallSum::default();
    to.iter().for_each(|row| sum.add(row));
    ServiceCalls {
        callers: paths(&to, |row| &row.caller),
        called: paths(&from, |row| &row.service),
        outcomes: outcomes(&sum.counts),
        denied: denied.into_iter().map(Denied::of).collect(),
        steps: Steps::of(steps, response.step_ms),
        window_ms,
        history_ms: response.history_ms,
    }
}

fn paths(rows: &[&CallRow], other: impl Fn(&CallRow) -> &String) -> Vec<Path> {
    let mut sums = BTreeMap::<_, CallSum>::new();
    for row in rows {
        let path = (other(row).clone(), row.class.clone(), [row.from.clone(), row.to.clone()]);
        sums.entry(path).or_default().add(row);
    }
    let path = |((other, class, regions), mut sum): ((String, String, [String; 2]), CallSum)| {
        sum.per_second();
        Path(other, class, regions, Numbers::of(&sum))
    };
    sums.into_iter().map(path).collect()
}

fn outcomes(counts: &CallCounts) -> BTreeMap<&'static str, u64> {
    let responses = ResponseClass::ALL.iter().map(|class| class.label()).zip(counts.responses());
    let faults = CallFault::ALL.iter().map(|fault| fault.label()).zip(counts.faults());
    let mut outcomes = BTreeMap::new();
    for (label, calls) in responses.chain(faults).filter(|(_, calls)| **calls > 0) {
        *outcomes.entry(label).or_default() += calls;
    }
    outcomes
}

impl Denied {
    fn of((row, minutes_ago): (v1::DeniedCalls, u64)) -> Self {
        let v1::DeniedCalls { caller, rule, audit, count, method, path, .. } = row;
        Self { caller, rule, method, path, audit, count, minutes_ago }
    }
}

impl Steps {
    fn of(steps: &[Option<Step>], step_ms: u32) -> Self {
        let mut steps = steps.to_vec();
        if let Some(present) = steps.last_mut() {
            *present = None;
        }
        let each = |value: fn(&CallCounts) -> u64| {
            let rate = |(counts, covered): &Step| value(counts) as f64 / covered.as_secs_f64();
            steps.iter().map(|step| step.as_ref().map(rate).filter(|rate| rate.is_finite())).collect()
        };
        let latency = |part| steps.iter().map(|step| step.as_ref()?.0.latency_quantile_us(part)).collect();
        Self {
            step_ms,
            rate: each(CallCounts::calls),
            failed: each(CallCounts::failures),
            refused: each(|counts| counts.faults()[CallFault::Unauthorized as usize]),
            p50_us: latency(0.5),
            p99_us: latency(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::InstanceId;
    use fairmesh_views::At;

    use super::*;
    use crate::call_graph::tests::row;

    fn endpoint(instance: &str, state: EndpointState) -> At<Endpoint> {
        At { value: Endpoint { state, ..fairmesh_test_support::endpoint(instance, "eu") }, revision: 1 }
    }

    #[test]
    fn shares_are_settled_while_the_same_endpoints_serve() {
        let load = |instance: &str, minutes: u64, requests| InstanceLoad {
            instance: InstanceId::new(instance).unwrap(),
            cpu_us: 0,
            covered_ms: minutes * 60_000,
            requests,
        };
        let settled = |b: EndpointState, loads: &[InstanceLoad]| {
            let endpoints = vec![endpoint("a", EndpointState::Serving), endpoint("b", b)];
            let one = ServiceView { endpoints, ..ServiceView::default() };
            unsettled_regions(&one, loads).is_some_and(|regions| regions.is_empty())
        };
        let (serving, draining) = (EndpointState::Serving, EndpointState::Draining);
        assert!(settled(serving, &[load("a", 10, 9), load("b", 10, 9)]));
        assert!(!settled(serving, &[load("a", 10, 9), load("b", 3, 2)]), "b is new");
        assert!(!settled(draining, &[load("a", 10, 9), load("b", 10, 2)]), "b served until a moment ago");
        assert!(settled(draining, &[load("a", 10, 9), load("b", 10, 0)]));
        let removed = [load("a", 10, 9), load("b", 10, 9), load("c", 5, 3)];
        assert!(!settled(serving, &removed), "c is not registered any more");
    }

    #[test]
    fn service_page_lists_callers_and_called_services() {
        let rows = vec![
            row("shop/web", "shop/cart", ("eu", "eu"), 100),
            row("shop/web", "shop/cart", ("us", "eu"), 10),
            row("shop/cart", "shop/db", ("eu", "eu"), 40),
        ];
        let response = v1::ReadCallsResponse { rows, step_ms: 10_000, ..Default::default() };
        let mut faults = [0; CallFault::ALL.len()];
        (faults[CallFault::Unauthorized as usize], faults[CallFault::Reset as usize]) = (5, 5);
        let counts = CallCounts::ZERO.with_totals([20, 0, 0, 0, 0]).with_outcomes(&[], &faults, &[]);
        let step = (counts, Duration::from_secs(10));
        let steps = [None, Some(step.clone()), Some(step)];
        let calls = calls(&ServiceName::new("shop/cart").unwrap(), &response, Vec::new(), (&steps, 60_000));
        let others = |paths: &[Path]| paths.iter().map(|path| path.0.clone()).collect::<Vec<_>>();
        assert_eq!(others(&calls.callers), ["shop/web", "shop/web"]);
        assert_eq!(others(&calls.called), ["shop/db"]);
        assert_eq!(
            calls.steps.rate,
            [None, Some(2.0), None],
            "a gap is not zero, and the present step is one"
        );
        assert_eq!(calls.steps.p99_us, [None, None, None]);
        assert_eq!((&calls.steps.failed[1], &calls.steps.refused[1]), (&Some(1.0), &Some(0.5)));
        assert_eq!(calls.outcomes.values().sum::<u64>(), 110);
    }
}
