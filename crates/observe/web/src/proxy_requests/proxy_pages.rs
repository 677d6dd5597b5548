//! Reads two admin pages of a proxy. Errors are texts for operators.

use std::{error::Error, iter, net::SocketAddr, time::Duration};

use axum::body::Bytes;
use fairmesh_model::ServiceName;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use tokio::time::timeout;

/// Timeout of a response, and of the body of the last requests.
const PAGE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of the last requests. A proxy keeps 128 of them.
const MAX_LAST_BYTES: usize = 4 << 20;
/// Maximum length of a line of a tap. Proxies cut off longer paths.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The last requests of a service with their decisions, newest first; none if the proxy was not called for it.
pub(super) async fn last(proxy: SocketAddr, service: &ServiceName) -> Result<Vec<Value>, String> {
    let response = open(proxy, &format!("/services/{service}/last?json")).await?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(Vec::new()),
        status => return Err(format!("responded with status {status}")),
    }
    let body = Limited::new(response.into_body(), MAX_LAST_BYTES).collect();
    let body = timeout(PAGE_TIMEOUT, body).await.map_err(|_| late())?;
    let body = body.map_err(|error| format!("its page cannot be read: {error}"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| "its page is not one of a proxy of this release".to_owned())
}

/// Gives `take` each line of a tap until the tap ends; returns why it ended.
pub(super) async fn tap(proxy: SocketAddr, service: &ServiceName, mut take: impl FnMut(&[u8])) -> String {
    let path = format!("/tap?service={}%2F{}", service.tenant, service.service);
    let mut body = match open(proxy, &path).await {
        Ok(response) if response.status() == StatusCode::OK => response.into_body(),
        Ok(response) => return format!("status {}", response.status()),
        Err(why) => return why,
    };
    let mut pending = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return "the connection was lost".to_owned() };
        pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            take(&line);
        }
        if pending.len() > MAX_LINE_BYTES {
            return "a line has no end".to_owned();
        }
    }
    "the proxy ended it".to_owned()
}

/// Opens a page, whose body is read as it arrives.
async fn open(proxy: SocketAddr, path: &str) -> Result<Response<Incoming>, String> {
    let uri = format!("http://{proxy}{path}").parse().map_err(|_| "has no such page".to_owned())?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = timeout(PAGE_TIMEOUT, client.get(uri)).await.map_err(|_| late())?;
    response.map_err(|error| format!("does not respond: {}", causes(&error)))
}

fn late() -> String {
    format!("does not respond within {PAGE_TIMEOUT:?}")
}

/// The text of an error and of its causes.
fn causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
