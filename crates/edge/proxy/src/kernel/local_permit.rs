//! Permits for endpoints with mutual TLS on this machine: the listener in front of a program says for a moment, by mutual TLS,
//! that every request of this proxy is allowed, and where the program listens. The question is a load poll with a header, which
//! other servers answer as such. The kernel then sends requests to the program in plaintext, which never leaves the kernel.
//! What ends connections by mutual TLS ends this too: the same process decides, by the same rules, for the same certificate.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use fairmesh_headers::{CALLER, LOAD_PATH, LOCAL_HOST, LOCAL_SERVER};
use fairmesh_kernel::{MAX_FIELDS, Permit, program_clock};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};

use crate::{kernel::published_endpoint::PublishedEndpoint, local_host::local_host};

/// How long a permit holds after it was asked for. So long a revocation takes at most.
const VALID_FOR: Duration = Duration::from_millis(950);
/// Interval of the questions.
const INTERVAL: Duration = Duration::from_millis(300);
/// Time limit of a connection and of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(600);
/// Pause after a refusal or a failure.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// Maximum length of an answer's head, in bytes.
const MAX_HEAD: usize = 4096;
const CERTIFICATE: &str = "x-forwarded-client-cert";

/// What is known of the way to an endpoint within this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LocalWay {
    /// The endpoint has not answered yet.
    #[default]
    Unknown,
    /// The requests of the callers need mutual TLS.
    Refused,
    /// The kernel may send them to the program at this address, while the permit is in force.
    Permitted(SocketAddr),
}

/// An answer that permits requests.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    program: SocketAddr,
    /// Lines that the kernel adds to each head.
    fields: Vec<u8>,
}

/// Whether an address is one of this machine: the system would send from that address itself. Nothing is sent.
pub(super) fn is_here(address: SocketAddr) -> bool {
    let IpAddr::V4(to) = address.ip().to_canonical() else { return false };
    let from = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((to, address.port()))?;
        socket.local_addr()
    });
    to.is_loopback() || from.is_ok_and(|from| from.ip() == IpAddr::V4(to))
}

/// Renews the permit until the endpoint is withdrawn.
pub(super) async fn follow(endpoint: Arc<PublishedEndpoint>, permit: Arc<Permit>) {
    let mut program = None;
    loop {
        let ended = tokio::select! {
            () = endpoint.withdrawn.cancelled() => None,
            ended = renew(&endpoint, &permit, &mut program) => ended.err(),
        };
        permit.end();
        endpoint.way.send_replace(LocalWay::Refused);
        let Some(error) = ended else { return };
        let is_final = error.kind() == io::ErrorKind::Unsupported;
        let address = endpoint.endpoint.target().address;
        tracing::debug!(%address, %error, "requests to this endpoint need mutual TLS");
        tokio::select! {
            () = endpoint.withdrawn.cancelled() => return,
            () = sleep(RETRY_AFTER), if !is_final => {}
        }
    }
}

/// Asks again and again over one connection, and renews the permit, until something is refused or fails. The connections that
/// the kernel uses lead to the first `program`: another one gets nothing until the endpoint is published anew.
async fn renew(
    endpoint: &PublishedEndpoint,
    permit: &Permit,
    program: &mut Option<SocketAddr>,
) -> io::Result<Infallible> {
    let own = local_host()?;
    let address = endpoint.endpoint.target().address;
    let mut connection = endpoint.endpoint.connect_raw(Instant::now() + ANSWER_TIMEOUT).await?;
    let request = format!("GET {LOAD_PATH} HTTP/1.1\r\nhost: {address}\r\n{LOCAL_HOST}: {own}\r\n\r\n");
    loop {
        if !endpoint.may_take_kernel() {
            return Err(io::Error::other("the policy forbids the kernel"));
        }
        let asked = program_clock();
        let answer = timeout(ANSWER_TIMEOUT, ask(&mut connection, &request)).await??;
        if *program.get_or_insert(answer.program) != answer.program {
            return Err(io::Error::other("the program has another address now"));
        }
        if !permit.renew(&answer.fields, asked + VALID_FOR) {
            return Err(io::Error::other("the headers that name the caller do not fit"));
        }
        endpoint.way.send_replace(LocalWay::Permitted(answer.program));
        sleep(INTERVAL).await;
    }
}

/// Asks once.
async fn ask(connection: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> io::Result<Answer> {
    connection.write_all(request.as_bytes()).await?;
    connection.flush().await?;
    let mut head = Vec::new();
    // Byte by byte, since the next answer follows. The stream has decrypted them already.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD {
            return Err(io::Error::other("the answer is too long"));
        }
        head.push(connection.read_u8().await?);
    }
    let head = String::from_utf8(head).map_err(io::Error::other)?;
    read_answer(&head)
}

