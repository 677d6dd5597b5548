use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use fairmesh_wire::transport::Address;
use tempfile::TempDir;

use super::{Daemon, Host, Network, Place, Plan, etcd::Etcd, until};

/// The regions and services of the fleet. The distance is declared: measured on one machine, both regions would be in
/// one ring, and calls would cross regions.
const TOPOLOGY: &str = "\
kind: Topology
regions: [{name: eu, neighbours: [us]}, {name: us, neighbours: [eu]}]
roundTrips: [{between: [eu, us], rtt: 50ms}]
---
kind: Service
name: shop/front
";
/// Size of a small disk, in megabytes.
const DISK_MB: u32 = 16;

/// Hosts of a small mesh: etcd, two control planes that use it, a tree of replicas, and an agent in each region.
pub(crate) struct Fleet {
    pub(crate) etcd: Etcd,
    pub(crate) controls: [Daemon; 2],
    pub(crate) root: Replica,
    /// Replica on a small disk of its own, which exists as long as the process.
    pub(crate) eu: Replica,
    /// Replica with a settable clock.
    pub(crate) us: Replica,
    pub(crate) agents: [Agent; 2],
    /// A control plane without standby.
    pub(crate) lone: Lone,
    /// Host of writers, readers and watchers.
    pub(crate) desk: Host,
    pub(crate) control_hosts: [Host; 2],
    pub(crate) network: Network,
    folder: TempDir,
}

pub(crate) struct Replica {
    pub(crate) daemon: Daemon,
    pub(crate) state: PathBuf,
    host: Host,
}

/// A control plane whose store is a file, on a small disk that exists as long as the process.
pub(crate) struct Lone {
    pub(crate) daemon: Daemon,
    pub(crate) data: PathBuf,
    host: Host,
}

pub(crate) struct Agent {
    pub(crate) region: &'static str,
    pub(crate) daemon: Daemon,
    pub(crate) host: Host,
    pub(crate) socket: Address,
}

impl Fleet {
    /// # Errors
    /// Why this machine cannot be made into several.
    pub(crate) fn start() -> Result<Self, String> {
        let network = Network::new()?;
        let folder = tempfile::tempdir().unwrap();
        let (path, desk) = (folder.path(), network.host("desk", Place::Core));
        let etcd = Etcd::start(&network, path, &desk);
        let control_hosts = ["control-1", "control-2"].map(|name| network.host(name, Place::Core));
        let control = |number: usize| control(path, number, &control_hosts[number], &etcd.addresses());
        let controls = [control(0), control(1)];
        let upstreams = control_hosts.each_ref().map(|host| format!("{}:7400", host.address)).join(",");
        let root = Replica::start(("root", "core", &upstreams), network.host("root", Place::Core), path);
        let upstream = root.address().to_string();
        let eu = Replica::start(("eu", "eu", &upstream), network.host("eu-replica", Place::Eu), path);
        let us = Replica::start(("us", "us", &upstream), network.host("us-replica", Place::Us), path);
        let agent = |region, place, replica: &Replica| {
            let upstreams = format!("{},{upstream}", replica.address());
            Agent::start(region, network.host(&format!("{region}-agent"), place), &upstreams, path)
        };
        let agents = [agent("eu", Place::Eu, &eu), agent("us", Place::Us, &us)];
        let lone = Lone::start(network.host("lone", Place::Core), path);
        let fleet = Self { etcd, controls, root, eu, us, agents, lone, desk, control_hosts, network, folder };
        fleet.apply(TOPOLOGY);
        Ok(fleet)
    }

    /// Addresses of the control planes; one of them serves at a time.
    pub(crate) fn control_addresses(&self) -> [Address; 2] {
        self.control_hosts.each_ref().map(|host| Address::Tcp(format!("{}:7400", host.address)))
    }

