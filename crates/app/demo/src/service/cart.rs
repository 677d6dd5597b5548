//! The sharded store of carts. A primary writes and copies to its secondary, which serves reads.
//!
//! Carts are kept in memory and copied without waiting; a real shop would use a database.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    response::IntoResponse,
    routing::get,
};
use fairmesh_client::Mesh;
use fairmesh_model::{KeyRange, ShardId};
use fairmesh_server::ServerBuilder;
use serde_json::json;
use tonic::{Request, Response, Status};

use super::{DemoRegion, REGION_HEADER};
use crate::shop_protocol::{
    AddRequest, CartContent, DumpRequest, DumpResponse, GetRequest, Replicated,
    cart_client::CartClient,
    cart_server::{Cart, CartServer},
};

/// Maximum number of items in a cart. Older ones are dropped, so that the demo may run forever.
const MAX_ITEMS: usize = 20;

/// Timeout of calls to another server of the store.
const PEER_TIMEOUT: Duration = Duration::from_secs(1);

/// The carts of this server.
#[derive(Debug)]
pub(super) struct Carts {
    mesh: Mesh,
    place: DemoRegion,
    carts: Mutex<HashMap<u64, Vec<String>>>,
}

/// Fetches the carts of a shard from its previous holder before this server serves the shard.
pub(super) fn take_over_shards(server: ServerBuilder, carts: Arc<Carts>) -> ServerBuilder {
    server.on_shard_start(move |_shard: ShardId, range: KeyRange| {
        let carts = carts.clone();
        async move {
            // In a new shop there is no previous holder.
            if let Err(status) = carts.fetch(range).await {
                tracing::info!(%range, %status, "starting the shard with no carts");
            }
            Ok(())
        }
    })
}

/// The gRPC service, and a page per cart for programs without gRPC.
pub(super) fn routes(carts: Arc<Carts>) -> Router {
    let page = Router::new().route("/carts/{customer}", get(page)).with_state(carts.clone());
    tonic::service::Routes::new(CartServer::from_arc(carts)).into_axum_router().merge(page)
}

async fn page(State(carts): State<Arc<Carts>>, Path(customer): Path<u64>) -> impl IntoResponse {
    let items = carts.carts().get(&customer).cloned().unwrap_or_default();
    ([(REGION_HEADER, carts.place.name)], Json(json!({ "customer": customer, "items": items })))
}

impl Carts {
    /// A server without carts.
    pub(super) fn new(mesh: Mesh, place: DemoRegion) -> Self {
        Self { mesh, place, carts: Mutex::default() }
    }

    fn carts(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Vec<String>>> {
        self.carts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, key: u128, role: &str) -> Result<CartClient<fairmesh_client::ServiceHandle>, Status> {
        let handle =
            self.mesh.service("shop/cart").and_then(|cart| cart.key(key).timeout(PEER_TIMEOUT).role(role));
        handle.map(CartClient::new).map_err(|e| Status::internal(e.to_string()))
    }

    async fn fetch(&self, range: KeyRange) -> Result<(), Status> {
        let bound = |key: u128| u64::try_from(key).unwrap_or(u64::MAX);
        let request = DumpRequest { first: bound(range.first.0), last: bound(range.last.0) };
        let dump = self.client(range.first.0, "primary")?.dump(request).await?.into_inner();
        self.carts().extend(dump.carts.into_iter().map(|cart| (cart.customer, cart.items)));
        Ok(())
    }

    fn answer<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response
            .metadata_mut()
            .insert(REGION_HEADER, tonic::metadata::MetadataValue::from_static(self.place.name));
        response
    }
}

#[tonic::async_trait]
impl Cart for Carts {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<CartContent>, Status> {
        let AddRequest { customer, item } = request.into_inner();
        let items = {
            let mut carts = self.carts();
            let items = carts.entry(customer).or_default();
            items.push(item);
            let old = items.len().saturating_sub(MAX_ITEMS);
            items.drain(..old);
            items.clone()
        };
        let content = CartContent { customer, items };
        let mut secondary = self.client(customer.into(), "secondary")?;
        let copy = content.clone();
        tokio::spawn(async move {
            if let Err(status) = secondary.replicate(copy).await {
                tracing::debug!(customer, %status, "the secondary lags");
            }
        });
        Ok(self.answer(content))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<CartContent>, Status> {
        let customer = request.into_inner().customer;
        let items = self.carts().get(&customer).cloned().unwrap_or_default();
        Ok(self.answer(CartContent { customer, items }))
    }

    async fn replicate(&self, request: Request<CartContent>) -> Result<Response<Replicated>, Status> {
        let CartContent { customer, items } = request.into_inner();
        self.carts().insert(customer, items);
        Ok(self.answer(Replicated {}))
    }

    async fn dump(&self, request: Request<DumpRequest>) -> Result<Response<DumpResponse>, Status> {
        let DumpRequest { first, last } = request.into_inner();
        let content = |(customer, items): (&u64, &Vec<String>)| CartContent {
            customer: *customer,
            items: items.clone(),
        };
        let carts = self.carts();
        let inside = carts.iter().filter(|(customer, _)| (first..=last).contains(customer));
        Ok(self.answer(DumpResponse { carts: inside.map(content).collect() }))
    }
}
