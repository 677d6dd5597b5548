//! Fetches keys over HTTP.

use std::{error::Error, path::PathBuf, time::Duration};

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use fairmesh_identity::WebRoots;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::spawn_blocking,
    time::timeout,
};

use super::{JwksUrl, key_source::MAX_DOCUMENT};

/// Time limit of a fetch, from the look-up of the name to the last byte.
const DEADLINE: Duration = Duration::from_secs(5);

type Failed = Box<dyn Error + Send + Sync>;

/// The document at a URL. Redirections are not followed: they could lead to plaintext.
pub(super) async fn get(url: &JwksUrl, ca_file: Option<PathBuf>) -> Result<Bytes, String> {
    match timeout(DEADLINE, connect_and_get(url, ca_file)).await {
        Ok(Ok(document)) => Ok(document),
        Ok(Err(error)) => Err(format!("{url}: {error}")),
        Err(_) => Err(format!("{url}: no complete response within {} s", DEADLINE.as_secs())),
    }
}

async fn connect_and_get(url: &JwksUrl, ca_file: Option<PathBuf>) -> Result<Bytes, Failed> {
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await?;
    match url.is_tls {
        true => {
            let roots = spawn_blocking(move || WebRoots::read(ca_file.as_deref())).await??;
            exchange(url, roots.connect(&url.host, stream).await?).await
        }
        false => exchange(url, stream).await,
    }
}

async fn exchange(
    url: &JwksUrl,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Bytes, Failed> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(&url.path)
        .header(header::HOST, format!("{}:{}", url.host, url.port))
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, crate::served_rib::SOFTWARE)
        .body(Empty::<Bytes>::new())?;
    let response = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("responds with the status {}", response.status().as_u16()).into());
        }
        Limited::new(response.into_body(), MAX_DOCUMENT).collect().await
    };
    // The connection is driven here, and ends with the response.
    let mut connection = std::pin::pin!(connection);
    let mut response = std::pin::pin!(response);
    let collected = tokio::select! {
        collected = &mut response => collected,
        ended = &mut connection => {
            ended?;
            response.await
        }
    };
    Ok(collected?.to_bytes())
}