    /// Waits for a serving control plane; returns its index.
    pub(crate) fn serving(&self) -> usize {
        let listens = |host: &Host| {
            let address = (host.address, 7400).into();
            self.desk.within(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
        };
        let mut serving = None;
        until("a control plane serves", || {
            serving = self.control_hosts.iter().position(listens);
            serving.is_some()
        });
        serving.unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Applies YAML, and retries until a control plane accepts it.
    pub(crate) fn apply(&self, yaml: &str) {
        let file = self.path("applied.yaml");
        fs::write(&file, yaml).unwrap();
        let mut addresses = self.control_addresses().into_iter().cycle();
        until("it is applied", || {
            let control = addresses.next().unwrap().to_string();
            let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
            command.args(["apply", "--control", &control, "-f"]).arg(&file);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            self.desk.within(move || command.status().unwrap().success())
        });
    }

    /// Processes that must not exit by themselves.
    pub(crate) fn steady(&self) -> impl Iterator<Item = &Daemon> {
        let members = self.etcd.members.iter().map(|member| &member.daemon);
        let replicas = [&self.root, &self.eu, &self.us].map(|replica| &replica.daemon);
        let rest = std::iter::once(&self.lone.daemon);
        members.chain(replicas).chain(rest).chain(self.agents.iter().map(|agent| &agent.daemon))
    }
}

fn control(folder: &Path, number: usize, host: &Host, etcd: &str) -> Daemon {
    let name = format!("control-{}", number + 1);
    let arguments = format!(
        "control --trust-domain none --grpc {}:7400 --admin {}:7401 --data-dir {} --store etcd://{etcd}/mesh",
        host.address,
        host.address,
        folder.join(&name).display()
    );
    Daemon::start(host, Plan::fairmesh(folder.join(format!("{name}.log")), &arguments))
}

impl Lone {
    fn start(host: Host, folder: &Path) -> Self {
        let data = folder.join("lone");
        let arguments = format!(
            "control --trust-domain none --grpc {}:7400 --admin {}:7401 --data-dir {}",
            host.address,
            host.address,
            data.display()
        );
        let mut plan = Plan::fairmesh(folder.join("lone.log"), &arguments);
        plan.disk = Some((data.clone(), DISK_MB));
        Self { daemon: Daemon::start(&host, plan), data, host }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Tcp(format!("{}:7400", self.host.address))
    }
}

impl Replica {
    fn start((name, region, upstreams): (&str, &str, &str), host: Host, folder: &Path) -> Self {
        let state = folder.join(format!("{name}-state"));
        let arguments = format!(
            "rib replica --name {name} --region {region} --upstream {upstreams} --listen {}:7403 --admin {}:7404 \
             --state-dir {}",
            host.address,
            host.address,
            state.display()
        );
        let mut plan = Plan::fairmesh(folder.join(format!("{name}.log")), &arguments);
        match name {
            "eu" => plan.disk = Some((state.clone(), DISK_MB)),
            "us" => plan.env = crate::faults::clock::preload(folder),
            _ => {}
        }
        Self { daemon: Daemon::start(&host, plan), state, host }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Tcp(format!("{}:7403", self.host.address))
    }

    /// Kills the replica, if it runs, and starts it with an empty disk.
    pub(crate) fn lose_disk(&self) {
        self.daemon.kill();
        fs::remove_dir_all(&self.state).unwrap();
        self.daemon.revive();
    }

    /// Value of a metric of the replica; `None` if the replica does not answer.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let page = page(&self.host, self.host.address)?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Some(line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap())
    }
}

fn page(host: &Host, address: Ipv4Addr) -> Option<String> {
    host.within(|| {
        let mut stream = TcpStream::connect((address, 7404)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: replica\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    })
}

impl Agent {
    fn start(region: &'static str, host: Host, upstreams: &str, folder: &Path) -> Self {
        let socket = folder.join(format!("{region}-agent.sock"));
        let arguments = format!(
            "agent --name {region} --region {region} --control {upstreams} --admin none --listen unix:{} --state-dir {}",
            socket.display(),
            folder.join(format!("{region}-agent")).display()
        );
        let plan = Plan::fairmesh(folder.join(format!("{region}-agent.log")), &arguments);
        Self { region, daemon: Daemon::start(&host, plan), host, socket: Address::Unix(socket) }
    }
}
