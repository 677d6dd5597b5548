//! Redirectors between real sockets: machines are network namespaces, and a router spreads packets over them.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod network;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    path::{Path, PathBuf},
};

use aya::programs::{SchedClassifier, TcAttachType};
use fairmesh_kernel::{PacketHook, Redirector, Redirects};
use fairmesh_test_support::{eventually_blocking, skipped};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use self::network::{ENTRY, INTERFACE, Network, PATIENCE};

const BUCKETS: usize = 4096;
/// More than the buffers of a connection, so that all kinds of packets are sent.
const LARGE: usize = 2 << 20;

/// A directory of pins, removed on drop.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(format!("/sys/fs/bpf/fairmesh-entry-{}-{name}", std::process::id())))
    }

    fn list(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.list().iter().for_each(|pin| drop(std::fs::remove_file(pin)));
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The redirector of a machine; `None`, with a message, if this process may not load it.
fn load(network: &Network, machine: usize, hook: (PacketHook, &Path)) -> Option<Redirector> {
    match network.machines[machine].within(|| Redirector::load(ENTRY, INTERFACE, hook)) {
        Ok(redirector) => Some(redirector),
        Err(error) => {
            skipped("packets are redirected", error);
            None
        }
    }
}

/// Puts a table in force whose buckets all have this chain.
fn publish(redirector: &mut Redirector, own: u8, chain: &[u8], version: u8) {
    let mut places = [255; 8];
    places[..chain.len()].copy_from_slice(chain);
    let replicas = [1, 2].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let chains = vec![places; BUCKETS];
    let own = Some(own).filter(|own| chain.contains(own));
    redirector
        .publish(Redirects { replicas: &replicas, own, chains: &chains, version, unreachable: 0 })
        .unwrap();
}

/// Two machines with attached redirectors, and a table in which the first one heads all buckets.
struct Redirected {
    network: Network,
    redirectors: [Redirector; 2],
    pins: Pins,
}

impl Redirected {
    fn start(name: &str, hook: PacketHook) -> Option<Self> {
        let network = match Network::new(name, 2) {
            Ok(network) => network,
            Err(problem) => {
                skipped("machines cannot be made", problem);
                return None;
            }
        };
        let pins = Pins::new(name);
        let mut redirectors = [0, 1].map(|machine| load(&network, machine, (hook, &pins.0)));
        for (machine, redirector) in redirectors.iter_mut().enumerate() {
            let redirector = redirector.as_mut()?;
            network.machines[machine].within(|| redirector.attach()).unwrap();
            publish(redirector, u8::try_from(machine).unwrap(), &[0, 1], 1);
        }
        let [Some(first), Some(second)] = redirectors else { return None };
        Some(Self { network, redirectors: [first, second], pins })
    }

    fn publish(&mut self, chain: &[u8], version: u8) {
        for (own, redirector) in (0..).zip(&mut self.redirectors) {
            publish(redirector, own, chain, version);
        }
    }
}

/// Sends bytes, and compares what comes back.
fn is_echoed(stream: &mut TcpStream, length: usize) -> bool {
    let sent: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut reader = stream.try_clone().unwrap();
    let mut received = vec![0; length];
    std::thread::scope(|scope| {
        scope.spawn(|| drop(stream.write_all(&sent)));
        reader.read_exact(&mut received).is_ok() && received == sent
    })
}

/// Whether the peer resets the connection once something is sent.
fn is_reset(stream: &mut TcpStream) -> bool {
    let _ = stream.write_all(b"?");
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

/// Opens connections and returns them if the machine with this number accepted them all.
fn open_at(network: &Network, machine: u8, count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let (stream, by) = network.open().expect("it is accepted");
        assert_eq!(by, machine);
        stream
    };
    (0..count).map(open).collect()
}

fn connections_stay(hook: PacketHook, name: &str) {
    let Some(mut all) = Redirected::start(name, hook) else { return };
    let first = all.network.serve(0);
    let second = all.network.serve(1);
    all.network.route_to(&[0, 1]);
    let mut of_first = open_at(&all.network, 0, 20);
    all.network.route_to(&[1]);
    assert!(of_first.iter_mut().all(|stream| is_echoed(stream, 10_000)), "another machine gets the packets");
    all.publish(&[1, 0], 2);
    let mut of_second = open_at(&all.network, 1, 20);
    all.network.route_to(&[0]);
    let both = of_first.iter_mut().chain(&mut of_second);
    assert!(both.into_iter().all(|stream| is_echoed(stream, 10_000)), "each has its connection");
    assert!(is_echoed(&mut of_second[0], LARGE));
    drop(second);
    let mut later = open_at(&all.network, 0, 5);
    assert!(later.iter_mut().all(|stream| is_echoed(stream, 10)), "the head accepts no more");
    assert!(of_second.iter_mut().all(|stream| is_echoed(stream, 10)), "and keeps its connections");
    drop(first);
    assert_eq!(all.network.open().unwrap_err().kind(), ErrorKind::ConnectionRefused, "nobody accepts");
}

#[test]
fn connections_stay_at_their_machine_while_table_and_router_change() {
    connections_stay(PacketHook::Tcx, "tcx");
}

#[test]
fn redirector_works_on_kernels_without_tcx() {
    connections_stay(PacketHook::Clsact, "clsact");
}

fn survives_crash_and_leaves_nothing(hook: PacketHook, name: &str) {
    let Some(all) = Redirected::start(name, hook) else { return };
    let _serving = [all.network.serve(0), all.network.serve(1)];
    all.network.route_to(&[1]);
    let mut streams = open_at(&all.network, 0, 2);
    let [first, second] = all.redirectors;
    // As if its process had crashed.
    drop(second);
    assert!(is_echoed(&mut streams[0], 10_000), "the redirector stays attached");
    let mut second = load(&all.network, 1, (hook, &all.pins.0)).unwrap();
    publish(&mut second, 1, &[0, 1], 1);
    all.network.machines[1].within(|| second.attach()).unwrap();
    assert!(is_echoed(&mut streams[0], 10_000), "its successor has replaced it");
    let before = second.counts().unwrap().passed_on;
    assert!(is_echoed(&mut streams[0], 10));
    assert!(second.counts().unwrap().passed_on > before, "packets pass the successor");
    for (machine, redirector) in [first, second].into_iter().enumerate() {
        all.network.machines[machine].within(|| redirector.detach()).unwrap();
    }
    eventually_blocking("no program is attached", || {
        let attached = || SchedClassifier::query_tcx(INTERFACE, TcAttachType::Ingress).unwrap().1.is_empty();
        hook == PacketHook::Clsact || all.network.machines.iter().all(|machine| machine.within(attached))
    });
    assert_eq!(all.pins.list(), Vec::<PathBuf>::new());
    assert!(is_reset(&mut streams[1]), "without a redirector, the other machine resets the connection");
}

#[test]
fn redirector_outlives_its_process_is_replaced_and_leaves_nothing() {
    survives_crash_and_leaves_nothing(PacketHook::Tcx, "tcx-crash");
}

#[test]
fn filter_outlives_its_process_is_replaced_and_leaves_nothing() {
    survives_crash_and_leaves_nothing(PacketHook::Clsact, "clsact-crash");
}

#[test]
fn connections_of_unreachable_machine_are_reset_and_new_ones_go_to_the_next() {
    let Some(mut all) = Redirected::start("unreachable", PacketHook::of_this_kernel()) else { return };
    let _serving = [all.network.serve(0), all.network.serve(1)];
    all.network.route_to(&[1]);
    let mut stream = open_at(&all.network, 0, 1).pop().unwrap();
    all.redirectors[1].set_unreachable(1).unwrap();
    assert!(is_reset(&mut stream));
    assert!(all.redirectors[1].counts().unwrap().unclaimed > 0);
    let mut next = open_at(&all.network, 1, 1).pop().unwrap();
    assert!(is_echoed(&mut next, 10_000));
}

#[test]
fn packets_wait_while_tables_differ_or_are_not_known() {
    let Some(mut all) = Redirected::start("tables", PacketHook::of_this_kernel()) else { return };
    let _serving = [all.network.serve(0), all.network.serve(1)];
    all.network.route_to(&[1]);
    let mut stream = open_at(&all.network, 0, 1).pop().unwrap();
    // The second machine does not know the first one, which does not know the second one: each could take the connection for nobody's.
    publish(&mut all.redirectors[1], 1, &[], 2);
    stream.write_all(b"waits").unwrap();
    eventually_blocking("the packet is discarded", || all.redirectors[1].counts().unwrap().discarded > 0);
    publish(&mut all.redirectors[1], 1, &[0, 1], 1);
    let mut received = [0; 5];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"waits");
}

