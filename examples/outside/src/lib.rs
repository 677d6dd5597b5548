//! Programs of a shop: a front in axum, which calls the cart in tonic and a catalog over HTTP, each by its name.

pub mod cart;
pub mod front;
