use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::fd::AsFd,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{runtime, sync::oneshot};

/// Where network namespaces have names.
const NAMED: &str = "/run/netns";
/// What the names of ours begin with; the number of the process follows.
const OURS: &str = "fairmesh-";
/// The host that all cables lead to.
const SWITCH: &str = "switch";

/// Where a host stands: in the middle, or in a region that can be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Core,
    Eu,
    Us,
}

impl Place {
    const ALL: [Self; 3] = [Self::Core, Self::Eu, Self::Us];

    /// The bridge in the switch.
    fn bridge(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Eu => "eu",
            Self::Us => "us",
        }
    }
}

/// Namespaces that are hosts, with cables between them. All vanish with the value; what an earlier run had to leave when it
/// was killed goes at the next start.
pub(crate) struct Network {
    tag: String,
    last: AtomicU8,
}

/// One host: a network namespace with one address.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) address: Ipv4Addr,
    namespace: Arc<File>,
}

/// A runtime whose sockets are those of one host, on a thread of its own. Ends with the value.
pub(crate) struct Runtime {
    pub(crate) handle: runtime::Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// # Errors
    /// Why this process may not make hosts.
    pub(crate) fn new() -> Result<Self, String> {
        remove_orphans();
        let network = Self { tag: format!("{OURS}{}", std::process::id()), last: AtomicU8::new(0) };
        let switch = network.name(SWITCH);
        try_ip(&["netns", "add", &switch])?;
        for place in Place::ALL {
            let bridge = place.bridge();
            try_ip(&["-n", &switch, "link", "add", bridge, "type", "bridge"])?;
            try_ip(&["-n", &switch, "link", "set", bridge, "up"])?;
            if place != Place::Core {
                let (near, far) = (format!("{bridge}-near"), format!("{bridge}-far"));
                network.switch(&["link", "add", &near, "type", "veth", "peer", "name", &far]);
                network.switch(&["link", "set", &near, "master", bridge, "up"]);
                network.switch(&["link", "set", &far, "master", Place::Core.bridge(), "up"]);
            }
        }
        Ok(network)
    }

    pub(crate) fn host(&self, name: &str, place: Place) -> Host {
        let address = Ipv4Addr::new(10, 77, 0, 1 + self.last.fetch_add(1, Relaxed));
        let namespace = self.name(name);
        ip(&["netns", "add", &namespace]);
        self.switch(&["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &namespace]);
        self.switch(&["link", "set", name, "master", place.bridge(), "up"]);
        ip(&["-n", &namespace, "addr", "add", &format!("{address}/16"), "dev", "eth0"]);
        ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
        ip(&["-n", &namespace, "link", "set", "lo", "up"]);
        let namespace = File::open(Path::new(NAMED).join(namespace)).unwrap();
        Host { address, namespace: Arc::new(namespace) }
    }

    /// Cuts a region off from the rest, or connects it again. Hosts within it go on to reach each other.
    pub(crate) fn connect(&self, region: Place, connected: bool) {
        let state = if connected { "up" } else { "down" };
        self.switch(&["link", "set", &format!("{}-near", region.bridge()), state]);
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }

    fn switch(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name(SWITCH)], arguments].concat());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let ours = format!("{}-", self.tag);
        named().iter().filter(|name| name.starts_with(&ours)).for_each(|name| remove(name));
    }
}

impl Host {
    /// Does something on this host; what it starts stays there.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter();
                work()
            });
            there.join().unwrap()
        })
    }

    /// Moves this thread, and whoever it starts, to the host.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Sends nothing to another host any more, or does again.
    pub(crate) fn reach(&self, other: &Host, reached: bool) {
        let (change, to) = (if reached { "del" } else { "add" }, format!("{}/32", other.address));
        self.within(|| ip(&["route", change, "blackhole", &to]));
    }

    pub(crate) fn runtime(&self) -> Runtime {
        let (host, (end, ended), (tell, told)) = (self.clone(), oneshot::channel::<()>(), mpsc::channel());
        let thread = thread::spawn(move || {
            host.enter();
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            // Dropped or sent, it is over.
            let _ = runtime.block_on(ended);
        });
        Runtime { handle: told.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }
}

impl Runtime {
    /// Does something there, and waits for it. To block on the handle would do it here, with the sockets of this host.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        self.handle.spawn(async move {
            // Who asked waits for it.
            let _ = tell.send(work.await);
        });
        told.recv().expect("it ended without an answer; see the panic above")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removes what processes left that are no more.
fn remove_orphans() {
    for name in named() {
        let process = name.strip_prefix(OURS).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            remove(&name);
        }
    }
}

fn named() -> Vec<String> {
    let entries = fs::read_dir(NAMED).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn remove(name: &str) {
    if let Err(problem) = try_ip(&["netns", "del", name]) {
        eprintln!("the network namespace {name} is left: {problem}");
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    try_ip(arguments).unwrap();
}

fn try_ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), complaint.trim()))
}
