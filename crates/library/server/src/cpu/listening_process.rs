//! The process that listens at an address of this machine, from the kernel's socket table.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
};

/// State of a listener in the table.
const LISTENS: &str = "0A";

/// The oldest process, other than `own`, that listens at this address. `None` if there is none, or if this user may not see
/// it.
pub(super) fn find(proc: &Path, at: SocketAddr, own: u32) -> Option<u32> {
    let tables = ["self/net/tcp", "self/net/tcp6"].map(|table| fs::read_to_string(proc.join(table)));
    let inodes: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines().filter_map(move |line| inode(line, at)))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let processes = fs::read_dir(proc).ok()?.flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && has_open(proc, *pid, &inodes)).min()
}

/// Whether a process has one of these sockets open.
fn has_open(proc: &Path, pid: u32, sockets: &[String]) -> bool {
    let files = fs::read_dir(proc.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link)))
}

/// The inode of the socket in a line of the table, if it is a listener that receives connections to this address.
fn inode(line: &str, at: SocketAddr) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (here, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
    let (ip, port) = here.split_once(':')?;
    if *state != LISTENS || u16::from_str_radix(port, 16).ok()? != at.port() {
        return None;
    }
    let ip = ip_of(ip)?;
    let is_wildcard = ip.is_unspecified() && (ip.is_ipv6() || at.is_ipv4());
    (ip == at.ip() || is_wildcard).then_some(*inode)
}

/// Parses an address of the table: words of 32 bits in the byte order of the machine, in hexadecimal.
fn ip_of(text: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = text
        .as_bytes()
        .chunks(8)
        .map(|word| Some(u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?.to_ne_bytes()))
        .collect();
    let bytes = words?.concat();
    let four = <[u8; 4]>::try_from(&*bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(&*bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn process_that_listens_at_address_is_found_unless_it_is_this_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, own) = (listener.local_addr().unwrap(), std::process::id());
        assert_eq!(find(Path::new("/proc"), at, 0), Some(own));
        assert_eq!(find(Path::new("/proc"), at, own), None);
        let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), at.port());
        assert_eq!(find(Path::new("/proc"), elsewhere, 0), None);
        drop(listener);
        assert_eq!(find(Path::new("/proc"), at, 0), None);
    }
}
