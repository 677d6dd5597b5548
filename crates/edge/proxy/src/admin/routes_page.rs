//! The page `/services/TENANT/NAME/routes`: the policy by which this proxy routes calls of a service.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    extract::{self, Path},
    response::{IntoResponse, Response},
};
use fairmesh_calls::{
    ServiceName,
    discovery::ServiceState,
    forwarding::{RouteBackend, RouteBackendIndex, route_backend_name, service_state},
};
use fairmesh_edge::{observe::response_metrics::BackendMetrics, services::target::Target};
use fairmesh_model::{
    Label, Region, RegionShares, RegionTable, Share, TableForce, TableOrigin, spec::PolicySpec,
};
use http::StatusCode;
use serde::Serialize;

use crate::admin::state::AdminState;

/// The policy in force, as `apply` reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RoutesPage {
    service: String,
    /// Revision of the records; 0 if they were read from disk.
    revision: u64,
    policy: PolicySpec,
    /// The region table that this proxy has for its region; `null` without one.
    table: Option<TablePage>,
    /// Requests so far by route and backend, of which there are no more than in metrics.
    counts: Vec<RouteCounts>,
}

/// The requests of one route and backend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RouteCounts {
    /// `(none)` for calls that match no route.
    route: String,
    backend: String,
    /// Responses by status class, 1xx to 5xx.
    responses: [u64; 5],
    /// Those of them below 500 whose gRPC status is a failure of the server.
    grpc_failures: u64,
    /// Those of them that are not of a server: of the proxy, or injected by the route.
    without_server: u64,
}

impl RouteCounts {
    fn all(target: &Target) -> Vec<Self> {
        let counts = |(index, metrics): (RouteBackendIndex, &BackendMetrics)| {
            let RouteBackend { route, backend, .. } = route_backend_name(&target.handle, index);
            let mut responses = [0; 5];
            for (_, region) in metrics.iter() {
                responses.iter_mut().zip(region.classes()).for_each(|(sum, count)| *sum += count);
            }
            let (grpc_failures, without_server) = (metrics.grpc_failures(), metrics.without_server());
            Self { route, backend, responses, grpc_failures, without_server }
        };
        target.metrics.responses.route_backends().map(counts).collect()
    }
}

/// A region table, with what is left of its force.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TablePage {
    /// The region of the callers.
    from: String,
    by_hand: bool,
    /// The round of the planner that confirmed it last.
    confirmed_round: Option<u64>,
    /// Since that confirmation, by the age of the data.
    age_seconds: f64,
    /// `full`; `withoutDrops`, where nothing is dropped any more; `lapsed`, where rings decide.
    force: &'static str,
    /// Until its force changes next, unless it is confirmed.
    weakens_in_seconds: Option<f64>,
    shares: Vec<ClassPage>,
}

/// The shares of a traffic class, as they were written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClassPage {
    class: Option<String>,
    to_percent: BTreeMap<String, f64>,
    dropped_percent: f64,
}

impl TablePage {
    fn new(from: &Region, table: &RegionTable, age: Duration) -> Self {
        let percent = |share: &Share| f64::from(share.millionths()) / 10_000.0;
        let class = |(class, shares): (Option<&Label>, &RegionShares)| ClassPage {
            class: class.map(ToString::to_string),
            to_percent: shares
                .to
                .iter()
                .map(|(region, share)| (region.to_string(), percent(share)))
                .collect(),
            dropped_percent: percent(&shares.dropped),
        };
        let confirmed_round = match table.origin {
            TableOrigin::ByHand => None,
            TableOrigin::Planned(confirmed) => Some(confirmed.round),
        };
        Self {
            from: from.to_string(),
            by_hand: table.origin == TableOrigin::ByHand,
            confirmed_round,
            age_seconds: age.as_secs_f64(),
            force: match table.force(age) {
                TableForce::Full => "full",
                TableForce::WithoutDrops => "withoutDrops",
                TableForce::Lapsed => "lapsed",
            },
            weakens_in_seconds: table.weakens_at(age).map(|at| at.saturating_sub(age).as_secs_f64()),
            shares: table.shares.iter().map(class).collect(),
        }
    }
}

/// Serves the page.
pub(super) async fn routes(
    extract::State(state): extract::State<AdminState>,
    Path((tenant, name)): Path<(String, String)>,
) -> Response {
    let name = ServiceName::new(format!("{tenant}/{name}")).ok();
    let known = name.and_then(|name| Some((state.services.known(&name)?, name)));
    let Some((target, name)) = known else {
        let message = "this service was not called through this proxy; /services lists those that were\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    match &*service_state(&target.handle) {
        ServiceState::Ready(ready) => {
            let policy = PolicySpec::of(&name, &ready.read_policy().unwrap_or_default());
            let table = ready.region_table().map(|(from, table, age)| TablePage::new(from, table, age));
            let service = name.to_string();
            let counts = RouteCounts::all(&target);
            Json(RoutesPage { service, revision: ready.revision, policy, table, counts }).into_response()
        }
        _ => (StatusCode::NOT_FOUND, "the records of this service are not known yet\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Confirmation, TrafficShares};

    use super::*;

    #[test]
    fn a_table_without_confirmation_is_shown_as_weaker() {
        let region = |name: &str| Region::new(name).unwrap();
        let part = |percent: u32| Share::of_millionths(percent * 10_000).unwrap();
        let to = [(region("eu"), part(70)), (region("us"), part(20))].into();
        let shares =
            TrafficShares { default: Some(RegionShares { to, dropped: part(10) }), classes: BTreeMap::new() };
        let origin = TableOrigin::Planned(Confirmation { round: 7, at_ms: 0 });
        let mut table = RegionTable { shares, zones: BTreeMap::new(), origin };
        for (age, force, weakens) in
            [(20, "full", Some(40.0)), (61, "withoutDrops", Some(839.0)), (900, "lapsed", None)]
        {
            let page = TablePage::new(&region("eu"), &table, Duration::from_secs(age));
            assert_eq!((page.force, page.weakens_in_seconds), (force, weakens), "{age} s");
            assert_eq!((page.confirmed_round, page.shares[0].dropped_percent), (Some(7), 10.0));
        }
        table.origin = TableOrigin::ByHand;
        let page = TablePage::new(&region("eu"), &table, Duration::from_secs(9_000));
        assert_eq!((page.force, page.weakens_in_seconds, page.by_hand), ("full", None, true));
    }
}
