//! Pages of processes, with their status and date.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::timeout;

/// Timeout for reading a page.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a page.
const MAX_BYTES: usize = 1 << 20;

/// A fetched page.
pub(super) struct Page {
    pub(super) status: StatusCode,
    /// The `date` header of the response.
    pub(super) date: Option<String>,
    pub(super) body: String,
}

/// Whether something listens, and speaks HTTP.
pub(super) enum Fetched {
    Page(Page),
    /// No process listens at the address.
    Refused,
    /// Something listens but sends nothing: a suspended or overloaded mesh process, or another program.
    Silent,
    /// Something listens, but does not respond like a mesh process.
    Foreign,
}

/// Reads a page.
pub(super) async fn fetch(address: SocketAddr, path: &str) -> Fetched {
    let Ok(uri) = format!("http://{address}{path}").parse() else { return Fetched::Foreign };
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let read = async {
        let response = match client.get(uri).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Fetched::Refused,
            Err(_) => return Fetched::Foreign,
        };
        let status = response.status();
        let date =
            response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        match Limited::new(response.into_body(), MAX_BYTES).collect().await {
            Ok(body) => {
                let body = String::from_utf8_lossy(&body.to_bytes()).trim().to_owned();
                Fetched::Page(Page { status, date, body })
            }
            Err(_) => Fetched::Foreign,
        }
    };
    timeout(TIMEOUT, read).await.unwrap_or(Fetched::Silent)
}
