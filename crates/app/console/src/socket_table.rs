//! Listeners in this network namespace, from the kernel's socket tables (proc_net_tcp(5), proc_net_unix(5)), and their
//! processes.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use crate::process_stat::ProcessStat;

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address of the listener. An unspecified IP address means all addresses of the machine.
    pub address: SocketAddr,
    /// The user that created the socket.
    pub uid: u32,
    /// Inode number of the socket.
    pub inode: u64,
}

/// All listeners.
pub fn listeners() -> Vec<Listener> {
    let tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string).map(Result::unwrap_or_default);
    tables.iter().flat_map(|table| table.lines().filter_map(Listener::read)).collect()
}

/// The listener that receives connections to an address.
pub fn listener_at(at: SocketAddr) -> Option<Listener> {
    listeners().into_iter().find(|listener| listener.takes(at))
}

/// The Unix sockets with this file name at which a process listens, such as `control.sock` of control planes.
pub fn unix_listeners(file_name: &str) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let paths = table.lines().filter_map(unix_listener).filter(|path| path.ends_with(file_name));
    let mut paths: Vec<PathBuf> = paths.map(Path::to_owned).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Parses a line of the table of Unix sockets; `None` unless it is a listener with an absolute path.
fn unix_listener(line: &str) -> Option<&Path> {
    /// `__SO_ACCEPTCON`, the only flag that the table shows.
    const LISTENS: &str = "00010000";
    let flags = line.split_whitespace().nth(3)?;
    // No column before the path has a slash, and the path may contain spaces.
    let path = line.get(line.find(" /")? + 1..)?;
    (flags == LISTENS).then(|| Path::new(path))
}

/// All processes.
pub fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Inode numbers of the open sockets of a process.
///
/// # Errors
/// When this user may not read them, or the process has ended.
pub fn sockets_of(pid: u32) -> io::Result<impl Iterator<Item = u64>> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let links = open.filter_map(|file| fs::read_link(file.path()).ok());
    Ok(links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()))
}

impl Listener {
    /// A process that has the socket open. `None` if this user may not see it, such as another user's process.
    pub fn owner(self) -> Option<ProcessStat> {
        let has_it =
            |pid: &u32| sockets_of(*pid).is_ok_and(|mut sockets| sockets.any(|one| one == self.inode));
        ProcessStat::of(pids().filter(has_it).min()?)
    }

    /// Whether the listener receives connections to this address. A wildcard listener does, on `::` for both address
    /// families.
    fn takes(&self, at: SocketAddr) -> bool {
        let own = self.address.ip();
        let is_wildcard = own.is_unspecified() && (own.is_ipv6() || at.is_ipv4());
        self.address.port() == at.port() && (own == at.ip() || is_wildcard)
    }

    /// Parses a line of the table; `None` if the socket is no listener.
    fn read(line: &str) -> Option<Self> {
        const LISTENS: &str = "0A";
        let mut words = line.split_whitespace().skip(1);
        let (here, state) = (words.next()?, words.nth(1)?);
        if state != LISTENS {
            return None;
        }
        let (ip, port) = here.split_once(':')?;
        let address = SocketAddr::new(ip_of(ip)?, u16::from_str_radix(port, 16).ok()?);
        let (uid, inode) = (words.nth(3)?.parse().ok()?, words.nth(1)?.parse().ok()?);
        Some(Self { address, uid, inode })
    }
}

/// Parses an address of the socket table: 32-bit words in host byte order, in hexadecimal.
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

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";

    fn line(here: &str, state: &str) -> String {
        format!(
            "   0: {here} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000   998        0 1705 1 0"
        )
    }

    /// An IPv4 address in the kernel's notation on this machine.
    fn v4(ip: [u8; 4]) -> String {
        format!("{:08X}:1CF7", u32::from_ne_bytes(ip))
    }

    #[test]
    fn listeners_are_parsed_from_kernel_socket_table() {
        let read = |here: &str| {
            let listener = Listener::read(&line(here, "0A"))?;
            assert_eq!((listener.uid, listener.inode), (998, 1705));
            Some(listener.address.to_string())
        };
        assert_eq!(read(&v4([10, 0, 0, 7])).as_deref(), Some("10.0.0.7:7415"));
        assert_eq!(read("00000000000000000000000000000000:0050").as_deref(), Some("[::]:80"));
        let established = line(&v4([10, 0, 0, 7]), "01");
        for other in [HEAD, "", "0: zz:1 0:0 0A 0 0 0 0 0 1", &established] {
            assert_eq!(Listener::read(other), None, "{other}");
        }
    }

    #[test]
    fn wildcard_listener_covers_every_address() {
        let takes =
            |here: &str, at: &str| Listener::read(&line(here, "0A")).unwrap().takes(at.parse().unwrap());
        let (any, any_v6) = (v4([0; 4]), format!("{:032}:1CF7", 0));
        for here in [&v4([127, 0, 0, 1]), &any, &any_v6] {
            assert!(takes(here, "127.0.0.1:7415"), "{here}");
            assert!(!takes(here, "127.0.0.1:7416"), "{here}");
        }
        assert!(!takes(&v4([127, 0, 0, 2]), "127.0.0.1:7415"));
        assert!(takes(&any_v6, "[::1]:7415"));
        assert!(!takes(&any, "[::1]:7415"));
    }

    #[test]
    fn listening_unix_sockets_are_found_by_file_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("with space").join("control.sock");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let listening = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(unix_listeners("control.sock").contains(&path));
        assert!(!unix_listeners("agent.sock").contains(&path));
        drop(listening);
        assert!(!unix_listeners("control.sock").contains(&path), "nothing listens any more");
    }

    #[test]
    fn listener_process_is_found() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = listener_at(listening.local_addr().unwrap()).unwrap().owner().unwrap();
        assert_eq!(owner.pid, std::process::id());
    }
}
