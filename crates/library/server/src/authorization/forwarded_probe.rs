//! Forwards health probes to a program whose requests are not parsed. The probe is built from the policy alone, so no
//! data of the checker reaches the program.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use fairmesh_model::Probe;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::timeout};

/// The body of a response to a health checker.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// Timeout of a probe. Checkers have their own timeouts, of up to an hour.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a forwarded response body, in bytes. gRPC health responses have only a few bytes.
const MAX_BODY: usize = 16 * 1024;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Probes the program and returns its response. Over HTTP only the status is forwarded, since checkers need nothing
/// else.
pub(super) async fn response(probe: &Probe, program: SocketAddr) -> Response<ResponseBody> {
    let made = timeout(TIMEOUT, exchange(probe, program)).await;
    made.unwrap_or_else(|_| Err("no response in time".into())).unwrap_or_else(|error| {
        tracing::debug!(error, %program, "the probe of the program failed");
        let text = Full::new(Bytes::from(format!("the program does not respond: {error}\n")));
        let mut failed = Response::new(text.boxed_unsync());
        *failed.status_mut() = StatusCode::BAD_GATEWAY;
        failed
    })
}

async fn exchange(probe: &Probe, program: SocketAddr) -> Result<Response<ResponseBody>, Failed> {
    let stream = TcpStream::connect(program).await?;
    stream.set_nodelay(true)?;
    match probe {
        Probe::Tcp => Ok(Response::new(Full::default().boxed_unsync())),
        Probe::Http { path, .. } => {
            let request = Request::get(path)
                .header(header::HOST, program.to_string())
                .header(header::USER_AGENT, Probe::USER_AGENT)
                .header(header::CONNECTION, "close")
                .body(Full::<Bytes>::default())?;
            let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await?;
            let (head, _) = while_driven(connection, sender.send_request(request)).await?.into_parts();
            let mut response = Response::new(Full::default().boxed_unsync());
            *response.status_mut() = head.status;
            Ok(response)
        }
        Probe::Grpc { service } => {
            let request = Request::post(format!("http://{program}{}", Probe::GRPC_PATH))
                .header(header::CONTENT_TYPE, "application/grpc")
                .header(header::TE, "trailers")
                .header(header::USER_AGENT, Probe::USER_AGENT)
                .body(Full::new(health_request(service)))?;
            let (mut sender, connection) =
                conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            let exchanged = async { whole(sender.send_request(request).await?).await };
            while_driven(connection, exchanged).await
        }
    }
}

/// Returns the result of `exchange`. Polls the connection meanwhile, since it makes no progress otherwise.
async fn while_driven<T, E: Into<Failed>>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, E>>,
) -> Result<T, Failed> {
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        biased;
        done = exchange.as_mut() => return done.map_err(Into::into),
        ended = connection.as_mut() => ended?,
    }
    exchange.await.map_err(Into::into)
}

/// Reads a gRPC response with its message and trailers.
async fn whole(response: Response<Incoming>) -> Result<Response<ResponseBody>, Failed> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await?;
    let trailers = body.trailers().cloned();
    let message = Full::new(body.to_bytes()).with_trailers(async move { trailers.map(Ok) });
    let mut response = Response::new(message.boxed_unsync());
    *response.status_mut() = head.status;
    for name in ["content-type", "grpc-status", "grpc-message"] {
        if let Some(value) = head.headers.get(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// Encodes a framed `grpc.health.v1.HealthCheckRequest`. Field 1 is the service's name, of at most 1024 bytes.
fn health_request(service: &str) -> Bytes {
    let mut message = Vec::with_capacity(service.len() + 3);
    if !service.is_empty() {
        message.push(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_health_request_names_service_from_policy() {
        assert_eq!(health_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(health_request("a.B")[..], [0, 0, 0, 0, 5, 10, 3, b'a', b'.', b'B']);
        let long = health_request(&"x".repeat(300));
        assert_eq!((long.len(), &long[5..8]), (5 + 3 + 300, &[10, 0xac, 2][..]));
    }
}
