use std::{fmt, str::FromStr};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
    uri::{PathAndQuery, Scheme},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tonic::{Code, Extensions, client::Grpc, metadata::MetadataMap, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse},
    secured_client::{SecuredClient, SecuredConnect},
    v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
};

/// Default path of traces in OTLP/HTTP.
const DEFAULT_PATH: &str = "/v1/traces";
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// Address of a collector: `http://HOST:PORT` for OTLP/HTTP, `grpc://HOST:PORT` for OTLP/gRPC, or `https://HOST:PORT` for
/// OTLP/HTTP to a control plane, over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    protocol: Protocol,
    uri: Uri,
    /// Headers sent with every batch.
    headers: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Https,
    Grpc,
}

/// Error: a text is not the address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a collector; write http://HOST:4318 for OTLP over HTTP, grpc://HOST:4317, or https://HOST:4318 for a control plane"
)]
pub struct InvalidCollector(String);

/// A client of a collector.
pub(crate) enum ExportClient {
    Http(Box<Client<HttpConnector, Full<Bytes>>>, Uri, HeaderMap),
    Https(SecuredClient, Uri, HeaderMap),
    Grpc(Box<Grpc<Channel>>, HeaderMap),
}

/// An OTLP export request.
pub(crate) trait ExportRequest: prost::Message + Clone + 'static {
    type Response: prost::Message + Default + 'static;

    /// Path of the gRPC method.
    const METHOD: &'static str;

    /// Returns the number of spans or data points that the collector rejected.
    fn rejected(response: &Self::Response) -> i64;
}

impl ExportRequest for ExportTraceServiceRequest {
    type Response = ExportTraceServiceResponse;

    const METHOD: &'static str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

    fn rejected(response: &Self::Response) -> i64 {
        response.partial_success.as_ref().map_or(0, |partial| partial.rejected_spans)
    }
}

impl ExportRequest for ExportMetricsServiceRequest {
    type Response = ExportMetricsServiceResponse;

    const METHOD: &'static str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

    fn rejected(response: &Self::Response) -> i64 {
        response.partial_success.as_ref().map_or(0, |partial| partial.rejected_data_points)
    }
}

/// Reason why an export failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// A failure after which a retry may succeed.
    #[error("{0}")]
    Retryable(String),
    /// A failure that a retry would repeat.
    #[error("{0}")]
    Permanent(String),
}

impl FromStr for Collector {
    type Err = InvalidCollector;

    fn from_str(text: &str) -> Result<Self, InvalidCollector> {
        let wrong = || InvalidCollector(text.to_owned());
        let (protocol, rest) = match text.split_once("://").ok_or_else(wrong)? {
            ("http", rest) => (Protocol::Http, rest),
            ("https", rest) => (Protocol::Https, rest),
            ("grpc", rest) => (Protocol::Grpc, rest),
            _ => return Err(wrong()),
        };
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(wrong)?.clone();
        let path = match (protocol, uri.path()) {
            (Protocol::Http | Protocol::Https, "/") => DEFAULT_PATH,
            (Protocol::Http | Protocol::Https, path) => path,
            (Protocol::Grpc, "/") => "/",
            (Protocol::Grpc, _) => return Err(wrong()),
        };
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query(path);
        Ok(Self { protocol, uri: uri.build().map_err(|_| wrong())?, headers: HeaderMap::new() })
    }
}

impl Collector {
    /// Adds headers that are sent with every batch. Over gRPC they are sent as metadata.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.headers.extend(headers);
        self
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        match self.protocol {
            Protocol::Http => write!(f, "http://{authority}{}", self.uri.path()),
            Protocol::Https => write!(f, "https://{authority}{}", self.uri.path()),
            Protocol::Grpc => write!(f, "grpc://{authority}"),
        }
    }
}

impl ExportClient {
    /// Creates a client that connects on first use; to `https` by `connect`.
    pub(crate) fn new(collector: &Collector, connect: Option<SecuredConnect>) -> Self {
        let (uri, headers) = (collector.uri.clone(), collector.headers.clone());
        match collector.protocol {
            Protocol::Http => {
                Self::Http(Box::new(Client::builder(TokioExecutor::new()).build_http()), uri, headers)
            }
            Protocol::Https => Self::Https(SecuredClient::new(connect), uri, headers),
            Protocol::Grpc => {
                let channel = Channel::builder(uri).connect_lazy();
                Self::Grpc(Box::new(Grpc::new(channel)), headers)
            }
        }
    }

    /// Exports a batch. Returns the number of rejected spans or data points.
    pub(crate) async fn send<R: ExportRequest>(&mut self, batch: &R) -> Result<u64, ExportError> {
        let response = match self {
            Self::Http(client, uri, headers) => {
                let response = client.request(post_request(batch, uri, headers)).await;
                let response = response.map_err(|error| ExportError::Retryable(error_chain(&error)))?;
                read_response::<R::Response>(response).await?
            }
            Self::Https(client, uri, headers) => {
                let response = client.request(post_request(batch, uri, headers)).await?;
                read_response::<R::Response>(response).await?
            }
            Self::Grpc(client, headers) => {
                let metadata = MetadataMap::from_headers(headers.clone());
                let request = tonic::Request::from_parts(metadata, Extensions::default(), batch.clone());
                let (path, codec) = (PathAndQuery::from_static(R::METHOD), ProstCodec::default());
                client.ready().await.map_err(|error| ExportError::Retryable(error_chain(&error)))?;
                let response: tonic::Response<R::Response> =
                    client.unary(request, path, codec).await.map_err(of_status)?;
                response.into_inner()
            }
        };
        Ok(u64::try_from(R::rejected(&response)).unwrap_or(0))
    }
}

fn post_request(batch: &impl prost::Message, uri: &Uri, headers: &HeaderMap) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(batch.encode_to_vec().into()));
    (*request.method_mut(), *request.uri_mut()) = (Method::POST, uri.clone());
    request.headers_mut().clone_from(headers);
    let kind = HeaderValue::from_static("application/x-protobuf");
    request.headers_mut().insert(header::CONTENT_TYPE, kind);
    request
}

async fn read_response<T: prost::Message + Default>(response: Response<Incoming>) -> Result<T, ExportError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    match status {
        // The body only reports a partial success.
        StatusCode::OK => Ok(body.ok().and_then(|body| T::decode(body.to_bytes()).ok()).unwrap_or_default()),
        // Status codes that OTLP declares retryable.
        _ if matches!(status.as_u16(), 429 | 502..=504) => {
            Err(ExportError::Retryable(format!("the collector responds with {status}")))
        }
        _ => Err(ExportError::Permanent(format!("the collector responds with {status}"))),
    }
}

fn of_status(status: tonic::Status) -> ExportError {
    let text = format!("the collector responds with {:?}: {}", status.code(), status.message());
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        | Code::ResourceExhausted => ExportError::Retryable(text),
        _ => ExportError::Permanent(text),
    }
}

pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_address_round_trips() {
        for (text, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://otel.internal:4318/custom/traces", "http://otel.internal:4318/custom/traces"),
            ("grpc://[::1]:4317", "grpc://[::1]:4317"),
            ("https://control:4318", "https://control:4318/v1/traces"),
        ] {
            let collector: Collector = text.parse().unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(shown.parse::<Collector>().unwrap(), collector);
        }
        for wrong in ["", "127.0.0.1:4318", "ftp://x", "http://", "grpc://x/y", "http://a b", "http://u:p@x"]
        {
            assert!(wrong.parse::<Collector>().is_err(), "{wrong}");
        }
    }
}
