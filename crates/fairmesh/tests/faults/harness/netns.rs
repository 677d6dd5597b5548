use std::{
    fs::File,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Run, run, skipped};

/// Two machines with a cable between them: network namespaces, which vanish with the value.
pub(crate) struct Machines {
    names: [String; 2],
    here: File,
    there: File,
}

/// Addresses of the third one, and of the first one where that is its router.
const BEHIND: [&str; 2] = ["10.79.0.2/24", "fd00:79::2/64"];
const ROUTER: [&str; 2] = ["10.79.0.1/24", "fd00:79::1/64"];
/// The address of the one where a test runs, and of the other; what else is in their network is nobody.
const HERE: &str = "10.78.0.1";
pub(crate) const THERE: &str = "10.78.0.2";

impl Machines {
    /// `None` where this process may not make them or lacks one of the programs; that is said past the capture of what passing
    /// tests print.
    pub(crate) fn new(programs: &[&str]) -> Option<Self> {
        let missing = programs.iter().find(|program| !is_here(program));
        let made = match missing {
            Some(missing) => Err(format!("there is no {missing}; scripts/setup.sh hosts installs it")),
            None => Self::make(),
        };
        made.map_err(|reason| skipped("hosts cannot be made", reason)).ok()
    }

    fn make() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        // As tests of outages name theirs, which remove what killed processes left.
        let names = ["here", "there"].map(|side| format!("fairmesh-{}-{side}{number}", std::process::id()));
        for name in &names {
            ip(&["netns", "add", name])?;
        }
        let [here, there] = names.each_ref().map(|name| File::open(format!("/run/netns/{name}")).unwrap());
        let machines = Self { names, here, there };
        let [a, b] = &machines.names;
        ip(&["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])?;
        for (name, address) in [(a, HERE), (b, THERE)] {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        ip(&["-n", a, "addr", "add", "fd00:78::1/64", "dev", "eth0", "nodad"])?;
        Ok(machines)
    }

    /// A third machine, for which the first one is the router: network namespaces that vanish as these do.
    pub(crate) fn behind(&self) -> Behind {
        let [here, there] = &self.names;
        let name = format!("{here}-behind");
        let done = |arguments: &str| ip(&arguments.split(' ').collect::<Vec<_>>()).unwrap();
        done(&format!("netns add {name}"));
        let space = File::open(format!("/run/netns/{name}")).unwrap();
        let behind = Behind { name, space };
        let name = &behind.name;
        done(&format!("-n {name} link add eth0 type veth peer name eth1 netns {here}"));
        for (of, link, addresses) in [(name, "eth0", BEHIND), (here, "eth1", ROUTER)] {
            for address in addresses {
                done(&format!("-n {of} addr add {address} dev {link} nodad"));
            }
            done(&format!("-n {of} link set {link} up"));
        }
        let [v4, v6] = ROUTER.map(|address| address.split('/').next().unwrap());
        done(&format!("-n {name} route add default via {v4}"));
        done(&format!("-n {name} -6 route add default via {v6}"));
        done(&format!("-n {there} route add 10.79.0.0/24 via {HERE}"));
        within(&self.here, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        behind
    }

    /// Runs a test on the first machine: its sockets are there, and the processes that it starts.
    pub(crate) fn run<F: Future<Output = ()>>(&self, test: impl FnOnce() -> F + Send) {
        within(&self.here, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
    }

    /// Listens on the second machine.
    pub(crate) fn listen_there(&self, port: u16) -> TcpListener {
        let listener = within(&self.there, || TcpListener::bind((THERE, port)).unwrap());
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// A connection from the second machine.
    pub(crate) fn connect_there(&self, to: SocketAddr) -> TcpStream {
        connect(&self.there, to)
    }
}

/// A machine behind the first one.
pub(crate) struct Behind {
    name: String,
    space: File,
}

impl Behind {
    /// A connection from there.
    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        connect(&self.space, to)
    }

    /// Listens there.
    pub(crate) fn listen(&self) -> TcpListener {
        within(&self.space, || TcpListener::bind("10.79.0.2:0").unwrap())
    }

    /// Runs curl there.
    pub(crate) async fn curl(&self, arguments: &[&str]) -> Run {
        let mut command = tokio::process::Command::new("/usr/bin/env");
        command.arg(format!("PATH={}", path()));
        command.args([
            "ip",
            "netns",
            "exec",
            &self.name,
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

impl Drop for Behind {
    fn drop(&mut self) {
        if let Err(problem) = ip(&["netns", "del", &self.name]) {
            eprintln!("the network namespace {} is left: {problem}", self.name);
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            // What cannot be removed is said, and not what a test fails of.
            if let Err(problem) = ip(&["netns", "del", name]) {
                eprintln!("the network namespace {name} is left: {problem}");
            }
        }
    }
}

fn within<T: Send>(machine: &File, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            move_into_link_name_space(machine.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn connect(machine: &File, to: SocketAddr) -> TcpStream {
    within(machine, || TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap())
}

/// Where programs are looked for, also those of the system where a user's path has them not.
pub(crate) fn path() -> String {
    format!("/usr/sbin:/usr/bin:/sbin:/bin:{}", std::env::var("PATH").unwrap_or_default())
}

fn is_here(program: &str) -> bool {
    std::env::split_paths(&path()).any(|folder| folder.join(program).is_file())
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).env("PATH", path()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), complaint.trim()))
}
