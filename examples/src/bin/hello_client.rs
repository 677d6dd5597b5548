//! Calls `examples/hello` by its name: `hello_client [NUMBER OF CALLS]`.

use std::{env, error::Error, process::ExitCode};

use fairmesh_client::{Body, Mesh};
use http::Request;
use http_body_util::BodyExt;

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

async fn call() -> Result<(), Box<dyn Error + Send + Sync>> {
    let calls: u32 = env::args().nth(1).map_or(Ok(1), |text| text.parse())?;

    // One mesh for a program. The agent is at FAIRMESH_AGENT, or at its usual socket.
    let mesh = Mesh::connect().await?;
    let hello = mesh.service("examples/hello")?;

    for _ in 0..calls {
        // The servers, the time limit and the retries come from Fairmesh; the request names only what is asked.
        let answer = hello.send(Request::get("/").body(Body::empty())?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        print!("{status}: {}", String::from_utf8_lossy(&body));
    }
    // Servers that leave need not wait for a program that has ended.
    mesh.close().await;
    Ok(())
}
