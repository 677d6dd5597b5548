//! Listeners of this network namespace, by the kernel's table of sockets (proc_net_tcp(5)), and their processes.

use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
};

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The user that made it.
    pub(crate) uid: u32,
    inode: u64,
}

/// A process that listens.
pub(crate) struct Owner {
    pub(crate) pid: u32,
    name: String,
    /// Whether the process that started it has ended, so that init has it.
    pub(crate) is_orphan: bool,
}

/// The listener that an address leads to.
pub(crate) fn listener_at(at: SocketAddr) -> Option<Listener> {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|file| {
        let table = fs::read_to_string(file).unwrap_or_default();
        table.lines().find_map(|line| listener(line, at))
    })
}

impl Listener {
    /// A process that has it open; `None` if that may not be seen, as of another user.
    pub(crate) fn owner(self) -> Option<Owner> {
        let socket = format!("socket:[{}]", self.inode);
        let pids = fs::read_dir("/proc")
            .ok()?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has_it = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files
                .filter_map(|file| fs::read_link(file.path()).ok())
                .any(|open| open.as_os_str() == socket.as_str())
        };
        let pid = pids.filter(has_it).min()?;
        Owner::read(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

impl Owner {
    /// Reads `/proc/PID/stat` (proc_pid_stat(5)): the name is in parentheses, and may contain some.
    fn read(pid: u32, stat: &str) -> Option<Self> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?;
        Some(Self { pid, name: name.to_owned(), is_orphan: parent == "1" })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({:?})", self.pid, self.name)
    }
}

/// The listener in this line of the table, if the address leads to it.
fn listener(line: &str, at: SocketAddr) -> Option<Listener> {
    const LISTENS: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (here, state) = (words.next()?, words.nth(1)?);
    let (address, port) = here.split_once(':')?;
    if state != LISTENS || u16::from_str_radix(port, 16) != Ok(at.port()) {
        return None;
    }
    let address = address_of(address)?;
    // A wildcard listener matches too; on `::`, for both families.
    let takes = address == at.ip() || address.is_unspecified() && (address.is_ipv6() || at.is_ipv4());
    let (uid, inode) = (words.nth(3)?.parse().ok()?, words.nth(1)?.parse().ok()?);
    takes.then_some(Listener { uid, inode })
}

/// Parses an address of the socket table: 32-bit words in host byte order, in hexadecimal.
fn address_of(text: &str) -> Option<IpAddr> {
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

    #[test]
    fn a_listener_is_read_from_the_socket_table() {
        let line = |here: &str, state: &str| {
            format!(
                "   0: {here} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000   998        0 1705 1 0"
            )
        };
        let expected = Some(Listener { uid: 998, inode: 1705 });
        let at = |at: &str| at.parse::<SocketAddr>().unwrap();
        let v4 = at("127.0.0.1:7415");
        assert_eq!(listener(HEAD, v4), None);
        assert_eq!(listener(&line("0100007F:1CF7", "0A"), v4), expected);
        assert_eq!(listener(&line("00000000:1CF7", "0A"), v4), expected);
        assert_eq!(listener(&line("00000000000000000000000000000000:1CF7", "0A"), v4), expected);
        for other in [line("0100007F:1CF7", "01"), line("0100007F:1CF8", "0A"), line("0200007F:1CF7", "0A")] {
            assert_eq!(listener(&other, v4), None, "{other}");
        }
        let v6 = line("00000000000000000000000001000000:1CF7", "0A");
        assert_eq!(listener(&v6, at("[::1]:7415")), expected);
        assert_eq!(listener(&line("00000000:1CF7", "0A"), at("[::1]:7415")), None);
    }

    #[test]
    fn the_process_of_a_listener_is_found() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = listener_at(listening.local_addr().unwrap()).unwrap().owner().unwrap();
        assert_eq!(owner.pid, std::process::id());
        let orphan = Owner::read(7, "7 (python3 (x)) S 1 7 7").unwrap();
        assert_eq!((orphan.to_string().as_str(), orphan.is_orphan), ("process 7 (\"python3 (x)\")", true));
        assert!(!Owner::read(7, "7 (python3) S 12 7 7").unwrap().is_orphan);
    }
}
