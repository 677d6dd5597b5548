use std::{
    net::Ipv4Addr,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use fairmesh_test_support::namespaces::{Namespace, remove_orphans};
use tokio::{runtime, sync::oneshot};

/// Location of a host: `Core`, to which both regions are linked, or a region, which can be cut off from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Core,
    Eu,
    Us,
}

impl Place {
    const ALL: [Self; 3] = [Self::Core, Self::Eu, Self::Us];

    /// Name of the bridge in the switch.
    fn bridge(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Eu => "eu",
            Self::Us => "us",
        }
    }
}

/// Network namespaces as hosts, connected by veth pairs. Dropping the network and its hosts removes them; the next
/// start removes those of a killed run.
pub(crate) struct Network {
    /// The namespace to which all hosts are connected.
    switch: Namespace,
    last: AtomicU8,
}

/// A host: a network namespace with one address.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) address: Ipv4Addr,
    namespace: Arc<Namespace>,
}

/// A runtime on its own thread, whose sockets belong to one host. Dropping the value ends the runtime.
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
        let network = Self { switch: Namespace::new("switch")?, last: AtomicU8::new(0) };
        let switch = &network.switch;
        for place in Place::ALL {
            let bridge = place.bridge();
            switch.ip(&["link", "add", bridge, "type", "bridge"])?;
            switch.ip(&["link", "set", bridge, "up"])?;
            if place != Place::Core {
                let (near, far) = (format!("{bridge}-near"), format!("{bridge}-far"));
                switch.ip(&["link", "add", &near, "type", "veth", "peer", "name", &far])?;
                switch.ip(&["link", "set", &near, "master", bridge, "up"])?;
                switch.ip(&["link", "set", &far, "master", Place::Core.bridge(), "up"])?;
            }
        }
        Ok(network)
    }

    pub(crate) fn host(&self, name: &str, place: Place) -> Host {
        let address = Ipv4Addr::new(10, 77, 0, 1 + self.last.fetch_add(1, Relaxed));
        let namespace = Namespace::new(name).unwrap();
        let cable = ["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", namespace.name()];
        self.switch.ip(&cable).unwrap();
        self.switch.ip(&["link", "set", name, "master", place.bridge(), "up"]).unwrap();
        namespace.ip(&["addr", "add", &format!("{address}/16"), "dev", "eth0"]).unwrap();
        namespace.ip(&["link", "set", "eth0", "up"]).unwrap();
        namespace.ip(&["link", "set", "lo", "up"]).unwrap();
        Host { address, namespace: Arc::new(namespace) }
    }

    /// Cuts a region off from the rest, or reconnects it. Hosts within the region still reach each other.
    pub(crate) fn connect(&self, region: Place, connected: bool) {
        let state = if connected { "up" } else { "down" };
        self.switch.ip(&["link", "set", &format!("{}-near", region.bridge()), state]).unwrap();
    }
}

/// Dereferences to the host's namespace.
impl Deref for Host {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl Host {
    /// Blocks or unblocks packets to another host.
    pub(crate) fn reach(&self, other: &Host, reached: bool) {
        let (change, to) = (if reached { "del" } else { "add" }, format!("{}/32", other.address));
        self.ip(&["route", change, "blackhole", &to]).unwrap();
    }

    pub(crate) fn runtime(&self) -> Runtime {
        let (host, (end, ended), (tell, told)) = (self.clone(), oneshot::channel::<()>(), mpsc::channel());
        let thread = thread::spawn(move || {
            host.enter();
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            // Resolves when the sender sends or is dropped.
            let _ = runtime.block_on(ended);
        });
        Runtime { handle: told.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }
}

impl Runtime {
    /// Runs a future on the runtime and waits for its result. `block_on` on the handle would run it on this thread,
    /// with the sockets of this thread's host.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        self.handle.spawn(async move {
            // The receiver waits in `run`.
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
