//! Machines, a router and a client.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

use fairmesh_test_support::namespaces::{Namespace, remove_orphans};
use rustix::net::{Shutdown, shutdown};

pub(crate) const ENTRY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 7440);
pub(crate) const INTERFACE: &str = "eth0";
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const BRIDGE: &str = "bridge0";

pub(crate) struct Network {
    pub(crate) machines: Vec<Namespace>,
    pub(crate) client: Namespace,
    router: Namespace,
}

/// A server that tells each client the number of its machine, and echoes.
pub(crate) struct Serving {
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

impl Network {
    pub(crate) fn new(name: &str, machines: u8) -> Result<Self, String> {
        remove_orphans();
        let router = Namespace::new(&format!("{name}-r"))?;
        router.ip(&["link", "add", "name", BRIDGE, "type", "bridge"])?;
        router.ip(&["addr", "add", "10.77.0.254/24", "dev", BRIDGE])?;
        router.ip(&["link", "set", BRIDGE, "up"])?;
        router.within(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1")
                .and_then(|()| fs::write("/proc/sys/net/ipv4/fib_multipath_hash_policy", "1"))
                .map_err(|error| error.to_string())
        })?;
        let client = host(&router, &format!("{name}-c"), ("client", "10.1.0.2/24"))?;
        router.ip(&["addr", "add", "10.1.0.1/24", "dev", "client"])?;
        client.ip(&["route", "add", "default", "via", "10.1.0.1"])?;
        let machine = |number: u8| {
            let (cable, address) = (format!("m{number}"), format!("10.77.0.{}/24", number + 1));
            let machine = host(&router, &format!("{name}-{number}"), (&cable, &address))?;
            router.ip(&["link", "set", &cable, "master", BRIDGE])?;
            machine.ip(&["addr", "add", &format!("{}/32", ENTRY.ip()), "dev", "lo"])?;
            machine.ip(&["route", "add", "default", "via", "10.77.0.254"])?;
            Ok(machine)
        };
        let machines = (0..machines).map(machine).collect::<Result<_, String>>()?;
        Ok(Self { machines, client, router })
    }

    /// Has the router spread new packets over these machines.
    pub(crate) fn route_to(&self, machines: &[u8]) {
        let entry = format!("{}/32", ENTRY.ip());
        let hops: Vec<String> = machines.iter().map(|number| format!("10.77.0.{}", number + 1)).collect();
        let hops = hops.iter().flat_map(|hop| ["nexthop", "via", hop]);
        self.router.ip(&["route", "replace", &entry].into_iter().chain(hops).collect::<Vec<_>>()).unwrap();
    }

    /// Lets only packets of this size pass from the router to the client.
    pub(crate) fn narrow_way_back(&self, mtu: u16) {
        let mtu = mtu.to_string();
        self.router.ip(&["route", "replace", "10.1.0.2/32", "dev", "client", "mtu", &mtu]).unwrap();
    }

    /// Serves at a machine.
    pub(crate) fn serve(&self, machine: u8) -> Serving {
        let listener = self.machines[usize::from(machine)].within(|| TcpListener::bind(ENTRY)).unwrap();
        let accepting = listener.try_clone().unwrap();
        let accepting = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                thread::spawn(move || echo(stream, machine));
            }
        });
        Serving { listener, accepting: Some(accepting) }
    }

    /// Opens a connection of the client. Returns the number of the machine that accepted it.
    pub(crate) fn open(&self) -> io::Result<(TcpStream, u8)> {
        let mut stream = self.client.within(|| TcpStream::connect_timeout(&ENTRY.into(), PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut machine = [0];
        stream.read_exact(&mut machine)?;
        Ok((stream, machine[0]))
    }
}

/// Stops accepting. Open connections go on.
impl Drop for Serving {
    fn drop(&mut self) {
        // Ends the pending accept.
        shutdown(&self.listener, Shutdown::Both).unwrap();
        self.accepting.take().unwrap().join().unwrap();
    }
}

/// A namespace with a cable to the router, whose end there has the given name.
fn host(router: &Namespace, name: &str, (cable, address): (&str, &str)) -> Result<Namespace, String> {
    let host = Namespace::new(name)?;
    router.ip(&["link", "add", cable, "type", "veth", "peer", "name", INTERFACE, "netns", host.name()])?;
    router.ip(&["link", "set", cable, "up"])?;
    host.ip(&["link", "set", "lo", "up"])?;
    host.ip(&["addr", "add", address, "dev", INTERFACE])?;
    host.ip(&["link", "set", INTERFACE, "up"])?;
    Ok(host)
}

fn echo(mut stream: TcpStream, machine: u8) {
    let mut reader = stream.try_clone().unwrap();
    if stream.write_all(&[machine]).is_ok() {
        let _ = io::copy(&mut reader, &mut stream);
    }
}
