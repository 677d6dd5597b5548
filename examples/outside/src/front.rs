//! The front, in axum.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use fairmesh_client::{Body, Fault, Invalid, Mesh, ServiceHandle, SpanContext};
use http::{HeaderMap, Request, StatusCode};

use crate::cart::proto::{AddRequest, cart_client::CartClient};

/// The services that the front calls.
#[derive(Clone)]
struct Front {
    cart: ServiceHandle,
    catalog: ServiceHandle,
    /// For servers that are not part of the mesh.
    outside: reqwest::Client,
}

/// The front, whose calls go through this mesh: the real one, or one of a test.
pub fn router(mesh: &Mesh) -> Result<Router, Invalid> {
    let front = Front {
        cart: mesh.service("shop/cart")?,
        catalog: mesh.service("shop/catalog")?.timeout(Duration::from_millis(250)),
        outside: reqwest::Client::new(),
    };
    Ok(Router::new()
        .route("/items/{item}", get(item))
        .route("/carts/{customer}/{item}", post(add))
        .route("/import", post(import))
        .route("/backup", post(backup))
        .with_state(front))
}

/// Of an HTTP service. Without a response of it, the fault is the response: 504 for a timeout, and so on.
async fn item(
    State(front): State<Front>,
    Path(item): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    // The calls belong to the trace of the request.
    let catalog = match SpanContext::read(&headers) {
        Some(parent) => front.catalog.within(parent),
        None => front.catalog,
    };
    let request = Request::get(format!("/items/{item}")).body(Body::empty());
    Ok(catalog.send(request.map_err(invalid)?).await?.into_response())
}

/// By a generated client: the handle stands where the channel stood.
async fn add(State(front): State<Front>, Path((customer, item)): Path<(u64, String)>) -> Response {
    let mut cart = CartClient::new(front.cart.key(customer));
    match cart.add(AddRequest { customer, item }).await {
        Ok(response) => response.into_inner().items.to_string().into_response(),
        Err(status) => {
            tracing::warn!(%status, "the cart is not available");
            (StatusCode::BAD_GATEWAY, status.message().to_owned()).into_response()
        }
    }
}

/// Passes what reqwest receives on to a service, without reading it first.
async fn import(State(front): State<Front>, url: String) -> Result<Response, Response> {
    let received = front.outside.get(url).send().await.map_err(bad_gateway)?;
    let body: reqwest::Body = received.into();
    let request = Request::post("/items").body(body).map_err(|error| invalid(error).into_response())?;
    front.catalog.send(request).await.map(IntoResponse::into_response).map_err(IntoResponse::into_response)
}

/// And the other way round.
async fn backup(State(front): State<Front>, url: String) -> Result<String, Response> {
    let request = Request::get("/items").body(Body::empty());
    let request = request.map_err(|error| invalid(error).into_response())?;
    let items = front.catalog.send(request).await.map_err(IntoResponse::into_response)?;
    let body = reqwest::Body::wrap(items.into_body());
    let sent = front.outside.post(url).body(body).send().await.map_err(bad_gateway)?;
    sent.text().await.map_err(bad_gateway)
}

fn invalid(error: http::Error) -> Fault {
    Fault::new(fairmesh_client::FaultKind::Invalid, "the path is invalid").caused_by(error)
}

fn bad_gateway(error: reqwest::Error) -> Response {
    (StatusCode::BAD_GATEWAY, error.to_string()).into_response()
}
