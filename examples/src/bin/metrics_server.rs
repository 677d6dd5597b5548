//! An axum program that calls `examples/hello`, and has the library's metrics on a page of its own for Prometheus:
//! `metrics_server [ADDRESS]`.

use std::{env, error::Error, fmt::Write as _, process::ExitCode};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use fairmesh_client::{Body, Fault, Mesh, ServiceHandle, observe::Metric};
use fairmesh_server::terminated;
use http::{Request, header::CONTENT_TYPE};
use tokio::net::TcpListener;

/// The mesh, and the services that this program calls.
#[derive(Clone)]
struct Front {
    mesh: Mesh,
    hello: ServiceHandle,
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
    let mesh = Mesh::connect().await?;
    let front = Front { hello: mesh.service("examples/hello")?, mesh: mesh.clone() };
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:8004")).await?;
    println!("serving on {}", listener.local_addr()?);
    let app = Router::new().route("/", get(hello)).route("/metrics", get(metrics)).with_state(front);
    axum::serve(listener, app).with_graceful_shutdown(terminated()).await?;
    // Servers that leave need not wait for a program that has ended.
    mesh.close().await;
    Ok(())
}

async fn hello(State(front): State<Front>) -> Result<impl IntoResponse, Fault> {
    front.hello.send(Request::new(Body::empty())).await
}

/// Read when Prometheus asks: the library counts anyway. For OpenTelemetry or the crate `metrics`, set their instruments from
/// the same numbers.
async fn metrics(State(front): State<Front>) -> impl IntoResponse {
    let mut page = String::new();
    for metric in front.mesh.stats().metrics() {
        write_metric(&mut page, &metric, "");
    }
    // A program with several services writes one line of each below the same head.
    for metric in front.hello.stats().metrics() {
        write_metric(&mut page, &metric, "{service=\"examples/hello\"}");
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}

fn write_metric(page: &mut String, metric: &Metric, labels: &str) {
    let Metric { name, value, .. } = metric;
    let kind = if metric.is_counter() { "counter" } else { "gauge" };
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "# HELP {name} See Stats of fairmesh-client.\n# TYPE {name} {kind}\n{name}{labels} {value}"
    );
}
