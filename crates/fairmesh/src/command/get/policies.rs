//! Policies as lists.

use fairmesh_model::{
    HealthCheck, Locality, Policy, Probe,
    spec::{Document, Plan, PolicySpec, write_duration},
};
use serde_json::json;

use crate::{output::Listing, view::View};

/// One row a written policy.
pub(super) fn policies(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "ROUTES", "RINGS", "SUBSET", "TIMEOUT", "TRIES", "REVISION"]);
    for (name, one) in &view.services {
        let Some(policy) = &one.policy else { continue };
        let value = &policy.value;
        let mut item = json!(PolicySpec::of(name, value));
        item["revision"] = json!(policy.revision);
        listing.add(
            vec![
                name.to_string(),
                value.routes.len().to_string(),
                rings(&value.locality),
                subset(value.balancing.subset),
                write_duration(value.timeout),
                value.retries.attempts.to_string(),
                policy.revision.to_string(),
            ],
            item,
        );
        listing.documents.push(Document::from(&Plan::Policy(name.clone(), value.clone())));
    }
    listing
}

/// A policy in force as pairs of a title and a text, defaults spelt out.
pub(crate) fn summary(policy: &Policy) -> Vec<(&'static str, String)> {
    let retries = &policy.retries;
    vec![
        ("Timeout", write_duration(policy.timeout)),
        (
            "Tries",
            format!(
                "{} at most; retries up to {} % of calls, or {} a second",
                retries.attempts, retries.budget_percent, retries.budget_floor
            ),
        ),
        ("Rings", rings(&policy.locality)),
        ("Subset", subset(policy.balancing.subset)),
        ("Health", health(policy.health_check.as_ref())),
    ]
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

fn subset(subset: u32) -> String {
    if subset == 0 { "all".into() } else { subset.to_string() }
}

fn rings(locality: &Locality) -> String {
    if locality.local_only {
        return "own region only".into();
    }
    let rings = if locality.rings.is_empty() { Locality::default_rings() } else { locality.rings.clone() };
    let bounds = rings.iter().map(|ring| ring.within.map_or_else(|| "any".into(), write_duration));
    bounds.collect::<Vec<_>>().join(", ")
}
