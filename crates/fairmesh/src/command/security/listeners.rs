//! Listeners of the mesh's processes on this machine that others reach, and that respond in plaintext.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use crate::command::finding::{Level, Report};

/// Time limit of a connection, and of its response.
const PATIENCE: Duration = Duration::from_millis(500);
/// Listeners that are tried; a machine has a few processes of the mesh.
const MAX_LISTENERS: usize = 64;
/// A state of `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// What all pages, proxies and servers in plaintext respond to with a status line, and what ends a connection of TLS.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: security-check\r\nconnection: close\r\n\r\n";

/// Tries the listeners of all processes that run this program and that this user may look into.
pub(super) fn check(report: &mut Report) {
    let listening = listening();
    let mut found: Vec<(SocketAddr, String)> = processes()
        .into_iter()
        .flat_map(|(pid, command)| sockets(pid).into_iter().map(move |inode| (inode, command.clone())))
        .filter_map(|(inode, command)| Some((*listening.get(&inode)?, command)))
        .filter(|(address, _)| !address.ip().to_canonical().is_loopback())
        .collect();
    found.sort();
    found.dedup();
    let open: Vec<_> =
        found.iter().take(MAX_LISTENERS).filter(|(address, _)| responds_in_plaintext(*address)).collect();
    for (address, command) in &open {
        report.add(
            "listeners.plaintext",
            Level::Warning,
            format!("'{command}' responds in plaintext at {address}, which other machines reach"),
            "listen on 127.0.0.1, give the listener mutual TLS or '+tls', or keep the port on a trusted network",
        );
    }
    if open.is_empty() && !found.is_empty() {
        report.ok(
            "listeners.plaintext",
            format!("none of the {} listeners beyond loopback responds in plaintext", found.len()),
        );
    }
}

/// The processes of this program, with what they run as.
fn processes() -> Vec<(u32, String)> {
    let own = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_owned()));
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        // One that was replaced by an upgrade is called `NAME (deleted)`.
        let name = program
            .and_then(|path| Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)").to_owned()));
        name.is_some_and(|name| own.as_ref().is_some_and(|own| own.to_str() == Some(&*name)))
    };
    pids.filter(is_ours).map(|pid| (pid, command(pid))).collect()
}

/// `fairmesh COMMAND`: arguments may be long.
fn command(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default().into_owned();
    let program = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{} {}", program.unwrap_or_default(), words.next().unwrap_or_default())
}

/// The numbers of the sockets that a process has open.
fn sockets(pid: u32) -> Vec<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect()
}

/// The addresses of listening sockets by number, in the network of this process.
fn listening() -> BTreeMap<u64, SocketAddr> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().filter_map(listener)).collect()
}

/// One line of `/proc/net/tcp`: number, address, remote address, state, and the inode as the tenth word.
fn listener(line: &str) -> Option<(u64, SocketAddr)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    if *words.get(3)? != LISTENING {
        return None;
    }
    let (ip, port) = words.get(1)?.split_once(':')?;
    // The kernel writes each word of an address in the order of the machine.
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::from(<[u8; 16]>::try_from(words.concat()).ok()?)
        }
        _ => return None,
    };
    Some((words.get(9)?.parse().ok()?, SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// Whether a listener responds to a request in plaintext. What is not there any more does not.
fn responds_in_plaintext(address: SocketAddr) -> bool {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let exchange = || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(ip, address.port()), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(REQUEST)?;
        let mut begin = [0; 5];
        stream.read_exact(&mut begin).map(|()| begin == *b"HTTP/")
    };
    exchange().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_as_the_kernel_writes_them() {
        let v4 = format!(
            "   0: {:08X}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1",
            { u32::from_ne_bytes([10, 0, 0, 7]) }
        );
        assert_eq!(listener(&v4), Some((4711, "10.0.0.7:8080".parse().unwrap())));
        let v6 = "1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7 1";
        assert_eq!(listener(v6), Some((7, "[::]:80".parse().unwrap())));
        let established = v4.replace(" 0A ", " 01 ");
        for other in
            [established.as_str(), "sl local_address rem_address st", "", "0: zz:1 0:0 0A 0 0 0 0 0 1"]
        {
            assert_eq!(listener(other), None, "{other}");
        }
    }
}
