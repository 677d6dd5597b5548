//! `fairmesh cost --by` shows which callers use a service's CPU.

use std::time::Duration;

use axum::{Router, routing::get};
use fairmesh_client::{Body, Mesh as Library, ServiceHandle};
use fairmesh_model::SpiffePath;
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use http::Request;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Runtime, time::sleep};

use super::{
    identities::{agent, domain, has_certificate},
    support::{Mesh, wait_until},
};

/// Serves requests with this router.
async fn serve(service: &str, agent: &Address, router: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder(service).listener(&listener).unwrap();
    let server = server.agent(agent.clone()).start().await.unwrap();
    tokio::spawn(async move { serve_http(listener, router, &server).await });
}

/// A handle for `service`, for calls in the name of the service `own`.
async fn handle(own: &str, service: &str, agent: &Address) -> (Library, ServiceHandle) {
    let path = SpiffePath::Service(own.parse().unwrap());
    let library = Library::builder().agent(agent.clone()).identity(path).client_id(own);
    let library = library.connect().await.unwrap();
    let handle = library.service(service).unwrap();
    (library, handle)
}

async fn call(service: &ServiceHandle) {
    // A failed call does not matter, since the next one may succeed.
    let _ = service.send(Request::get("/").body(Body::empty()).unwrap()).await;
}

/// Calls until the runtime ends: the web calls the cart, which calls the stock each time, and the ads call the stock.
async fn shop(agent: Address) {
    serve("shop/stock", &agent, Router::new().route("/", get(|| sleep(Duration::from_millis(20))))).await;
    let (library, stock) = handle("shop/cart", "shop/stock", &agent).await;
    let cart = get(move || {
        let (stock, _library) = (stock.clone(), library.clone());
        async move { call(&stock).await }
    });
    serve("shop/cart", &agent, Router::new().route("/", cart)).await;
    for (own, service) in [("shop/web", "shop/cart"), ("shop/ads", "shop/stock")] {
        let (library, service) = handle(own, service, &agent).await;
        tokio::spawn(async move {
            loop {
                call(&service).await;
                // Pauses, since calls fail at once until a server is registered.
                sleep(Duration::from_millis(1)).await;
                let _ = &library;
            }
        });
    }
}

fn cost(mesh: &Mesh, service: &str, by: &str) -> Value {
    mesh.run(&["cost", service, "--by", by, "--json"]).json()
}

fn users(cost: &Value, by: &str) -> Vec<String> {
    let rows = cost["rows"].as_array().unwrap().iter();
    let mut users: Vec<_> = rows.map(|row| row[by].as_str().unwrap().to_owned()).collect();
    users.retain(|user| user != "(idle)");
    users.sort();
    users
}

#[test]
fn service_cpu_is_attributed_to_callers_and_origins() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/cart\n---\nkind: Service\nname: shop/stock\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let runtime = Runtime::new().unwrap();
    runtime.block_on(shop(agent.parse().unwrap()));
    wait_until("the stock's CPU is divided by its callers", || {
        users(&cost(&mesh, "shop/stock", "caller"), "caller") == ["shop/ads", "shop/cart"]
    });
    wait_until("and by the first services of their chains", || {
        users(&cost(&mesh, "shop/stock", "origin"), "origin") == ["shop/ads", "shop/web"]
    });
    assert_eq!(users(&cost(&mesh, "shop/cart", "origin"), "origin"), ["shop/web"]);
    let stock = cost(&mesh, "shop/stock", "caller");
    let rows = stock["rows"].as_array().unwrap();
    let sum: f64 = rows.iter().map(|row| row["cpuSeconds"].as_f64().unwrap()).sum();
    let total = stock["cpuSeconds"].as_f64().unwrap();
    assert!(total > 0.0 && (sum - total).abs() < 1e-6, "{stock}");
    let table = mesh.run(&["cost", "shop/stock", "--by", "caller"]).ok();
    assert!(table.contains("CALLER") && table.contains("shop/ads"), "{table}");
    assert!(mesh.run(&["cost", "shop/stock"]).fails(2).contains("--by caller"));
    assert!(mesh.run(&["cost", "--egress", "--by", "origin"]).fails(2).contains("--egress"));
    runtime.shutdown_background();
}
