//! How to add Fairmesh to an existing gRPC server: `grpc_server [ADDRESS]`. What is new in it is marked.

use std::{env, error::Error, process::ExitCode};

use fairmesh_client::Protocol;
use fairmesh_server::{MeshServer, incoming, terminated};
use greeter::{
    GreetReply, GreetRequest,
    greeter_server::{Greeter, GreeterServer},
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, transport::Server};

mod greeter {
    #![allow(unreachable_pub, clippy::too_many_lines, reason = "generated")]
    tonic::include_proto!("greeter");
}

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn greet(&self, request: Request<GreetRequest>) -> Result<Response<GreetReply>, Status> {
        let text = format!("good day, {}", request.into_inner().name);
        Ok(Response::new(GreetReply { text }))
    }
}

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
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8002")).await?;
    let address = listener.local_addr()?;

    // New: be found as examples/greeter, and leave in good order at SIGTERM.
    let member = MeshServer::builder("examples/greeter").protocol(Protocol::Grpc).listener(&listener)?;
    let member = member.start().await?;
    member.drain_on(terminated());
    println!("serving on {address}");

    let serving = Server::builder()
        .layer(member.layer()) // New: counts calls and reports load with each answer.
        .add_service(GreeterServer::new(Polite))
        // New: ends once callers have moved and calls are done.
        .serve_with_incoming_shutdown(incoming(listener, &member), member.draining());
    tokio::select! {
        ended = serving => ended?,
        () = member.gone() => {} // New: endless streams do not delay it beyond the drain deadline.
    }
    member.shutdown().await; // New: out of the registry.
    Ok(())
}
