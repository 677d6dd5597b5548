//! One server of the sharded service `examples/cart`: `sharded_server INSTANCE [ADDRESS]`. Which shards it holds is said by
//! the shard map, in `sharded.yaml`.

use std::{env, error::Error, process::ExitCode};

use axum::{Router, routing::get};
use fairmesh_client::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use http::HeaderMap;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    // Fairmesh tells by `tracing` what a server should know: that it is registered, or that no shard is meant for it.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let instance = env::args().nth(1).ok_or("usage: sharded_server INSTANCE [ADDRESS]")?;
    let listener = TcpListener::bind(env::args().nth(2).as_deref().unwrap_or("127.0.0.1:0")).await?;
    let address = listener.local_addr()?;

    let server = MeshServer::builder("examples/cart")
        .protocol(Protocol::Http1)
        .instance(&instance)
        .listener(&listener)?
        // Here a real server reads the shard's data. No call for it comes before this has returned, also when a shard is
        // moved here while calls run.
        .on_shard_start(|shard, keys| async move {
            println!("loaded shard {shard} with keys {keys}");
            Ok(())
        })
        .on_shard_stop(|shard| async move {
            println!("dropped shard {shard}");
            Ok(())
        })
        .start()
        .await?;
    println!("serving on {address}");

    // Keys that belong elsewhere never get here: the layer sends their callers to the right server.
    let app = Router::new().route(
        "/",
        get(move |headers: HeaderMap| async move {
            let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("any");
            format!("{instance} as {} for key {}\n", header("x-fairmesh-role"), header("x-fairmesh-key"))
        }),
    );
    serve_http(listener, app, &server).await?;
    Ok(())
}