/// The router's way to the client takes smaller packets than the machines send, and it tells so a machine that lacks the connection.
#[test]
fn path_mtu_reaches_the_machine_that_holds_the_connection() {
    let Some(all) = Redirected::start("mtu", PacketHook::of_this_kernel()) else { return };
    let _serving = [all.network.serve(0), all.network.serve(1)];
    all.network.route_to(&[1]);
    all.network.narrow_way_back(1_200);
    let mut stream = open_at(&all.network, 0, 1).pop().unwrap();
    assert!(is_echoed(&mut stream, LARGE));
}

/// Under a flood of SYN packets, a kernel has no socket for a handshake: the client's packet proves that it began.
#[test]
fn handshake_by_syn_cookie_ends_at_the_machine_where_it_began() {
    let Some(all) = Redirected::start("cookies", PacketHook::of_this_kernel()) else { return };
    let _serving = [all.network.serve(0), all.network.serve(1)];
    all.network.route_to(&[1]);
    all.network.machines[0].within(|| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2")).unwrap();
    let mut streams = open_at(&all.network, 0, 10);
    assert!(streams.iter_mut().all(|stream| is_echoed(stream, 10_000)));
    assert_eq!(all.redirectors[1].counts().unwrap().unclaimed, 0);
}

/// A fragment of a TCP packet to an address (RFC 791), which has no ports.
fn fragment(to: Ipv4Addr) -> [u8; 28] {
    let mut packet = [0; 28];
    (packet[0], packet[8], packet[9]) = (0x45, 64, 6);
    packet[6..8].copy_from_slice(&1_u16.to_be_bytes());
    packet[16..20].copy_from_slice(&to.octets());
    packet
}

#[test]
fn fragments_and_packets_to_other_ports_reach_no_connection() {
    let Some(all) = Redirected::start("fragments", PacketHook::of_this_kernel()) else { return };
    let _serving = all.network.serve(0);
    all.network.route_to(&[1]);
    all.network.client.within(|| {
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap();
        for to in [*ENTRY.ip(), Ipv4Addr::new(10, 77, 0, 2)] {
            sendto(&raw, &fragment(to), SendFlags::empty(), &SocketAddrV4::new(to, 0)).unwrap();
        }
        let other = TcpStream::connect_timeout(&SocketAddrV4::new(*ENTRY.ip(), 7441).into(), PATIENCE);
        assert_eq!(other.unwrap_err().kind(), ErrorKind::ConnectionRefused, "the machine itself answers");
    });
    eventually_blocking("the fragment is dropped", || all.redirectors[1].counts().unwrap().fragments == 1);
    let counts = all.redirectors[1].counts().unwrap();
    assert_eq!((counts.passed_on, counts.unclaimed, counts.discarded), (0, 0, 0), "{counts:?}");
}

#[test]
fn unknown_interface_is_refused_with_its_name() {
    let refused = Redirector::load(ENTRY, "nothing0", (PacketHook::Clsact, Path::new("/sys/fs/bpf/none")));
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("no interface nothing0") || refused.contains("without the kernel form"),
        "{refused}"
    );
}
