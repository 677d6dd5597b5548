//! Large numbers of routes: of one tenant in one batch, and of many tenants.

use std::sync::Arc;

use fairmesh_model::{
    Actions, MAX_ROUTES, Match, PathMatch, PathRewrite, Policy, Redirect, Route, Service, ServiceKind,
};
use fairmesh_test_support::{eventually_async as until, is_soak};
use fairmesh_wire::transport::Transport;

use crate::{
    bounds::Victim,
    mesh::{Mesh, VIRTUAL, serve_pod},
};

/// Virtual address of blue's second service.
const VAULT: &str = "10.96.0.7:80";
/// Services of blue. Their two policies have the maximum number of routes.
const SERVICES: [(&str, &str); 2] = [("blue/web", VIRTUAL), ("blue/vault", VAULT)];
/// Records of this many tenants are written in one batch.
const TENANTS_PER_BATCH: usize = 50;
/// Routes of each tenant.
const ROUTES: usize = 40;

/// Numbers of tenants, and of services whose certificates are checked.
fn sizes() -> (usize, usize) {
    if is_soak() { (1_000, 2_500) } else { (10, 25) }
}

/// Redirects from `/r/NUMBER` to `/VERSION/NUMBER`. Odd versions have the reverse order.
fn redirects(routes: usize, version: usize) -> Policy {
    let route = |number: usize| {
        let path = Some(PathRewrite::Full(format!("/v{version}/{number}")));
        let redirect = Redirect { https: None, host: None, port: None, path, status: 308 };
        Route {
            matches: Match { path: Some(PathMatch::Exact(format!("/r/{number}"))), ..Match::default() },
            actions: Actions { redirect: Some(redirect), ..Actions::default() },
            ..Route::new(format!("r-{number}").parse().unwrap())
        }
    };
    let mut routes: Vec<Route> = (0..routes).map(route).collect();
    if version % 2 == 1 {
        routes.reverse();
    }
    Policy { routes, ..Policy::default() }
}

fn get(host: &str, route: usize) -> String {
    format!("GET /r/{route} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

/// Location that a route redirects to.
async fn location(
    mesh: &Mesh,
    caller: &Transport,
    destination: &str,
    (host, route): (&str, usize),
) -> String {
    let answer = mesh.call(caller, destination, &get(host, route)).await;
    let line = answer.lines().find_map(|line| line.strip_prefix("location: "));
    line.map_or(answer.clone(), |line| line.rsplit_once("/v").map_or(line, |(_, path)| path).to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_four_thousand_routes_fails_no_call() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let mesh = Arc::new(mesh);
    let [red, blue] = [mesh.identity("red", "red/client").await, mesh.identity("blue", "blue/client").await];
    until("red reaches its web", async || mesh.reaches_web(&red).await).await;
    let control = mesh.control_connection().await;
    let victim = Victim::start(&mesh, red);
    for version in 0..3 {
        let changed = SERVICES.map(|(service, _)| (service, redirects(MAX_ROUTES, version)));
        mesh.set_policies(&control, &changed).await;
        for (service, destination) in SERVICES {
            for route in [0, MAX_ROUTES - 1] {
                until("the routes apply", async || {
                    let to = location(&mesh, &blue, destination, ("web", route)).await;
                    let is_known = (0..=version).any(|version| to == format!("{version}/{route}"));
                    assert!(
                        is_known || version == 0,
                        "{service}: a call between two versions of routes: {to}"
                    );
                    to == format!("{version}/{route}")
                })
                .await;
            }
        }
    }
    assert!(victim.stop().await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_get_only_own_routes_and_certificates() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let mesh = Arc::new(mesh);
    let (tenants, certificates) = sizes();
    let red = mesh.identity("red", "red/client").await;
    until("red reaches its web", async || mesh.reaches_web(&red).await).await;
    let control = mesh.control_connection().await;
    let victim = Victim::start(&mesh, red);
    let all: Vec<usize> = (0..tenants).collect();
    for batch in all.chunks(TENANTS_PER_BATCH) {
        let names: Vec<String> = batch.iter().map(|tenant| format!("t{tenant}/web")).collect();
        let declared = Service {
            kind: ServiceKind::Replicated,
            protocol: Default::default(),
            virtual_address: None,
            identity: None,
        };
        let services: Vec<_> = names.iter().map(|name| (name.as_str(), declared.clone())).collect();
        mesh.set_services(&control, &services).await;
        // The routes of each tenant redirect to its number as version.
        let policies =
            names.iter().zip(batch).map(|(name, tenant)| (name.as_str(), redirects(ROUTES, *tenant)));
        mesh.set_policies(&control, &policies.collect::<Vec<_>>()).await;
    }
    for certificate in 0..certificates {
        let (tenant, route) = (certificate % tenants, certificate % ROUTES);
        let caller = mesh.identity("edge", &format!("t{tenant}/client-{}", certificate / tenants)).await;
        until("the tenant's routes apply", async || {
            location(&mesh, &caller, "10.96.9.9:80", ("web", route)).await == format!("{tenant}/{route}")
        })
        .await;
    }
    assert!(victim.stop().await > 0);
    let services: u64 =
        mesh.metric(&format!("fairmesh_gateway_tenant_services{{tenant=\"t{}\"}} ", tenants - 1)).await;
    assert_eq!(services, 1);
}
