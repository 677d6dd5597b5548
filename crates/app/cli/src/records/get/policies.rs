//! List of policies.

use std::time::Duration;

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    Balancing, BalancingPolicy, CallKind, HealthCheck, Locality, Outliers, Policy, PolicyField, Probe, Score,
    ServiceKind, Traffic, counted,
    spec::{Document, PolicyDefaultsSpec, PolicySpec, Resource, write_duration},
};
use serde_json::json;

/// One row per written policy, with the values in force.
pub(super) fn policies(view: &View) -> Listing {
    let mut listing =
        Listing::new(&["SERVICE", "ROUTES", "RINGS", "SUBSET", "TIMEOUT", "ATTEMPTS", "REVISION"]);
    for (name, one) in &view.services {
        let Some(policy) = &one.policy else { continue };
        let (value, written) = (&one.effective_policy(), &policy.value);
        let mut item = json!(PolicySpec::of(name, written));
        item["revision"] = json!(policy.revision);
        listing.add(
            vec![
                name.to_string(),
                value.routes.len().to_string(),
                rings(&value.locality),
                subset(value.balancing.subset),
                total(value),
                value.retries.attempts.to_string(),
                policy.revision.to_string(),
            ],
            item,
        );
        listing.documents.push(Document::from(&Resource::Policy(name.clone(), written.clone())));
    }
    listing
}

/// One row per tenant with defaults, and one for the defaults of the mesh.
pub(super) fn defaults(view: &View) -> Listing {
    let mut listing = Listing::new(&["TENANT", "FIELDS", "REVISION"]);
    for (scope, defaults) in view.policy_defaults.iter() {
        let stated = PolicyField::ALL.into_iter().filter(|field| defaults.as_policy().states(*field));
        let revision = view.defaults_revisions.get(scope).copied().unwrap_or_default();
        let mut item = json!(PolicyDefaultsSpec::of(scope, defaults));
        item["revision"] = json!(revision);
        let row = vec![
            scope.tenant().map_or_else(|| "(mesh)".to_owned(), ToString::to_string),
            stated.map(PolicyField::path).collect::<Vec<_>>().join(", "),
            revision.to_string(),
        ];
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::PolicyDefaults(scope.clone(), defaults.clone())));
    }
    listing
}

/// A policy in force as pairs of title and text, including defaults. `kind` is that of the service, if declared.
pub(crate) fn summary(policy: &Policy, kind: Option<ServiceKind>) -> Vec<(&'static str, String)> {
    let retries = &policy.retries;
    vec![
        ("Timeout", timeouts(policy)),
        (
            "Attempts",
            format!(
                "{} at most; retries up to {} % of calls, or {} a second",
                retries.attempts, retries.budget_percent, retries.budget_floor
            ),
        ),
        ("Rings", rings(&policy.locality)),
        ("Tables", traffic(policy.traffic.as_deref())),
        ("Subset", subset(policy.balancing.subset)),
        ("Balancing", balancing(&policy.balancing, kind)),
        ("Score", score(&policy.balancing.score)),
        ("Outliers", outliers(&policy.balancing.outliers)),
        ("Health", health(policy.health_check.as_ref())),
        ("Lookaside", policy.lookaside.clone().unwrap_or_else(|| "none of its own".into())),
        ("Accepts", route_sources(policy)),
    ]
}

fn route_sources(policy: &Policy) -> String {
    let sources = policy.accept_routes_from.iter().map(ToString::to_string).collect::<Vec<_>>();
    match sources.is_empty() {
        true => "routes of its own tenant only".to_owned(),
        false => format!("routes of its own tenant and of {}", sources.join(", ")),
    }
}

fn total(policy: &Policy) -> String {
    policy.timeouts.total.map_or_else(|| "none".into(), write_duration)
}

fn timeouts(policy: &Policy) -> String {
    let kind = if policy.timeouts.total.is_some() { CallKind::Bounded } else { CallKind::Other };
    let of = |time: Option<Duration>| time.map_or_else(|| "no bound of its own".into(), write_duration);
    format!(
        "{} for the whole call; response headers within {}; idle timeout {}",
        total(policy),
        of(policy.timeouts.response_header_timeout(kind)),
        of(policy.timeouts.idle_timeout(kind))
    )
}

fn balancing(balancing: &Balancing, kind: Option<ServiceKind>) -> String {
    let policy = balancing.policy.as_str();
    match balancing.policy {
        BalancingPolicy::BoundedHash if kind.is_some_and(|kind| kind != ServiceKind::ConsistentHash) => {
            format!("{}, since {policy} is for consistent-hash services", BalancingPolicy::Score.as_str())
        }
        BalancingPolicy::Score => format!("{policy}, load signal {}", balancing.signal),
        BalancingPolicy::BoundedHash => format!("{policy}, up to {} % of the mean", balancing.load_factor),
        _ => policy.to_owned(),
    }
}

fn score(score: &Score) -> String {
    let polling = match (score.poll, score.poll_after.map(write_duration)) {
        (false, _) => "load polling off".to_owned(),
        (true, None) => {
            format!("load polled where a round trip takes under {} % of a request", score.poll_ratio)
        }
        (true, Some(after)) => {
            format!(
                "load polled after {after} where a round trip takes under {} % of a request",
                score.poll_ratio
            )
        }
    };
    format!(
        "mean of {} reports, half-life {}; utilisation moves shares by up to {} % a second and {} x, held for {}; new at {} %, \
         {} % reward for a polled response; {polling}",
        score.smoothing,
        write_duration(score.half_life),
        score.gain,
        score.correction,
        write_duration(score.memory),
        score.warm_up,
        score.reward
    )
}

fn outliers(outliers: &Outliers) -> String {
    let consecutive = match outliers.consecutive {
        0 => "consecutive failures not counted".to_owned(),
        n => format!("{n} consecutive failures"),
    };
    let rate = match outliers.failure_percent {
        0 => "failure rate not compared".to_owned(),
        n => format!("{n} points above the others from {} responses on", outliers.min_samples),
    };
    format!(
        "{consecutive}, {rate}; avoided for {} to {}; none of them above {} % of the endpoints",
        write_duration(outliers.first),
        write_duration(outliers.longest),
        outliers.most_percent
    )
}

fn health(check: Option<&HealthCheck>) -> String {
    let Some(check) = check else { return "not checked".into() };
    let probe = match &check.probe {
        Probe::Tcp => "tcp".to_owned(),
        Probe::Http { path, .. } => format!("http {path}"),
        Probe::Grpc { service } => format!("grpc {service}"),
    };
    format!("{} every {}", probe.trim_end(), write_duration(check.interval))
}

fn traffic(traffic: Option<&Traffic>) -> String {
    let Some(traffic) = traffic else { return "none: rings decide".into() };
    let source = match traffic.planner {
        Some(planner) => format!("of the planner '{}'", planner.name()),
        None => format!("written by hand for callers in {}", counted(traffic.shares.len(), "region")),
    };
    let shadow = if traffic.publishes() { "" } else { ", in shadow mode: not published" };
    format!("{source}{shadow}")
}

fn subset(subset: u32) -> String {
    if subset == 0 { "all".into() } else { subset.to_string() }
}

fn rings(locality: &Locality) -> String {
    if locality.local_only {
        return "own region only".into();
    }
    let rings = if locality.rings.is_empty() { Locality::default_rings() } else { locality.rings.clone() };
    let rings = rings.iter().map(ToString::to_string);
    rings.collect::<Vec<_>>().join(", ")
}
