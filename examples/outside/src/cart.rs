//! The cart, in tonic.

use std::{collections::HashMap, sync::Mutex};

use tonic::{Request, Response, Status};

use self::proto::{AddRequest, AddResponse, cart_server};

/// The generated code.
pub mod proto {
    tonic::include_proto!("cart");
}

/// The carts that this server holds.
#[derive(Default)]
pub struct Carts(Mutex<HashMap<u64, Vec<String>>>);

#[tonic::async_trait]
impl cart_server::Cart for Carts {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddResponse>, Status> {
        let AddRequest { customer, item } = request.into_inner();
        let mut carts = self.0.lock().map_err(|_| Status::internal("a handler has panicked"))?;
        let cart = carts.entry(customer).or_default();
        cart.push(item);
        Ok(Response::new(AddResponse { items: cart.len() as u32 }))
    }
}
