//! A client of collectors that take spans over mutual TLS. How a connection proves the identity of this process is up to
//! the owner of the exporter.

use std::{future::Future, io, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::collector::{ExportError, error_chain};

/// Port of OTLP over HTTP.
const DEFAULT_PORT: u16 = 4318;

/// A connection over TLS.
pub trait SecuredStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> SecuredStream for T {}

/// Opens a connection to a host and port that proves the host, and shows the identity of this process.
pub type SecuredConnect = Arc<dyn Fn(String, u16) -> Connecting + Send + Sync>;

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn SecuredStream>>> + Send>>;

/// Sends requests over one connection, which is opened again after it has ended.
pub(crate) struct SecuredClient {
    /// `None` if this process has no identity.
    connect: Option<SecuredConnect>,
    connection: Option<http1::SendRequest<Full<Bytes>>>,
}

impl SecuredClient {
    pub(crate) fn new(connect: Option<SecuredConnect>) -> Self {
        Self { connect, connection: None }
    }

    /// Sends a request to the authority of its URI.
    pub(crate) async fn request(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ExportError> {
        let uri = std::mem::take(request.uri_mut());
        let authority = uri.authority().and_then(|one| HeaderValue::from_str(one.as_str()).ok());
        request.headers_mut().extend(authority.map(|authority| (header::HOST, authority)));
        let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        *request.uri_mut() = path.parse().unwrap_or_default();
        // Taken out, so that a cancelled request does not leave a connection in an unknown state.
        let mut connection = match self.connection.take().filter(|open| !open.is_closed()) {
            Some(open) => open,
            None => self.open(&uri).await?,
        };
        let failed = |error: hyper::Error| ExportError::Retryable(error_chain(&error));
        connection.ready().await.map_err(failed)?;
        let response = connection.send_request(request).await.map_err(failed)?;
        self.connection = Some(connection);
        Ok(response)
    }

    async fn open(&self, uri: &Uri) -> Result<http1::SendRequest<Full<Bytes>>, ExportError> {
        let Some(connect) = &self.connect else {
            return Err(ExportError::Permanent("this process has no identity to show over https".to_owned()));
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let stream = connect(host, uri.port_u16().unwrap_or(DEFAULT_PORT)).await;
        let stream = stream.map_err(|error| ExportError::Retryable(error_chain(&error)))?;
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (connection, driver) = opened.map_err(|error| ExportError::Retryable(error_chain(&error)))?;
        // It ends with the connection, whose errors requests report.
        tokio::spawn(driver);
        Ok(connection)
    }
}
