use std::{
    net::TcpListener,
    os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr, unix::net::UnixDatagram},
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

/// First port given out. All are below the ephemeral range of Linux (`ip_local_port_range`, from 32768), so that no outgoing connection takes
/// one while a server is stopped.
const FIRST: u16 = 10_000;
/// How many ports are given out.
const COUNT: u16 = 20_000;

/// What holds the ports of this process, until it ends.
static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 where nothing listens, and that no other test is given while this process lives.
///
/// A socket in the abstract namespace holds the number: only one process can bind the name, and the kernel frees it when that ends.
///
/// # Panics
/// When no port is left.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes begin at different places, so that few meet.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    (0..COUNT)
        .map(|_| FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)) % COUNT)
        .find(|port| hold(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one of twenty thousand ports is free")
}

/// False where another process holds it.
fn hold(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("fairmesh-test-port-{port}")).unwrap();
    let Ok(socket) = UnixDatagram::bind_addr(&name) else { return false };
    HELD.lock().unwrap().push(socket);
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(BTreeSet::from_iter(&ports).len(), ports.len());
        assert!(ports.iter().all(|port| !hold(*port)), "they are held");
        assert!(ports.iter().all(|port| (FIRST..FIRST + COUNT).contains(port)));
    }
}
