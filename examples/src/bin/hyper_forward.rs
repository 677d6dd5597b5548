//! A program of hyper that forwards what it receives to `examples/hello`: `hyper_forward [ADDRESS]`.

use std::{convert::Infallible, env, error::Error, process::ExitCode};

use fairmesh_client::{Body, Mesh, ServiceHandle};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
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
    let hello = Mesh::connect().await?.service("examples/hello")?;
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8002")).await?;
    println!("serving on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let hello = hello.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| forward(hello.clone(), request));
            // Ends with an error where the client left; nothing else waits for it.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Neither body is read first: hyper's is sent as it arrives, and hyper takes that of the response.
async fn forward(hello: ServiceHandle, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(hello.send(request).await.unwrap_or_else(|fault| {
        eprintln!("{fault}");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = fault.kind().http_status();
        response
    }))
}
