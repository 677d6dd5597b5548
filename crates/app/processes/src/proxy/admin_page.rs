//! Reads the admin pages of a running proxy.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use clap::Args;
use fairmesh_console::failure::Failure;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use tokio::time::timeout;

/// Timeout for reading a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a page. Pages about thousands of services are smaller.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// Selects the proxy.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The admin port of the proxy.
    #[arg(long = "admin", value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    pub address: SocketAddr,
}

/// Reads a page and parses it as JSON.
pub async fn page(admin: SocketAddr, path: &str) -> Result<Value, Failure> {
    let failed = |why: &dyn std::fmt::Display| no_response(admin, why);
    let read = async {
        let body = Limited::new(open(admin, path).await?, MAX_PAGE_BYTES).collect().await;
        Ok::<Bytes, Failure>(body.map_err(|error| failed(&error))?.to_bytes())
    };
    let read = timeout(PAGE_TIMEOUT, read)
        .await
        .map_err(|_| failed(&format!("no response within {PAGE_TIMEOUT:?}")))?;
    serde_json::from_slice(&read?).map_err(|error| failed(&error))
}

/// Opens the body of a page, to be read as it arrives.
pub async fn open(admin: SocketAddr, path: &str) -> Result<Incoming, Failure> {
    let failed = |why: &dyn std::fmt::Display| no_response(admin, why);
    let uri = format!("http://{admin}{path}").parse().map_err(|error| failed(&error))?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = timeout(PAGE_TIMEOUT, client.get(uri))
        .await
        .map_err(|_| failed(&format!("no response within {PAGE_TIMEOUT:?}")))?
        .map_err(|error| if error.is_connect() { nothing_listens(admin) } else { failed(&error) })?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    // The body explains the error, such as that the service was not called.
    let body = Limited::new(answer.into_body(), MAX_PAGE_BYTES).collect().await;
    let text =
        body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned()).unwrap_or_default();
    Err(Failure::failed(format!("the proxy at {admin} answered {status}: {text}")))
}

/// The error of a process that listens and sends no page.
fn no_response(admin: SocketAddr, why: &dyn std::fmt::Display) -> Failure {
    Failure::failed_with(
        format!("no proxy responds at {admin}: {why}"),
        "check which process listens there, and give the --admin address of the proxy",
    )
}

fn nothing_listens(admin: SocketAddr) -> Failure {
    Failure::failed_with(
        format!("no proxy responds at {admin}: nothing accepts connections there"),
        "start it with 'fairmesh proxy', or give the address that its --admin has with --admin; a proxy with '--admin none' has no pages",
    )
}
