//! Listeners of the mesh's processes on this machine that others reach, and that respond in plaintext.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use crate::{
    command::finding::{Level, Report},
    socket_table,
};

/// Time limit of a connection, and of its response.
const PATIENCE: Duration = Duration::from_millis(500);
/// Listeners that are tried; a machine has a few processes of the mesh.
const MAX_LISTENERS: usize = 64;
/// What pages, proxies and servers in plaintext respond to, by either version of HTTP, and what ends a connection of TLS.
const REQUESTS: [&[u8]; 2] = [
    b"GET /healthz HTTP/1.1\r\nhost: security-check\r\nconnection: close\r\n\r\n",
    // The preface of HTTP/2 and empty settings (RFC 9113, 3.4 and 6.5).
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

/// Tries the listeners of all processes that run this program and that this user may look into.
pub(super) fn check(report: &mut Report) {
    let Found { listeners, unseen } = find();
    let tried = listeners.len().min(MAX_LISTENERS);
    let open: Vec<_> =
        listeners.iter().take(tried).filter(|(address, _)| responds_in_plaintext(*address)).collect();
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
}

struct Found {
    /// Beyond loopback, with the command of each.
    listeners: Vec<(SocketAddr, String)>,
    /// Processes that this user may not look into.
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

/// The name that the kernel has for a process, which every user may read, unlike the path of its program.
fn name_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

/// `fairmesh COMMAND`: arguments may be long.
fn command(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default().into_owned();
    let program = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{} {}", program.unwrap_or_default(), words.next().unwrap_or_default())
}

/// Whether a listener responds to a request in plaintext. What is not there any more does not.
fn responds_in_plaintext(address: SocketAddr) -> bool {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let exchange = |request| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, address.port()), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request)?;
        let mut begin = [0; 5];
        stream.read_exact(&mut begin).map(|()| is_http(begin))
    };
    REQUESTS.into_iter().any(|request| exchange(request).unwrap_or(false))
}

/// Whether a response begins so: a status line, or the settings with which a server of HTTP/2 begins.
fn is_http(begin: [u8; 5]) -> bool {
    /// The type of a frame with settings, after the three bytes of its length (RFC 9113, 6.5).
    const SETTINGS: u8 = 4;
    begin == *b"HTTP/" || (begin[..2] == [0, 0] && begin[3] == SETTINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_of_http_are_told_from_alerts_of_tls() {
        assert!(is_http(*b"HTTP/") && is_http([0, 0, 24, 4, 0]) && is_http([0, 0, 0, 4, 0]));
        // An alert, a handshake, and something else.
        assert!(!is_http([21, 3, 3, 0, 2]) && !is_http([22, 3, 3, 0, 90]) && !is_http(*b"SSH-2"));
    }
}
