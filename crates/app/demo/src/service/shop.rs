//! The stateless services: catalog, payment, and checkout, which calls two others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use fairmesh_client::{Body, Mesh, ServiceHandle};
use fairmesh_server::MeshServer;
use http_body_util::BodyExt;
use tokio::time::{Instant, interval};

use super::{DemoRegion, REGION_HEADER};
use crate::error::DemoError;
use crate::shop_protocol::{GetRequest, cart_client::CartClient};

/// The catalog, which counts its requests.
pub(super) fn catalog(place: DemoRegion, requests: Arc<AtomicU64>) -> Router {
    let item = move |Path(item): Path<u64>| {
        requests.fetch_add(1, Relaxed);
        async move { answer(place, format!("{{\"item\": {item}, \"price\": {}}}", 100 + item % 900)) }
    };
    Router::new().route("/items/{item}", get(item))
}

/// Reports requests per second as the server's load, for the planner of region tables.
pub(super) async fn report_rate(server: MeshServer, requests: Arc<AtomicU64>) {
    let mut ticks = interval(Duration::from_millis(500));
    let (mut before, mut at) = (0, Instant::now());
    loop {
        ticks.tick().await;
        let (count, now) = (requests.load(Relaxed), Instant::now());
        let rate = (count - before) as f64 / (now - at).as_secs_f64().max(0.001);
        // The name is valid, and no rate here is too large.
        let _ = server.layer().metric("requests_per_second", rate);
        (before, at) = (count, now);
    }
}

/// Takes payments: POST requests that must not be executed twice.
pub(super) fn payment(place: DemoRegion) -> Router {
    let pay =
        move |Path(customer): Path<u64>| async move { answer(place, format!("{{\"paid_by\": {customer}}}")) };
    Router::new().route("/pay/{customer}", post(pay))
}

/// Reads the cart, then takes the payment.
pub(super) fn checkout(place: DemoRegion, mesh: &Mesh) -> Result<Router, DemoError> {
    let service = |name: &str| mesh.service(name).map_err(|e| DemoError::Fleet(e.to_string()));
    let callees = Callees { place, cart: service("shop/cart")?, payment: service("shop/payment")? };
    Ok(Router::new().route("/checkout/{customer}", post(check_out)).with_state(callees))
}

#[derive(Clone, Debug)]
struct Callees {
    place: DemoRegion,
    cart: ServiceHandle,
    payment: ServiceHandle,
}

async fn check_out(State(callees): State<Callees>, Path(customer): Path<u64>) -> Response {
    match callees.check_out(customer).await {
        Ok(items) => answer(callees.place, format!("{{\"items\": {items}}}")),
        Err(why) => (StatusCode::BAD_GATEWAY, why).into_response(),
    }
}

impl Callees {
    async fn check_out(&self, customer: u64) -> Result<usize, String> {
        let cart = self.cart.clone().key(customer).role("secondary").map_err(|e| e.to_string())?;
        let content = CartClient::new(cart).get(GetRequest { customer }).await;
        let content = content.map_err(|status| format!("cart: {}", status.message()))?;
        let request = http::Request::post(format!("/pay/{customer}")).body(Body::empty());
        let request = request.map_err(|e| e.to_string())?;
        let paid = self.payment.send(request).await.map_err(|e| format!("payment: {e}"))?;
        if !paid.status().is_success() {
            return Err(format!("payment: {}", paid.status()));
        }
        // Read to its end, so that the connection can be reused.
        paid.into_body().collect().await.map_err(|e| format!("payment: {e}"))?;
        Ok(content.into_inner().items.len())
    }
}

fn answer(place: DemoRegion, json: String) -> Response {
    ([("content-type", "application/json"), (REGION_HEADER, place.name)], json).into_response()
}