/// Reads the head of an answer. The error is of the kind [`Unsupported`](io::ErrorKind::Unsupported) if the endpoint does not
/// know the question.
fn read_answer(head: &str) -> io::Result<Answer> {
    let (status, lines) = head.split_once("\r\n").unwrap_or((head, ""));
    if !status.starts_with("HTTP/1.1 200 ") {
        let refused = format!("the endpoint refuses: {status}");
        return Err(match status.starts_with("HTTP/1.1 403 ") {
            true => io::Error::other(refused),
            false => io::Error::new(io::ErrorKind::Unsupported, refused),
        });
    }
    let mut fields = HashMap::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| io::Error::other("a line has no name"))?;
        if fields.insert(name.to_ascii_lowercase(), value.trim()).is_some() {
            return Err(io::Error::other(format!("the answer has {name} twice")));
        }
    }
    let get = |name: &str| {
        fields.get(name).copied().ok_or_else(|| io::Error::other(format!("the answer has no {name}")))
    };
    if get("content-length")? != "0" {
        return Err(io::Error::other("the answer has a body"));
    }
    let program = get(LOCAL_SERVER.as_str())?.parse().map_err(io::Error::other)?;
    if !is_here(program) {
        return Err(io::Error::other("the program is on another machine"));
    }
    let fields = caller_lines(&[(CALLER.as_str(), get(CALLER.as_str())?), (CERTIFICATE, get(CERTIFICATE)?)]);
    match fields.len() <= MAX_FIELDS {
        true => Ok(Answer { program, fields }),
        false => Err(io::Error::other("the headers that name the caller are too long")),
    }
}

/// Lines with these names and values, in a multiple of 8 bytes: spaces before the last value are no part of it (RFC 9112 5).
fn caller_lines(fields: &[(&str, &str)]) -> Vec<u8> {
    let length: usize = fields.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len()).sum();
    let padding = " ".repeat(length.next_multiple_of(8) - length);
    let last = fields.len().saturating_sub(1);
    let line = |(at, (name, value)): (usize, &(&str, &str))| {
        let padding = if at == last { padding.as_str() } else { "" };
        format!("{name}: {padding}{value}\r\n")
    };
    fields.iter().enumerate().map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nX-Fairmesh-Local-Server: 127.0.0.1:8081\r\n\
                        x-fairmesh-caller: spiffe://prod/shop/web\r\nx-forwarded-client-cert: URI=spiffe://prod/shop/web\r\n\
                        content-length: 0\r\n\r\n";

    #[test]
    fn incomplete_answer_permits_nothing() {
        let answer = read_answer(HEAD).unwrap();
        assert_eq!(answer.program, "127.0.0.1:8081".parse().unwrap());
        for (from, to) in [
            ("200 OK", "403 Forbidden"),
            ("200 OK", "204 No Content"),
            ("X-Fairmesh-Local-Server: 127.0.0.1:8081\r\n", ""),
            ("127.0.0.1:8081", "127.0.0.1"),
            ("127.0.0.1:8081", "192.0.2.1:8081"),
            ("x-fairmesh-caller: spiffe://prod/shop/web\r\n", ""),
            ("content-length: 0", "content-length: 5"),
            ("content-length: 0\r\n", "content-length: 0\r\ncontent-length: 0\r\n"),
        ] {
            assert!(read_answer(&HEAD.replacen(from, to, 1)).is_err(), "{to}");
        }
        let unknown = read_answer(&HEAD.replacen("200 OK", "204 No Content", 1)).unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::Unsupported);
        let long = HEAD.replacen("URI=", &format!("By=spiffe://prod/{};URI=", "a".repeat(400)), 1);
        assert!(read_answer(&long).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn only_addresses_of_this_machine_are_here() {
        let here = |text: &str| is_here(text.parse().unwrap());
        assert!(here("127.0.0.1:80") && here("127.96.0.1:80") && here("[::ffff:127.0.0.1]:80"));
        // Documentation addresses (RFC 5737) are no machine's.
        assert!(!here("192.0.2.1:80") && !here("[::1]:80"));
    }

    #[test]
    fn added_lines_keep_their_values_and_fill_whole_words() {
        for length in 1..20 {
            let value = "v".repeat(length);
            let lines = caller_lines(&[("x-one", "1"), ("x-two", &value)]);
            assert!(lines.len().is_multiple_of(8));
            let text = String::from_utf8(lines).unwrap();
            let values: Vec<_> = text.lines().map(|line| line.split_once(':').unwrap().1.trim()).collect();
            assert_eq!(values, ["1", &value]);
        }
    }
}
