//! Calls the server that holds a key, in a role: `sharded_client KEY [ROLE]`.

use std::{env, error::Error, process::ExitCode};

use fairmesh_client::{Body, Mesh, ShardKey};
use http::Request;
use http_body_util::BodyExt;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let mesh = Mesh::connect().await?;
    let called = call(&mesh).await;
    // Servers that leave need not wait for a program that has ended.
    mesh.close().await;
    called
}

async fn call(mesh: &Mesh) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let key: ShardKey = env::args().nth(1).ok_or("usage: sharded_client KEY [ROLE]")?.parse()?;
    let mut cart = mesh.service("examples/cart")?.key(key);
    // Roles are words of the service's own. Without one, any copy of the shard may answer.
    if let Some(role) = env::args().nth(2) {
        cart = cart.role(role)?;
    }

    let answer = cart.send(Request::get("/").body(Body::empty())?).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    println!("{status}: {}", String::from_utf8_lossy(&body).trim_end());
    // A server that refuses is no error of the mesh, but it is one of this program.
    Ok(if status.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
