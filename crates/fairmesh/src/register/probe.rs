use std::{net::SocketAddr, str::FromStr, time::Duration};

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
    // The connection makes progress only while it is polled, and is closed with the answer.
    tokio::select! {
        answer = answer => answer,
        ended = connection => Err(ended.err().map_or_else(|| "it closed the connection".into(), shown)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_read_as_they_are_written() {
        assert_eq!("tcp".parse(), Ok(Probe::Tcp));
        assert_eq!("http:/health?x=1".parse(), Ok(Probe::Http("/health?x=1".parse().unwrap())));
        for wrong in ["", "udp", "http", "http://host/", "http:health"] {
            assert!(wrong.parse::<Probe>().is_err(), "{wrong}");
        }
    }
}
