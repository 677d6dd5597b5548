//! Lists of active health check verdicts.

use fairmesh_console::{
    output::Listing,
    view_reader::{ServiceView, View, instant},
};
use fairmesh_model::{Endpoint, Hosts, ServiceName, Standing, Verdict};
use fairmesh_views::effect;
use serde_json::json;

/// One row per checked endpoint, of every service.
pub(super) fn all(view: &View) -> Listing {
    let head = &["SERVICE", "INSTANCE", "REGION", "HEALTH", "SINCE", "SURE", "EFFECT", "CAUSE"];
    let mut listing = Listing::new(head);
    for (name, one) in &view.services {
        let rows = of_service(name, one, &view.hosts.value);
        for (mut row, item) in rows.rows.into_iter().zip(rows.items) {
            row.insert(0, name.to_string());
            listing.add(row, item);
        }
    }
    listing
}

/// The list for one service, without the column of its name.
pub(crate) fn of_service(name: &ServiceName, one: &ServiceView, hosts: &Hosts) -> Listing {
    let endpoints: Vec<&Endpoint> = one.endpoints.iter().map(|endpoint| &endpoint.value).collect();
    let judged = one.health.judge_for_all(&endpoints, hosts);
    let mut listing = Listing::new(&["INSTANCE", "REGION", "HEALTH", "SINCE", "SURE", "EFFECT", "CAUSE"]);
    for (endpoint, force) in endpoints.into_iter().zip(judged.effects.iter().copied()) {
        let Some(verdict) = one.health.on(endpoint) else { continue };
        let region = &endpoint.location.region;
        let effect = effect(verdict, force, judged.standing(region) == Some(Standing::Panic));
        let Verdict { healthy, since_ms, confidence, cause, stale } = verdict;
        let since = instant(*since_ms);
        listing.add(
            vec![
                endpoint.instance.to_string(),
                region.to_string(),
                if *healthy { "healthy" } else { "unhealthy" }.to_owned(),
                since.clone(),
                format!("{}.{} %", confidence / 10, confidence % 10),
                effect.to_owned(),
                cause.clone(),
            ],
            json!({
                "service": name.to_string(),
                "instance": endpoint.instance.to_string(),
                "region": region.to_string(),
                "healthy": healthy,
                "since": since,
                "confidenceThousandths": confidence,
                "stale": stale,
                "effect": effect,
                "cause": cause,
            }),
        );
    }
    listing
}
