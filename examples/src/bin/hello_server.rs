//! An HTTP server that callers find by the name `examples/hello`: `hello_server [ADDRESS]`.

use std::{env, error::Error, process::ExitCode};

use axum::{Router, routing::get};
use fairmesh_client::Protocol;
use fairmesh_server::{MeshServer, serve_http};
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
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8001")).await?;
    let address = listener.local_addr()?;

    // Registers through this machine's agent and renews the lease from now on. Naming the protocol declares the service,
    // in case `fairmesh apply` has not done so.
    let server =
        MeshServer::builder("examples/hello").protocol(Protocol::Http1).listener(&listener)?.start().await?;
    println!("serving on {address}");

    let app = Router::new().route("/", get(move || async move { format!("hello from {address}\n") }));
    // Until SIGTERM or Ctrl-C: then callers move away first, calls under way finish, and this returns.
    serve_http(listener, app, &server).await?;
    Ok(())
}
