//! Forwards requests to the local program.

use std::{net::SocketAddr, time::Duration};

use fairmesh_calls::{Body, BoxError, Fault, FaultKind, Protocol};
use fairmesh_edge::forward::{error_response, hop_by_hop};
use fairmesh_headers::grpc_content_type;
use fairmesh_http::h1;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version, header, uri::Scheme};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use crate::inbound::body::{ForwardedBody, ResponseBody};

/// Time limit of a connection to the program, which is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle timeout of connections to the program: shorter than that of any server, so that none is reused while it closes.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Receive window of a stream of the program, in bytes.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Receive window of a connection to the program, in bytes: more than all of its streams hold, so that a response that a
/// caller does not read stalls no other.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Forwards requests to the program.
#[derive(Clone)]
pub(crate) struct LocalForwarder {
    program: SocketAddr,
    client: Client<HttpConnector, ForwardedBody>,
    is_multiplexed: bool,
}

impl LocalForwarder {
    pub(crate) fn new(program: SocketAddr, protocol: Protocol) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .http2_only(protocol.is_multiplexed())
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .build(connector);
        Self { program, client, is_multiplexed: protocol.is_multiplexed() }
    }

    pub(crate) async fn call(self, request: Request<Incoming>) -> Result<Response<ResponseBody>, BoxError> {
        if let Some(refused) = refused_coding(request.headers()) {
            return Ok(refused.map(ResponseBody::Own));
        }
        let grpc = grpc_content_type(request.headers());
        match self.client.request(self.to_program(request)).await {
            Ok(mut response) => {
                hop_by_hop::strip_response(response.headers_mut());
                normalize_length(&mut response);
                *response.version_mut() = Version::default();
                Ok(response.map(ResponseBody::Program))
            }
            Err(error) => Ok(error_response_of(&self.fault(error), grpc)),
        }
    }

    /// Rewrites a request for the program: its address, and no hop-by-hop headers.
    fn to_program(&self, request: Request<Incoming>) -> Request<ForwardedBody> {
        let (mut parts, body) = request.into_parts();
        let body = ForwardedBody::new(body, self.is_multiplexed.then_some(&parts.method));
        hop_by_hop::strip_request(&mut parts.headers);
        if !self.is_multiplexed {
            hop_by_hop::join_cookies(&mut parts.headers);
        }
        let mut uri = parts.uri.into_parts();
        // HTTP/2 has the host in the authority; it moves to `host`, so that the program receives it.
        if let (Some(authority), false) = (&uri.authority, parts.headers.contains_key(header::HOST))
            && let Ok(host) = authority.as_str().parse()
        {
            parts.headers.insert(header::HOST, host);
        }
        uri.scheme = Some(Scheme::HTTP);
        // A socket address is a valid authority.
        uri.authority = self.program.to_string().parse().ok();
        uri.path_and_query = uri.path_and_query.or_else(|| "/".parse().ok());
        parts.uri = Uri::from_parts(uri).unwrap_or_default();
        parts.version = Version::default();
        parts.extensions.clear();
        Request::from_parts(parts, body)
    }

    fn fault(&self, error: hyper_util::client::legacy::Error) -> Fault {
        let program = self.program;
        let (kind, problem) = match error.is_connect() {
            true => (FaultKind::Unreachable, "is unreachable"),
            false => (FaultKind::Reset, "failed before its response; the call may have been executed"),
        };
        Fault::new(kind, format!("the program at {program} {problem}")).caused_by(error)
    }
}

/// Makes `content-length` a single number, or removes it where there is no body to have a length (RFC 9110 8.6).
fn normalize_length(response: &mut Response<Incoming>) {
    let is_bodiless = response.status() == StatusCode::NO_CONTENT;
    if is_bodiless || h1::normalize_length(response.headers_mut()).is_err() {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
}

/// The refusal of a request whose body has another coding than `chunked`, or several: its body would be forwarded
/// without the coding, and two servers could read it differently (RFC 9112 6.1).
fn refused_coding(headers: &HeaderMap) -> Option<Response<Body>> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).into_iter();
    let first = codings.next()?;
    let is_chunked = first.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if is_chunked && codings.next().is_none() {
        return None;
    }
    let message = "a transfer-encoding other than chunked\n".to_owned();
    Some(error_response::plain_text(StatusCode::NOT_IMPLEMENTED, message))
}

fn error_response_of(fault: &Fault, grpc: Option<HeaderValue>) -> Response<ResponseBody> {
    error_response::from_fault(fault, grpc).map(ResponseBody::Own)
}
