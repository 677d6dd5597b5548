use std::{net::SocketAddr, pin::pin, str::FromStr, time::Duration};

use bytes::Bytes;
use fairmesh_model::Invalid;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// How long a look may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How to see that a program answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// It takes connections.
    Tcp,
    /// It answers a GET of this path with 2xx or 3xx.
    Http(Uri),
}

impl FromStr for Probe {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let path = text.strip_prefix("http:").filter(|path| path.starts_with('/') && !path.starts_with("//"));
        match (text, path.and_then(|path| path.parse().ok())) {
            ("tcp", _) => Ok(Self::Tcp),
            (_, Some(path)) => Ok(Self::Http(path)),
            _ => {
                Err(Invalid::new("probe", format!("'{text}' is no way to look"), "write tcp, or http:/path"))
            }
        }
    }
}

impl Probe {
    /// Looks once, for at most 2 s; the error says what was seen.
    pub(super) async fn look(&self, address: SocketAddr) -> Result<(), String> {
        let look = async {
            let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
            match self {
                Self::Tcp => Ok(()),
                Self::Http(path) => get(stream, address, path).await,
            }
        };
        timeout(TIMEOUT, look).await.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
    }
}

async fn get(stream: TcpStream, address: SocketAddr, path: &Uri) -> Result<(), String> {
    let shown = |error: hyper::Error| error.to_string();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(shown)?;
    let request =
        Request::get(path).header(http::header::HOST, address.to_string()).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(shown)?;
        let status = answer.status();
        if status.is_success() || status.is_redirection() { Ok(()) } else { Err(format!("status {status}")) }
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    // The connection makes progress only while it is polled. An HTTP/1.0 server ends it with the answer, which then
    // waits to be taken.
    tokio::select! {
        answer = answer.as_mut() => return answer,
        _ = connection.as_mut() => {}
    }
    answer.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_ends_its_connection_counts_and_an_error_does_not() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let probe: Probe = "http:/health".parse().unwrap();
        for (status, passes) in [("200 OK", true), ("302 Found", true), ("503 Busy", false)] {
            let answer = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                stream.write_all(format!("HTTP/1.0 {status}\r\n\r\nhello").as_bytes()).await.unwrap();
            };
            let (looked, ()) = tokio::join!(probe.look(address), answer);
            assert_eq!(looked.is_ok(), passes, "{status}: {looked:?}");
        }
        drop(listener);
        assert!(probe.look(address).await.is_err());
    }

    #[test]
    fn probes_read_as_they_are_written() {
        assert_eq!("tcp".parse(), Ok(Probe::Tcp));
        assert_eq!("http:/health?x=1".parse(), Ok(Probe::Http("/health?x=1".parse().unwrap())));
        for wrong in ["", "udp", "http", "http://host/", "http:health"] {
            assert!(wrong.parse::<Probe>().is_err(), "{wrong}");
        }
    }
}
