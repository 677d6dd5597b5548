use std::{future::ready, io, net::SocketAddr, pin::pin, time::Duration};

use bytes::Bytes;
use fairmesh_model::Probe;
use fairmesh_wire::transport::{EndpointAddress, Stream, Transport};
use http::{Request, StatusCode, Uri, uri::PathAndQuery};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tower::service_fn;

/// Path of the gRPC health check method.
const CHECK: PathAndQuery = PathAndQuery::from_static(Probe::GRPC_PATH);
/// `ServingStatus.SERVING`.
const SERVING: i32 = 1;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Probes an endpoint once; the error describes the failure.
///
/// # Errors
/// When the expected response does not arrive within `patience`.
pub async fn probe_once(
    transport: &Transport,
    probe: &Probe,
    endpoint: EndpointAddress<'_>,
    patience: Duration,
) -> Result<(), String> {
    let address = endpoint.address;
    let probe_once = async {
        let connecting = transport.connect_endpoint(endpoint).await;
        let stream = connecting.map_err(|error| format!("cannot connect: {error}"))?;
        // This fails only on a broken socket, which the first read reports.
        let _ = stream.tcp().map(|socket| socket.set_nodelay(true));
        match probe {
            Probe::Tcp => Ok(()),
            Probe::Http { path, status } => get(stream, address, path, *status).await,
            Probe::Grpc { service } => grpc(stream, address, service).await,
        }
    };
    timeout(patience, probe_once).await.unwrap_or_else(|_| Err(format!("no response within {patience:?}")))
}

async fn get(stream: Stream, address: SocketAddr, path: &str, wanted: Option<u16>) -> Result<(), String> {
    let shown = |error: hyper::Error| format!("no response: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(shown)?;
    let request = Request::get(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::USER_AGENT, Probe::USER_AGENT)
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let response = async {
        let status = sender.send_request(request).await.map_err(shown)?.status();
        if passes(status, wanted) { Ok(()) } else { Err(format!("status {status}")) }
    };
    let (mut response, mut connection) = (pin!(response), pin!(connection));
    // The connection only makes progress while polled. An HTTP/1.0 server closes it with the response, which can be
    // read then.
    tokio::select! {
        response = response.as_mut() => return response,
        _ = connection.as_mut() => {}
    }
    response.await
}

fn passes(status: StatusCode, wanted: Option<u16>) -> bool {
    wanted.map_or(status.is_success() || status.is_redirection(), |wanted| status.as_u16() == wanted)
}

async fn grpc(stream: Stream, address: SocketAddr, service: &str) -> Result<(), String> {
    let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
    let uri = uri.map_err(|error| error.to_string())?;
    // Connects only once: a probe ends with its connection.
    let mut stream = Some(TokioIo::new(stream));
    let connector = service_fn(move |_: Uri| {
        ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let channel = Endpoint::from(uri).connect_with_connector(connector).await;
    let channel = channel.map_err(|error| format!("cannot connect: {error}"))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| error.to_string())?;
    let request = tonic::Request::new(HealthRequest { service: service.to_owned() });
    let codec = tonic_prost::ProstCodec::<HealthRequest, HealthResponse>::default();
    match client.unary(request, CHECK, codec).await {
        Ok(response) if response.get_ref().status == SERVING => Ok(()),
        Ok(response) => Err(format!("health status {} instead of SERVING", response.get_ref().status)),
        Err(status) => Err(format!("{}: {}", status.code(), status.message())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn plaintext(address: SocketAddr) -> EndpointAddress<'static> {
        EndpointAddress { address, peer: None, accepts_plaintext: true, from: None }
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn grpc_health_probe_passes_only_with_serving_status() {
        use http_body_util::{BodyExt as _, Full};
        use tokio::net::TcpListener;
        use tonic::transport::{Server, server::TcpIncoming};

        for (status, passes) in [(1, true), (2, false), (3, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            // A message of two bytes; field 1 is the status.
            let response = move || async move {
                let message = Full::new(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
                let end =
                    http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                let body = message.with_trailers(std::future::ready(Some(Ok(end))));
                ([(http::header::CONTENT_TYPE, "application/grpc")], axum::body::Body::new(body))
            };
            let router = axum::Router::new().route(CHECK.path(), axum::routing::post(response));
            let serving = Server::builder().add_routes(router.into());
            let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
            let result = probe_once(
                &Transport::default(),
                &Probe::Grpc { service: String::new() },
                plaintext(address),
                PATIENCE,
            )
            .await;
            assert_eq!(result.is_ok(), passes, "{result:?}");
            serving.abort();
        }
    }

    #[tokio::test]
    async fn http_health_probe_passes_by_status_class_or_exact_status() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cases = [
            ("200 OK", None, true),
            ("302 Found", None, true),
            ("503 Busy", None, false),
            ("204 Nothing", Some(204), true),
            ("200 OK", Some(204), false),
        ];
        for (status_line, status, passes) in cases {
            let probe = Probe::Http { path: "/healthz".into(), status };
            let response = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /healthz HTTP/1.1\r\n"));
                stream.write_all(format!("HTTP/1.0 {status_line}\r\n\r\nhello").as_bytes()).await.unwrap();
            };
            let transport = Transport::default();
            let probing = probe_once(&transport, &probe, plaintext(address), PATIENCE);
            let (result, ()) = tokio::join!(probing, response);
            assert_eq!(result.is_ok(), passes, "{status_line}: {result:?}");
        }
        assert_eq!(
            probe_once(&Transport::default(), &Probe::Tcp, plaintext(address), PATIENCE).await,
            Ok(())
        );
        let silent = Probe::Http { path: "/".into(), status: None };
        let late =
            probe_once(&Transport::default(), &silent, plaintext(address), Duration::from_millis(50)).await;
        assert!(late.unwrap_err().contains("no response within 50ms"));
        drop(listener);
        assert!(
            probe_once(&Transport::default(), &Probe::Tcp, plaintext(address), PATIENCE)
                .await
                .unwrap_err()
                .contains("cannot connect")
        );
    }
}
