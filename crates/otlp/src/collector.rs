use std::{fmt, str::FromStr};

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prost::Message as _;
use tonic::{Code, transport::Channel};

use crate::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, trace_service_client::TraceServiceClient,
};

/// Where OTLP over HTTP takes traces unless somebody says otherwise.
const PATH: &str = "/v1/traces";
/// More than any collector has to say.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Who takes spans: `http://HOST:PORT`, by OTLP over HTTP, or `grpc://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    protocol: Protocol,
    uri: Uri,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Grpc,
}

/// Why a text is no collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no collector; write http://HOST:4318 for OTLP over HTTP, or grpc://HOST:4317")]
pub struct NoCollector(String);

/// A collector with the connections to it.
pub(crate) enum Channels {
    Http(Box<Client<HttpConnector, Full<Bytes>>>, Uri),
    Grpc(Box<TraceServiceClient<Channel>>),
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    /// It may be later.
    #[error("{0}")]
    NotNow(String),
    /// It never will be.
    #[error("{0}")]
    Never(String),
}

impl FromStr for Collector {
    type Err = NoCollector;

    fn from_str(text: &str) -> Result<Self, NoCollector> {
        let wrong = || NoCollector(text.to_owned());
        let (protocol, rest) = match text.split_once("://").ok_or_else(wrong)? {
            ("http", rest) => (Protocol::Http, rest),
            ("grpc", rest) => (Protocol::Grpc, rest),
            _ => return Err(wrong()),
        };
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(wrong)?.clone();
        let path = match (protocol, uri.path()) {
            (Protocol::Http, "/") => PATH,
            (Protocol::Http, path) => path,
            (Protocol::Grpc, "/") => "/",
            (Protocol::Grpc, _) => return Err(wrong()),
        };
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query(path);
        Ok(Self { protocol, uri: uri.build().map_err(|_| wrong())? })
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        match self.protocol {
            Protocol::Http => write!(f, "http://{authority}{}", self.uri.path()),
            Protocol::Grpc => write!(f, "grpc://{authority}"),
        }
    }
}

impl Channels {
    /// Connects when there is something to say.
    pub(crate) fn to(collector: &Collector) -> Self {
        let uri = collector.uri.clone();
        match collector.protocol {
            Protocol::Http => Self::Http(Box::new(Client::builder(TokioExecutor::new()).build_http()), uri),
            Protocol::Grpc => {
                let channel = Channel::builder(uri).connect_lazy();
                Self::Grpc(Box::new(TraceServiceClient::new(channel)))
            }
        }
    }

    /// Takes a batch there; how many of it were refused.
    pub(crate) async fn send(&mut self, batch: &ExportTraceServiceRequest) -> Result<u64, NotTaken> {
        let response = match self {
            Self::Http(client, uri) => post(client, uri, batch).await?,
            Self::Grpc(client) => client.export(batch.clone()).await.map_err(of_status)?.into_inner(),
        };
        let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}

async fn post(
    client: &Client<HttpConnector, Full<Bytes>>,
    uri: &Uri,
    batch: &ExportTraceServiceRequest,
) -> Result<ExportTraceServiceResponse, NotTaken> {
    let request = Request::post(uri.clone())
        .header(header::CONTENT_TYPE, "application/x-protobuf")
        .body(Full::new(batch.encode_to_vec().into()))
        .map_err(|error| NotTaken::Never(error.to_string()))?;
    let answer = client.request(request).await.map_err(|error| NotTaken::NotNow(words(&error)))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    match status {
        // What it says of parts that it did not take is all there is to read.
        StatusCode::OK => {
            let response =
                body.ok().and_then(|body| ExportTraceServiceResponse::decode(body.to_bytes()).ok());
            Ok(response.unwrap_or_default())
        }
        // As OTLP has it: those that are worth another try.
        _ if matches!(status.as_u16(), 429 | 502..=504) => {
            Err(NotTaken::NotNow(format!("it answers {status}")))
        }
        _ => Err(NotTaken::Never(format!("it answers {status}"))),
    }
}

fn of_status(status: tonic::Status) -> NotTaken {
    let text = format!("it answers {:?}: {}", status.code(), status.message());
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        | Code::ResourceExhausted => NotTaken::NotNow(text),
        _ => NotTaken::Never(text),
    }
}

fn words(error: &dyn std::error::Error) -> String {
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
    fn collectors_are_read_as_they_are_written() {
        for (text, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://otel.internal:4318/custom/traces", "http://otel.internal:4318/custom/traces"),
            ("grpc://[::1]:4317", "grpc://[::1]:4317"),
        ] {
            let collector: Collector = text.parse().unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(shown.parse::<Collector>().unwrap(), collector);
        }
        for wrong in
            ["", "127.0.0.1:4318", "https://x", "http://", "grpc://x/y", "http://a b", "http://u:p@x"]
        {
            assert!(wrong.parse::<Collector>().is_err(), "{wrong}");
        }
    }
}
