//! `shop-front front ADDRESS` or `shop-front cart ADDRESS`: one of the programs, as a member of the mesh of this machine.

use std::env;

use anyhow::Context as _;
use fairmesh_client::Mesh;
use fairmesh_server::{Protocol, MeshServer, incoming, serve_http, terminated};
use shop_front::{
    cart::{Carts, proto::cart_server::CartServer},
    front,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let mut arguments = env::args().skip(1);
    let (Some(program), Some(address)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: shop-front front|cart ADDRESS");
    };
    // Bound before it is registered: a second copy must not take over the registration.
    let listener =
        TcpListener::bind(&address).await.with_context(|| format!("cannot listen on {address}"))?;
    match program.as_str() {
        "front" => serve_front(listener).await,
        "cart" => serve_cart(listener).await,
        other => anyhow::bail!("there is no program {other}"),
    }
}

async fn serve_front(listener: TcpListener) -> anyhow::Result<()> {
    let mesh = Mesh::connect().await?;
    let server = MeshServer::builder("shop/front").protocol(Protocol::Http1).listener(&listener)?.start().await?;
    serve_http(listener, front::router(&mesh)?, &server).await?;
    Ok(())
}

async fn serve_cart(listener: TcpListener) -> anyhow::Result<()> {
    let server = MeshServer::builder("shop/cart").protocol(Protocol::Grpc).listener(&listener)?.start().await?;
    server.drain_on(terminated());
    let serving = tonic::transport::Server::builder()
        .layer(server.layer())
        .add_service(CartServer::new(Carts::default()))
        .serve_with_incoming_shutdown(incoming(listener, &server), server.draining());
    tokio::select! {
        ended = serving => ended?,
        () = server.gone() => {}
    }
    server.shutdown().await;
    Ok(())
}
