//! The first program of README, word by word: `tests/readme.rs` compares the two.

use fairmesh_client::{Body, Mesh};

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match call().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}"); // the fault, its cause, and a remedy
            std::process::ExitCode::FAILURE
        }
    }
}

async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mesh = Mesh::connect().await?; // the agent of this machine, or FAIRMESH_AGENT
    let hello = mesh.service("shop/hello")?;
    let response = hello.send(http::Request::get("/").body(Body::empty())?).await?;
    println!("{}", response.status());
    mesh.close().await; // servers that leave need not wait for a program that has ended
    Ok(())
}
