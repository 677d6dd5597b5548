//! How to add Fairmesh to an existing gRPC client: `grpc_client [NAME]`. The handle stands where the channel stood.

use std::{env, error::Error, process::ExitCode};

use fairmesh_client::Mesh;
use greeter::{GreetRequest, greeter_client::GreeterClient};

mod greeter {
    #![allow(unreachable_pub, clippy::too_many_lines, reason = "generated")]
    tonic::include_proto!("greeter");
}

#[tokio::main]
async fn main() -> ExitCode {
    match call().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn call() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).unwrap_or_else(|| "you".into());

    let mesh = Mesh::connect().await?;
    // Before: GreeterClient::connect("http://greeter:8002").await?
    let mut client = GreeterClient::new(mesh.service("examples/greeter")?);

    // Deadlines, retries and errors are as every tonic program knows them: a `Status`.
    let reply = client.greet(GreetRequest { name }).await?.into_inner();
    println!("{}", reply.text);
    // Servers that leave need not wait for a program that has ended.
    mesh.close().await;
    Ok(())
}
