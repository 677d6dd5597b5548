use std::{io, time::Duration};

use bytes::Bytes;
use fairmesh_model::Probe;
use fairmesh_wire::transport::{EndpointAddress, Stream, Transport};
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::AbortHandle,
    time::{Instant, timeout},
};

/// Timeout for connecting and for each round trip. Longer round trips are not measured.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of a response body that is read so that its connection can be reused.
const MAX_BODY: usize = 64 * 1024;
/// The connection preface of HTTP/2 with empty SETTINGS (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// Empty SETTINGS, and its acknowledgement (RFC 9113 6.5).
const SETTINGS_FRAME: &[u8] = &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
const SETTINGS_ACK: &[u8] = &[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
/// Maximum frame length that a server may send to a client that has set no SETTINGS (RFC 9113 4.2).
const MAX_FRAME: usize = 16 * 1024;
/// Maximum number of frames read while waiting for an acknowledgement.
const MAX_FRAMES: usize = 100;

/// A reused connection to an endpoint, for timing round trips.
///
/// Round trips are timed on the application protocol rather than on TCP, so that they include everything that forwards
/// bytes on the way, as for callers. Over HTTP/1.1 a round trip is `OPTIONS *` (a "ping" by RFC 9110 9.3.7), up to the
/// response headers. Over HTTP/2 it is empty SETTINGS, which the server acknowledges at once (RFC 9113 6.5.3). PING
/// would also work, but gRPC servers close connections whose clients send several without a call.
pub(super) enum KeptConnection {
    Http1 { sender: SendRequest<Empty<Bytes>>, host: String, driver: AbortHandle },
    Http2(Stream),
}

impl KeptConnection {
    /// Connects to an endpoint.
    pub(super) async fn open(
        transport: &Transport,
        endpoint: EndpointAddress<'_>,
        http2: bool,
    ) -> io::Result<Self> {
        let open = async {
            let mut stream = transport.connect_endpoint(endpoint).await?;
            stream.tcp().map_or(Ok(()), |socket| socket.set_nodelay(true))?;
            if http2 {
                stream.write_all(PREFACE).await?;
                await_ack(&mut stream).await?;
                return Ok(Self::Http2(stream));
            }
            let (sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            let driver = tokio::spawn(connection).abort_handle();
            Ok(Self::Http1 { sender, host: endpoint.address.to_string(), driver })
        };
        timeout(TIMEOUT, open).await?
    }

    /// Times one round trip. After an error, the connection can no longer be used.
    pub(super) async fn round_trip(&mut self) -> io::Result<Duration> {
        let round_trip = async {
            match self {
                Self::Http1 { sender, host, .. } => options(sender, host).await,
                Self::Http2(stream) => {
                    let start = Instant::now();
                    stream.write_all(SETTINGS_FRAME).await?;
                    await_ack(stream).await?;
                    Ok(start.elapsed())
                }
            }
        };
        timeout(TIMEOUT, round_trip).await?
    }
}

impl Drop for KeptConnection {
    fn drop(&mut self) {
        if let Self::Http1 { driver, .. } = self {
            driver.abort();
        }
    }
}

async fn options(sender: &mut SendRequest<Empty<Bytes>>, host: &str) -> io::Result<Duration> {
    sender.ready().await.map_err(io::Error::other)?;
    let request = Request::options("*")
        .header(header::HOST, host)
        .header(header::USER_AGENT, Probe::USER_AGENT)
        .body(Empty::new())
        .map_err(io::Error::other)?;
    let start = Instant::now();
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let elapsed = start.elapsed();
    // The body is read so that the connection can be reused. A closed connection fails at its next use.
    let _ = Limited::new(response.into_body(), MAX_BODY).collect().await;
    Ok(elapsed)
}

/// Reads frames up to the acknowledgement of SETTINGS, and acknowledges the server's SETTINGS.
async fn await_ack(stream: &mut Stream) -> io::Result<()> {
    let mut payload = [0; MAX_FRAME];
    for _ in 0..MAX_FRAMES {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [l0, l1, l2, kind, flags, ..] = head;
        let length = usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2);
        let Some(payload) = payload.get_mut(..length) else {
            return Err(io::Error::other("a frame is too long"));
        };
        stream.read_exact(payload).await?;
        match (kind, flags & ACK == ACK) {
            (SETTINGS, true) => return Ok(()),
            (SETTINGS, false) => stream.write_all(SETTINGS_ACK).await?,
            (PING, false) => {
                stream.write_all(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]).await?;
                stream.write_all(payload).await?;
            }
            (GOAWAY, _) => return Err(io::Error::other("the server closes the connection")),
            _ => {}
        }
    }
    Err(io::Error::other("too many frames before the acknowledgement"))
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    use http_body_util::Full;
    use hyper::{Response, service::service_fn};
    use hyper_util::{rt::TokioExecutor, server::conn::auto};
    use tokio::net::TcpListener;

    use super::*;

    fn plaintext(address: SocketAddr) -> EndpointAddress<'static> {
        EndpointAddress { address, peer: None, accepts_plaintext: true, from: None }
    }

    /// A server for HTTP/1.1 and HTTP/2, and its number of accepted connections.
    async fn server() -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let count = connections.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Relaxed);
                let respond = service_fn(|request: Request<hyper::body::Incoming>| async move {
                    let (method, uri) = (request.method().to_string(), request.uri().to_string());
                    assert_eq!((method.as_str(), uri.as_str()), ("OPTIONS", "*"));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Ok::<_, io::Error>(Response::new(Full::new(Bytes::from_static(b"no"))))
                });
                let serving = async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    builder.serve_connection(TokioIo::new(stream), respond).await.map_err(drop)
                };
                tokio::spawn(serving);
            }
        });
        (address, connections)
    }

    #[tokio::test]
    async fn distance_probe_reuses_its_connection_over_http1_and_http2() {
        for http2 in [false, true] {
            let (address, connections) = server().await;
            let mut connection =
                KeptConnection::open(&Transport::default(), plaintext(address), http2).await.unwrap();
            for _ in 0..3 {
                let elapsed = connection.round_trip().await.unwrap();
                // Only an HTTP/1.1 round trip waits for the application, which takes 20 ms.
                assert_eq!(elapsed >= Duration::from_millis(20), !http2, "{elapsed:?}");
            }
            assert_eq!(connections.load(Relaxed), 1);
        }
    }

    #[tokio::test]
    async fn distance_probe_fails_if_server_closes_or_responds_invalidly() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for response in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(response).await.unwrap();
            };
            let (opened, ()) = {
                let transport = Transport::default();
                tokio::join!(KeptConnection::open(&transport, plaintext(address), true), serve)
            };
            assert!(opened.is_err());
        }
    }
}
