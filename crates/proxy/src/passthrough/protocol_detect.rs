//! What a connection carries that was meant for somebody else: found out without taking a byte of it.
//!
//! Bytes are looked at and left where they are, so that whoever gets the connection gets all of it, and HTTP that is for a
//! service is served as if it had come directly. Who is silent for a moment may be waiting for the server to speak first: then the
//! server is connected to, and whoever speaks first decides. Ports that are known for such protocols need no list.

use std::{io, net::SocketAddr, time::Duration};

use fairmesh_http::{h1::lower_version, h2::PREFACE};
use http::Uri;
use rustix::net::{RecvFlags, recv};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, sleep, sleep_until},
};

use crate::passthrough::original_dst::{PassthroughConnection, PassthroughConnector};

/// How long a program is waited for before the server is given the chance to speak first.
const CLIENT_SILENCE: Duration = Duration::from_millis(100);
/// How long something that may become a head of HTTP is waited for. It was sent from this machine or one
/// beside it, in one piece as a rule; what takes longer is taken for another protocol, in which it is the server's turn.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that is looked at, which is the most that a head may have.
const MAX_PEEK: usize = 64 * 1024;
const FIRST_PEEK: usize = 4 * 1024;
const MAX_HEADERS: usize = 128;

/// What a connection carries.
#[derive(Debug)]
pub(crate) enum DetectedProtocol {
    /// HTTP/1.1, and first a request for this host.
    Http1(String),
    Http2,
    /// Something else, and where it is a server that spoke first, the connection over which it did.
    Other(Option<PassthroughConnection>),
}

/// Finds it out, within `patience` where both sides are silent. What is not HTTP has to be registered anew with the runtime: that
/// there is something to read was taken note of here.
///
/// # Errors
/// When the connection broke.
pub(crate) async fn detect(
    stream: &TcpStream,
    caller: SocketAddr,
    original: SocketAddr,
    connector: &PassthroughConnector,
    time_limit: Duration,
) -> io::Result<DetectedProtocol> {
    let until = Instant::now() + time_limit;
    let detected = detect_client(stream);
    tokio::pin!(detected);
    tokio::select! {
        biased;
        detected = &mut detected => return detected,
        () = sleep(CLIENT_SILENCE) => {}
    }
    // One of the proxy's own is known as such by now, and one more onward would come back here just the same.
    if connector.is_own(caller) {
        return Ok(DetectedProtocol::Other(None));
    }
    let server = async {
        let server = connector.connect(original).await?;
        // A broken one is found out by who carries it.
        let _ = server.wait_readable().await;
        Ok::<_, io::Error>(server)
    };
    tokio::pin!(server);
    let mut unreachable = false;
    loop {
        tokio::select! {
            biased;
            detected = &mut detected => return detected,
            connected = &mut server, if !unreachable => match connected {
                Ok(server) => return Ok(DetectedProtocol::Other(Some(server))),
                // Nobody is there: what the program says may be for a service all the same.
                Err(_) => unreachable = true,
            },
            () = sleep_until(until) => return Ok(DetectedProtocol::Other(None)),
        }
    }
}

/// What the program says.
async fn detect_client(stream: &TcpStream) -> io::Result<DetectedProtocol> {
    let mut buffer = vec![0; FIRST_PEEK];
    let mut begun: Option<Instant> = None;
    loop {
        let late = async {
            match begun {
                Some(begun) => sleep_until(begun + HEAD_TIMEOUT).await,
                None => std::future::pending().await,
            }
        };
        let ready = tokio::select! {
            ready = stream.ready(Interest::READABLE) => ready?,
            () = late => return Ok(DetectedProtocol::Other(None)),
        };
        let mut read = 0;
        let detected = stream.try_io(Interest::READABLE, || {
            read = peek(stream, &mut buffer)?;
            match classify(&mut buffer[..read]) {
                Some(detected) => Ok(detected),
                None if read == 0 || ready.is_read_closed() => Ok(DetectedProtocol::Other(None)),
                // Only when more has come is it looked at again.
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match detected {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            detected => return detected,
        }
        if read > 0 {
            begun.get_or_insert_with(Instant::now);
        }
    }
}

/// Looks at all that has come, as far as it may matter.
fn peek(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        let (read, _) = recv(stream, buffer.as_mut_slice(), RecvFlags::PEEK)?;
        if read < buffer.len() || read >= MAX_PEEK {
            return Ok(read);
        }
        buffer.resize((2 * buffer.len()).min(MAX_PEEK), 0);
    }
}

/// Judges what has come so far, of which these bytes are a copy; `None` where it takes more to tell.
fn classify(bytes: &mut [u8]) -> Option<DetectedProtocol> {
    let len = bytes.len().min(PREFACE.len());
    if bytes[..len] == PREFACE[..len] {
        return (len == PREFACE.len()).then_some(DetectedProtocol::Http2);
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_PEEK => None,
        Ok(httparse::Status::Complete(_)) => {
            Some(request_host(&request).map_or(DetectedProtocol::Other(None), DetectedProtocol::Http1))
        }
        Err(httparse::Error::Version) if lower_version(bytes) => classify(bytes),
        _ => Some(DetectedProtocol::Other(None)),
    }
}

/// Whom a request is for, by its target first (RFC 9112 3.2.2).
fn request_host(request: &httparse::Request<'_, '_>) -> Option<String> {
    let target: Option<Uri> = request.path.and_then(|target| authority_part(target).parse().ok());
    if let Some(authority) = target.as_ref().and_then(Uri::authority) {
        return Some(authority.to_string());
    }
    let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"))?;
    std::str::from_utf8(header.value).ok().map(|host| host.trim().to_owned())
}

/// A target without the path of a whole URI, which may have bytes that a URI refuses.
fn authority_part(target: &str) -> &str {
    let begin = target.find("://").map_or(0, |at| at + 3);
    let end = target[begin..].find(['/', '?', '#']).filter(|_| begin > 0);
    end.map_or(target, |end| &target[..begin + end])
}

#[cfg(test)]
mod tests;
