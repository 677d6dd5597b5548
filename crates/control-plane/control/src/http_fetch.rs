//! Fetches keys and roots that other servers publish over HTTP.

use std::{error::Error, fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use axum::http::{Request, StatusCode, Uri, header};
use bytes::Bytes;
use fairmesh_identity::WebRoots;
use fairmesh_model::{Invalid, is_of_link};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    task::spawn_blocking,
    time::timeout,
};

/// Maximum size of a JWKS in bytes: a hundred keys with their certificates.
pub const MAX_JWKS_DOCUMENT: usize = 512 * 1024;

/// Time limit of a fetch, from the name lookup to the last byte.
const DEADLINE: Duration = Duration::from_secs(5);

/// URL of keys or roots. It must use TLS or lead to this machine; otherwise the content could be replaced in transit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl {
    is_tls: bool,
    host: String,
    port: u16,
    /// Path, including the query.
    path: String,
}

type Failed = Box<dyn Error + Send + Sync>;

/// Why a document cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server cannot be reached or verified, or its response is not the document.
    #[error("{url}: {problem}")]
    Failed {
        /// The URL, without its query.
        url: String,
        /// What failed, and why.
        problem: Failed,
    },
    /// The response was not complete in time.
    #[error("{url}: no complete response within {} s", DEADLINE.as_secs())]
    Overdue {
        /// The URL, without its query.
        url: String,
    },
}

/// Fetches the document at a URL, of at most `most` bytes. The server is verified by the authorities in a
/// file, or by the system's. Redirects are not followed: they could lead to plaintext.
///
/// # Errors
/// [`FetchError`] unless there is a complete response with status 200.
pub async fn fetch(url: &WebUrl, ca_file: Option<PathBuf>, most: usize) -> Result<Bytes, FetchError> {
    match timeout(DEADLINE, connect_and_get(url, ca_file, most)).await {
        Ok(Ok(document)) => Ok(document),
        Ok(Err(problem)) => Err(FetchError::Failed { url: url.to_string(), problem }),
        Err(_) => Err(FetchError::Overdue { url: url.to_string() }),
    }
}

async fn connect_and_get(url: &WebUrl, ca_file: Option<PathBuf>, most: usize) -> Result<Bytes, Failed> {
    let stream = connect(url).await?;
    match url.is_tls {
        true => {
            let roots = spawn_blocking(move || WebRoots::read(ca_file.as_deref())).await??;
            exchange(url, roots.connect(&url.host, stream).await?, most).await
        }
        false => exchange(url, stream, most).await,
    }
}

/// Connects to an address of the host that is not link-local. Otherwise the owner of a host name could make
/// this process query a metadata service.
async fn connect(url: &WebUrl) -> Result<TcpStream, Failed> {
    let (of_link, others): (Vec<_>, Vec<_>) =
        lookup_host((url.host.as_str(), url.port)).await?.partition(|address| is_of_link(address.ip()));
    match of_link.first() {
        Some(address) if others.is_empty() => Err(refused_address(address.ip()).into()),
        _ => Ok(TcpStream::connect(&others[..]).await?),
    }
}

fn refused_address(address: IpAddr) -> String {
    format!("{address} is for services of this machine or its link, such as the credentials of a cloud")
}

async fn exchange(
    url: &WebUrl,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    most: usize,
) -> Result<Bytes, Failed> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(&url.path)
        .header(header::HOST, format!("{}:{}", url.host, url.port))
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, crate::SOFTWARE)
        .body(Empty::<Bytes>::new())?;
    let response = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("responds with the status {}", response.status().as_u16()).into());
        }
        Limited::new(response.into_body(), most).collect().await
    };
    // The connection is driven here, and ends when the response is complete.
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

impl FromStr for WebUrl {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = |problem: &str| {
            Invalid::new("", problem, "give a file, or a URL such as https://idp.example/keys")
        };
        let uri: Uri = text.parse().map_err(|_| invalid("is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("is not a URL of https")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("has a user"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if !is_tls && !is_loopback(&host) {
            return Err(invalid(
                "is of plaintext HTTP, so that others on the network could replace what it serves",
            ));
        }
        if let Some(address) = host.parse().ok().filter(|address| is_of_link(*address)) {
            return Err(invalid(&refused_address(address)));
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { is_tls, host, port, path })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        // The query is left out, since it may contain a secret.
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{host}:{}{path}", self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_link_local_and_metadata_addresses_are_refused() {
        for wrong in [
            "https://169.254.169.254/latest/meta-data",
            "https://[fe80::1]/keys",
            "https://[::ffff:169.254.169.254]/keys",
            "https://100.100.100.200/keys",
        ] {
            let error = wrong.parse::<WebUrl>().unwrap_err();
            assert!(error.problem.contains("such as the credentials of a cloud"), "{wrong}: {error:?}");
        }
        for right in ["https://idp.example/keys", "https://10.0.0.1:8443/keys", "http://127.0.0.1:80/keys"] {
            right.parse::<WebUrl>().unwrap();
        }
    }

    #[tokio::test]
    async fn web_host_resolving_to_link_local_address_is_not_contacted() {
        // Stands for a host name that resolves to this address.
        let url = WebUrl { is_tls: true, host: "169.254.169.254".into(), port: 443, path: "/".into() };
        let error = fetch(&url, None, 1024).await.unwrap_err().to_string();
        assert!(error.contains("such as the credentials of a cloud"), "{error}");
    }
}
