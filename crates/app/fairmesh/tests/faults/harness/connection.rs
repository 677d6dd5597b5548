use bytes::Bytes;
use http::{HeaderMap, Request, Response, header::CONNECTION};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// How a caller uses connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// A new connection for each call.
    Fresh,
    /// One connection, until the peer closes it.
    Kept,
    /// One HTTP/2 connection until it receives GOAWAY.
    Http2,
}

/// A client connection that never repeats a request that the peer may have seen.
pub(crate) enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A complete response with its trailers.
pub(crate) type Answer = (Response<Bytes>, Option<HeaderMap>);

impl Connection {
    pub(crate) async fn open(to: &str, manner: Manner) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|error| format!("refused: {error}"))?;
        stream.set_nodelay(true).unwrap();
        let stream = TokioIo::new(stream);
        Ok(match manner {
            Manner::Http2 => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), stream).await.map_err(|e| format!("{e:?}"))?;
                tokio::spawn(connection);
                Self::Http2(sender)
            }
            Manner::Fresh | Manner::Kept => {
                let (sender, connection) = http1::handshake(stream).await.map_err(|e| format!("{e:?}"))?;
                tokio::spawn(connection);
                Self::Http1(sender)
            }
        })
    }

    /// Sends a request. `None` if the connection returned it unsent, as after GOAWAY.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Option<Result<Answer, String>> {
        let answer = match self {
            Self::Http1(sender) => match sender.send_request(request).await {
                Ok(answer) => answer,
                Err(error) => return Some(Err(format!("{error:?}"))),
            },
            Self::Http2(sender) => match sender.try_send_request(request).await {
                Ok(answer) => answer,
                Err(error) if error.message().is_some() => return None,
                Err(error) => match format!("{:?}", error.into_error()) {
                    // GOAWAY arrived after the connection was chosen and before the first frame: the peer ignores
                    // frames of later streams (RFC 9113, 6.8).
                    error if error.contains("GoAway(b\"\", NO_ERROR, Remote)") => return None,
                    error => return Some(Err(error)),
                },
            },
        };
        let (head, body) = answer.into_parts();
        let whole = match body.collect().await {
            Ok(whole) => whole,
            Err(error) => return Some(Err(format!("{head:?} and then {error:?}"))),
        };
        let trailers = whole.trailers().cloned();
        Some(Ok((Response::from_parts(head, whole.to_bytes()), trailers)))
    }

    /// Sends a request over a kept or new connection; builds it again each time a connection returns it unsent.
    pub(crate) async fn call(
        kept: &mut Option<Self>,
        (to, manner): (&str, Manner),
        request: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<Answer, String> {
        loop {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => Self::open(to, manner).await?,
            };
            let Some(answer) = connection.send(request()).await else { continue };
            let answer = answer?;
            let ends = answer.0.headers().get(CONNECTION).is_some_and(|value| value == "close");
            if !ends && !matches!(manner, Manner::Fresh) {
                *kept = Some(connection);
            }
            return Ok(answer);
        }
    }
}
