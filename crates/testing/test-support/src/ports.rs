use std::{
    net::TcpListener,
    os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr, unix::net::UnixDatagram},
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

/// First port to give out. All ports are below the ephemeral range of Linux (`ip_local_port_range`, from 32768), so
/// that no outgoing connection takes a port while a server is stopped.
const FIRST: u16 = 10_000;
/// Number of ports to give out.
const COUNT: u16 = 20_000;

/// Sockets that reserve the ports of this process until it ends.
static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A free port of 127.0.0.1 that no other test gets while this process lives.
///
/// A socket in the abstract namespace reserves the number: only one process can bind the name, and the kernel frees it
/// when the process ends.
///
/// # Panics
/// When no port is left.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes start at different numbers, so that they rarely collide.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    (0..COUNT)
        .map(|_| FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)) % COUNT)
        .find(|port| hold(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one of twenty thousand ports is free")
}

/// Reserves a port; false if another process has it.
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
    fn free_port_returns_each_port_once() {
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(BTreeSet::from_iter(&ports).len(), ports.len());
        assert!(ports.iter().all(|port| !hold(*port)), "they are held");
        assert!(ports.iter().all(|port| (FIRST..FIRST + COUNT).contains(port)));
    }
}
