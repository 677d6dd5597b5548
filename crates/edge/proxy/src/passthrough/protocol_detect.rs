//! Detects the protocol of a captured connection without consuming any bytes.
//!
//! Bytes are only peeked, so that HTTP to a service can then be served like a direct connection. If the
//! client is silent at first, its protocol may be server-first: the proxy connects to the server, and the
//! side that speaks first decides. No list of ports of server-first protocols is needed.

use std::{io, net::SocketAddr, time::Duration};

use fairmesh_edge::listen::first_bytes::{FirstBytes, MAX_FIRST_BYTES};
use rustix::net::{RecvFlags, recv};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, sleep, sleep_until},
};

use crate::passthrough::original_dst::{PassthroughConnection, PassthroughConnector};

/// Time to wait for the client before connecting to the server.
const CLIENT_SILENCE: Duration = Duration::from_millis(100);
/// Time to wait for the rest of HTTP headers. They come from this machine or a neighbour, usually in one piece.
/// Afterwards the connection counts as one of another protocol, in which the server responds next.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes peeked.
const MAX_PEEK: usize = MAX_FIRST_BYTES;
const FIRST_PEEK: usize = 4 * 1024;

/// The detected protocol.
#[derive(Debug)]
pub(crate) enum DetectedProtocol {
    /// HTTP/1.1, with the host of the first request.
    Http1(String),
    Http2,
    /// Another protocol. Contains the connection to the server if the server spoke first.
    Other(Option<PassthroughConnection>),
}

/// Detects the protocol. `time_limit` applies while both sides are silent. Connections of other protocols
/// must be registered again with the runtime, because their readiness is consumed here.
///
/// # Errors
/// The connection failed.
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
    // A connection of the proxy itself is registered by now. Another connection to the server would come back
    // here as well.
    if connector.is_own(caller) {
        return Ok(DetectedProtocol::Other(None));
    }
    let server = async {
        let server = connector.connect(original).await?;
        // Whoever uses the connection next reports its failure.
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
                // There is no server, but the client may still call a service.
                Err(_) => unreachable = true,
            },
            () = sleep_until(until) => return Ok(DetectedProtocol::Other(None)),
        }
    }
}

/// Detects the protocol of the client.
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
                // Makes tokio wait until more bytes have arrived.
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

/// Peeks all available bytes up to the maximum.
fn peek(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        let (read, _) = recv(stream, buffer.as_mut_slice(), RecvFlags::PEEK)?;
        if read < buffer.len() || read >= MAX_PEEK {
            return Ok(read);
        }
        buffer.resize((2 * buffer.len()).min(MAX_PEEK), 0);
    }
}

/// Classifies a copy of the first bytes; `None` if more are needed.
fn classify(bytes: &mut [u8]) -> Option<DetectedProtocol> {
    Some(match FirstBytes::classify(bytes)? {
        FirstBytes::Http1(host) => DetectedProtocol::Http1(host),
        FirstBytes::Http2 => DetectedProtocol::Http2,
        FirstBytes::Other => DetectedProtocol::Other(None),
    })
}

#[cfg(test)]
mod tests;
