//! Listeners of local mesh processes that other machines can reach and that respond in plaintext.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use fairmesh_console::{failure::Failure, socket_table};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

use crate::findings_report::{Level, Report};

/// Timeout for connecting, and for the response.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of listeners to probe; a machine has a few processes of the mesh.
const MAX_LISTENERS: usize = 64;
/// Requests to which plaintext pages, proxies and servers respond, for each version of HTTP, and which end a TLS
/// connection.
const REQUESTS: [&[u8]; 2] = [
    b"GET /healthz HTTP/1.1\r\nhost: security-check\r\nconnection: close\r\n\r\n",
    // The preface of HTTP/2 and empty settings (RFC 9113, 3.4 and 6.5).
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

/// Probes the listeners of all processes that run this program and that this user may inspect.
pub(super) async fn check(report: &mut Report) -> Result<(), Failure> {
    let found = spawn_blocking(find).await;
    let Found { listeners, unseen } =
        found.map_err(|error| Failure::failed(format!("the listeners cannot be examined: {error}")))?;
    let tried = listeners.len().min(MAX_LISTENERS);
    let responding = responding(listeners.iter().take(tried).map(|(address, _)| *address)).await;
    let open: Vec<_> = listeners.iter().filter(|(address, _)| responding.contains(address)).collect();
    for (address, command) in &open {
        report.add(
            "listeners.plaintext",
            Level::Warning,
            format!("'{command}' responds in plaintext at {address}, which other machines reach"),
            "listen on 127.0.0.1, give the listener mutual TLS or '+tls', or keep the port on a trusted network",
        );
    }
    if open.is_empty() && tried > 0 {
        let message = format!(
            "none of the {tried} listeners beyond loopback that were tried responds to HTTP in plaintext"
        );
        report.ok("listeners.plaintext", message);
    }
    if listeners.len() > tried {
        let message = format!("{} further listeners beyond loopback were not tried", listeners.len() - tried);
        report.add("listeners.untried", Level::Note, message, "");
    }
    if unseen > 0 {
        report.add(
            "listeners.unseen",
            Level::Note,
            format!("the listeners of {unseen} processes of the mesh could not be seen"),
            "run this command as the user of the processes, or as root",
        );
    }
    Ok(())
}

/// The listeners that respond in plaintext. All are probed concurrently, because most others take until the timeout.
async fn responding(addresses: impl Iterator<Item = SocketAddr>) -> BTreeSet<SocketAddr> {
    let mut tries = JoinSet::new();
    for address in addresses {
        tries.spawn(async move { (address, responds_in_plaintext(address).await) });
    }
    let tried = tries.join_all().await.into_iter();
    tried.filter_map(|(address, responds)| responds.then_some(address)).collect()
}

struct Found {
    /// Listeners outside loopback, each with its command.
    listeners: Vec<(SocketAddr, String)>,
    /// Number of processes that this user may not inspect.
    unseen: usize,
}

fn find() -> Found {
    let listening: BTreeMap<u64, SocketAddr> =
        socket_table::listeners().into_iter().map(|one| (one.inode, one.address)).collect();
    let mut found = Found { listeners: Vec::new(), unseen: 0 };
    for pid in processes() {
        let Ok(sockets) = socket_table::sockets_of(pid) else {
            found.unseen += 1;
            continue;
        };
        let addresses = sockets.filter_map(|inode| listening.get(&inode).copied());
        let beyond = addresses.filter(|address| !address.ip().to_canonical().is_loopback());
        found.listeners.extend(beyond.map(|address| (address, command(pid))));
    }
    found.listeners.sort();
    found.listeners.dedup();
    found
}

/// The processes of this program.
fn processes() -> impl Iterator<Item = u32> {
    let own = name_of(std::process::id());
    socket_table::pids().filter(move |pid| own.is_some() && name_of(*pid) == own)
}

/// The kernel's name of a process. Unlike the path of its program, every user may read it.
fn name_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

/// Text `fairmesh COMMAND`; arguments may be long.
fn command(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default().into_owned();
    let program = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{} {}", program.unwrap_or_default(), words.next().unwrap_or_default())
}

/// Whether a listener responds to a plaintext request; false if it no longer exists.
async fn responds_in_plaintext(address: SocketAddr) -> bool {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    for request in REQUESTS {
        if exchange(SocketAddr::new(ip, address.port()), request).await.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Whether the response to a request is HTTP.
async fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<bool> {
    let mut stream = timeout(PATIENCE, TcpStream::connect(address)).await??;
    stream.write_all(request).await?;
    let mut begin = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut begin)).await??;
    Ok(is_http(begin))
}

/// Whether a response begins like HTTP: with a status line, or with the SETTINGS frame that starts an HTTP/2
/// connection.
fn is_http(begin: [u8; 5]) -> bool {
    /// Frame type SETTINGS, which follows the three bytes of the length (RFC 9113, 6.5).
    const SETTINGS: u8 = 4;
    begin == *b"HTTP/" || (begin[..2] == [0, 0] && begin[3] == SETTINGS)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn silent_listeners_are_checked_for_plaintext_concurrently() {
        let silent: Vec<_> =
            (0..MAX_LISTENERS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let addresses = silent.iter().map(|listener| listener.local_addr().unwrap());
        let start = Instant::now();
        assert!(responding(addresses).await.is_empty());
        // Probing one after the other would take 64 times two timeouts.
        assert!(start.elapsed() < PATIENCE * 20, "{:?}", start.elapsed());
    }

    #[test]
    fn http_responses_are_distinguished_from_tls_alerts() {
        assert!(is_http(*b"HTTP/") && is_http([0, 0, 24, 4, 0]) && is_http([0, 0, 0, 4, 0]));
        // A TLS alert, a TLS handshake, and another protocol.
        assert!(!is_http([21, 3, 3, 0, 2]) && !is_http([22, 3, 3, 0, 90]) && !is_http(*b"SSH-2"));
    }
}
