use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_test_support::namespaces::{Namespace, is_installed, path};

use super::{Run, run, skipped};

/// Two connected machines: network namespaces, which are removed on drop.
pub(crate) struct Machines {
    here: Namespace,
    there: Namespace,
}

/// Addresses of the third machine, and of the first machine as its router.
const BEHIND: [&str; 2] = ["10.79.0.2/24", "fd00:79::2/64"];
const ROUTER: [&str; 2] = ["10.79.0.1/24", "fd00:79::1/64"];
/// Addresses of the first machine, where the test runs, and of the second; their network has no other host.
const HERE: &str = "10.78.0.1";
pub(crate) const THERE: &str = "10.78.0.2";

impl Machines {
    /// `None`, with a message past the test's output capture, if this process may not create namespaces or lacks one of
    /// the programs.
    pub(crate) fn new(programs: &[&str]) -> Option<Self> {
        let missing = programs.iter().find(|program| !is_installed(program));
        let made = match missing {
            Some(missing) => Err(format!("there is no {missing}; scripts/setup.sh hosts installs it")),
            None => Self::make(),
        };
        made.map_err(|reason| skipped("hosts cannot be made", reason)).ok()
    }

    fn make() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let make = |side: &str| Namespace::new(&format!("{side}{number}"));
        let machines = Self { here: make("here")?, there: make("there")? };
        let Self { here, there } = &machines;
        here.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", there.name()])?;
        for (machine, address) in [(here, HERE), (there, THERE)] {
            machine.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            machine.ip(&["link", "set", "eth0", "up"])?;
            machine.ip(&["link", "set", "lo", "up"])?;
        }
        here.ip(&["addr", "add", "fd00:78::1/64", "dev", "eth0", "nodad"])?;
        Ok(machines)
    }

    /// A third machine with the first one as its router; it is removed on drop too.
    pub(crate) fn behind(&self) -> Behind {
        let Self { here, there } = self;
        let number = here.name().rsplit('-').next().unwrap();
        let behind = Namespace::new(&format!("{number}-behind")).unwrap();
        let done = |machine: &Namespace, arguments: &str| {
            machine.ip(&arguments.split(' ').collect::<Vec<_>>()).unwrap();
        };
        done(&behind, &format!("link add eth0 type veth peer name eth1 netns {}", here.name()));
        for (of, link, addresses) in [(&behind, "eth0", BEHIND), (here, "eth1", ROUTER)] {
            for address in addresses {
                done(of, &format!("addr add {address} dev {link} nodad"));
            }
            done(of, &format!("link set {link} up"));
        }
        let [v4, v6] = ROUTER.map(|address| address.split('/').next().unwrap());
        done(&behind, &format!("route add default via {v4}"));
        done(&behind, &format!("-6 route add default via {v6}"));
        done(there, &format!("route add 10.79.0.0/24 via {HERE}"));
        here.within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        Behind(behind)
    }

    /// Runs a test on the first machine, which then owns its sockets and child processes.
    pub(crate) fn run<F: Future<Output = ()>>(&self, test: impl FnOnce() -> F + Send) {
        self.here.within(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
    }

    /// Listens on the second machine.
    pub(crate) fn listen_there(&self, port: u16) -> TcpListener {
        let listener = self.there.within(|| TcpListener::bind((THERE, port)).unwrap());
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// Connects from the second machine.
    pub(crate) fn connect_there(&self, to: SocketAddr) -> TcpStream {
        connect(&self.there, to)
    }
}

/// A machine behind the first one.
pub(crate) struct Behind(Namespace);

impl Behind {
    /// Connects from the machine behind the router.
    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        connect(&self.0, to)
    }

    /// Listens on the machine behind the router.
    pub(crate) fn listen(&self) -> TcpListener {
        self.0.within(|| TcpListener::bind("10.79.0.2:0").unwrap())
    }

    /// Runs curl on the machine behind the router.
    pub(crate) async fn curl(&self, arguments: &[&str]) -> Run {
        let mut command = tokio::process::Command::new("/usr/bin/env");
        command.arg(format!("PATH={}", path()));
        command.args([
            "ip",
            "netns",
            "exec",
            self.0.name(),
            "curl",
            "--silent",
            "--include",
            "--max-time",
            "20",
        ]);
        command.args(arguments);
        run(command, "", Duration::from_secs(30)).await
    }
}

fn connect(machine: &Namespace, to: SocketAddr) -> TcpStream {
    machine.within(|| TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap())
}
