//! The other Rust blocks of the documentation, each between `BLOCK` and `END` in a function that has what the block takes for
//! granted. `readme.rs` compares them with what is printed.

use std::{error::Error, net::SocketAddr};

use cart::{
    GetRequest, GetResponse,
    cart_client::CartClient,
    cart_server::{Cart, CartServer},
};
use fairmesh_client::{Body, Mesh};
use http::Request;

mod cart {
    #![allow(unreachable_pub, clippy::too_many_lines, reason = "generated")]
    tonic::include_proto!("cart");
}

struct Carts;

#[tonic::async_trait]
impl Cart for Carts {
    async fn get(
        &self,
        request: tonic::Request<GetRequest>,
    ) -> Result<tonic::Response<GetResponse>, tonic::Status> {
        let GetRequest { customer } = request.into_inner();
        Ok(tonic::Response::new(GetResponse { items: vec![format!("tea for {customer}")] }))
    }
}

async fn a_call_by_name_key_and_role(request: Request<Body>) -> Result<(), Box<dyn Error + Send + Sync>> {
    // BLOCK
    let mesh = Mesh::connect().await?;
    let cart = mesh.service("shop/cart")?.key(618).role("secondary")?;
    let response = cart.send(request).await?; // or use it as a tower::Service, or under a tonic client
    // END
    drop(response);
    Ok(())
}

async fn the_mesh_of_a_test(address_of_the_tests_server: SocketAddr) -> Result<(), Box<dyn Error>> {
    // BLOCK
    let mesh = Mesh::fixed([("shop/hello", address_of_the_tests_server)]).await?;
    // END
    drop(mesh);
    Ok(())
}

async fn a_caller_over_grpc(
    mesh: Mesh,
    customer: u64,
    request: GetRequest,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // BLOCK
    let cart = mesh.service("shop/cart")?.key(customer);
    let mut client = CartClient::new(cart); // was: CartClient::connect("http://cart:50051").await?
    client.get(request).await?;
    // END
    Ok(())
}

async fn a_server_of_grpc(address: SocketAddr, store: Carts) -> Result<(), Box<dyn Error>> {
    // BLOCK
    use fairmesh_server::{MeshServer, Protocol, incoming, terminated}; // package fairmesh-server, beside fairmesh-client

    let listener = tokio::net::TcpListener::bind(address).await?; // first: a second copy must not take over the registration
    let server =
        MeshServer::builder("shop/cart").protocol(Protocol::Grpc).listener(&listener)?.start().await?;
    server.drain_on(terminated());
    let serving = tonic::transport::Server::builder()
        .layer(server.layer())
        .add_service(CartServer::new(store))
        .serve_with_incoming_shutdown(incoming(listener, &server), server.draining());
    tokio::select! {
        ended = serving => ended?,
        () = server.gone() => {}                            // the drain deadline passed with a stream still open
    }
    server.shutdown().await; // deregisters once no call is in flight
    // END
    Ok(())
}

async fn a_limit_of_concurrency(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    use fairmesh_server::MeshServer;
    // BLOCK
    let server = MeshServer::builder("shop/cart").address(address).at_most(200).start().await?; // or .adaptive()
    // END
    drop(server);
    Ok(())
}

async fn a_lookaside() -> Result<(), Box<dyn Error + Send + Sync>> {
    // BLOCK
    let mesh = Mesh::builder().lookaside("10.0.0.5:7420".parse()?).connect().await?;
    let cart = mesh.service("shop/cart")?.key(618);
    // END
    drop(cart);
    Ok(())
}

/// Compiles them all, and runs none: they need an agent, or addresses of other machines.
pub(crate) fn all() -> impl Sized {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    (
        a_call_by_name_key_and_role,
        the_mesh_of_a_test(nowhere),
        a_caller_over_grpc,
        a_server_of_grpc(nowhere, Carts),
        a_limit_of_concurrency(nowhere),
        a_lookaside(),
    )
}
