//! Unmodified programs in a cgroup: eBPF programs redirect their connections to a proxy, and the kernel sends their
//! requests.

mod balance;
mod blocking;
mod closing;
mod containers;
mod ejected;
mod in_flight;
mod ipv6;
mod large;
mod local;
mod million;
mod only_services;
mod others;
mod peers;
mod pipelined;
mod remote;
mod requests;
mod routes;
mod secure;
mod secure_fronts;
mod secure_namespaces;
mod sidecar;
mod soak;
mod tls;
mod unread;
mod upgrade;

use std::{fs, path::PathBuf, process::id, time::Duration};

use fairmesh_model::Protocol;
use fairmesh_test_support::{fairmesh, remove_cgroups};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Proxy, Run, Spec, World, beside_others, free_port, run, skipped, until};

/// Time limit of a command. A fixed number of calls takes long while other tests use the machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A BPF file system and a cgroup for one test; `detach` removes their contents.
struct Attached {
    folder: TempDir,
    cgroup: String,
}

impl Attached {
    /// `None` where eBPF is not permitted.
    async fn new(name: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = mount("bpf", folder.path(), "bpf", MountFlags::empty(), None) {
            skipped("eBPF programs cannot be attached", error);
            return None;
        }
        let attached = Self { folder, cgroup: format!("/fairmesh-test-{}-{name}", id()) };
        let probe = attached.kernel(&["probe", "--json"]).await;
        if probe.code != Some(0) {
            skipped("eBPF programs cannot be attached", probe.out);
            return None;
        }
        Some(attached)
    }

    fn pins(&self) -> PathBuf {
        self.folder.path().join("fairmesh")
    }

    async fn kernel(&self, arguments: &[&str]) -> Run {
        let pins = self.pins().display().to_string();
        run(fairmesh(&[&["kernel"], arguments, &["--bpffs", &pins]].concat()), "", PATIENCE).await
    }

    async fn attach(&self) {
        self.attach_with(&[]).await;
    }

    async fn attach_with(&self, options: &[&str]) {
        let attach = ["attach", "--cgroup", &self.cgroup, "--to", "127.96.0.0/16"];
        self.kernel(&[&attach, options].concat()).await.ok();
    }

    /// Runs a program in the cgroup.
    async fn run(&self, program: &[&str]) -> Run {
        self.run_for(program, PATIENCE).await
    }

    async fn run_for(&self, program: &[&str], at_most: Duration) -> Run {
        let run_in = ["kernel", "run", "--cgroup", &self.cgroup, "--"];
        run(fairmesh(&[&run_in, program].concat()), "", at_most).await
    }

    /// Runs curl in the cgroup, with a host of the mesh at a virtual address.
    async fn curl(&self, arguments: &[&str]) -> Run {
        let curl = ["curl", "--silent", "--include", "--max-time", "20"];
        let resolve = ["--resolve", "hello.shop:80:127.96.0.1"];
        self.run(&[&curl[..], &resolve, arguments].concat()).await
    }

    /// Starts a proxy with a listener for the cgroup.
    async fn proxy(&self, world: &World) -> Proxy {
        self.proxy_with(world, "").await
    }

    async fn proxy_with(&self, world: &World, options: &str) -> Proxy {
        let listen = format!("--listen kernel:127.0.0.1:{}+bpffs={}", free_port(), self.pins().display());
        Proxy::with(world, format!("{options} {listen}").trim()).await
    }

    async fn status(&self) -> Value {
        serde_json::from_str(&self.kernel(&["status", "--json"]).await.ok()).unwrap()
    }

    async fn counter(&self, name: &str) -> u64 {
        self.status().await["counters"][name].as_u64().unwrap()
    }
}

/// Whether the kernel or iproute2 (`tc`, `ip`) has made an entry: both add some to any BPF file system that they find.
fn is_of_system(name: &str) -> bool {
    name.ends_with(".debug") || matches!(name, "ip" | "tc" | "xdp")
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = fairmesh_kernel::detach(&self.pins());
        let entries =
            fs::read_dir(self.folder.path()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = entries.filter(|name| !is_of_system(&name.to_string_lossy())).collect();
        assert!(left.is_empty() || std::thread::panicking(), "pins are left: {left:?}");
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        // `attach` removes only the cgroups that it created; those of servers existed before.
        remove_cgroups(&self.cgroup);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_in_attached_cgroup_uses_proxy_until_proxy_dies() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("curl").await else { return };
    let world = World::start("").await;
    let _server = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let mut proxy = attached.proxy(&world).await;
    attached.attach().await;

    let said = attached.curl(&["http://hello.shop/", "http://hello.shop/"]).await.ok();
    assert_eq!(said.matches("HTTP/1.1 200").count(), 2, "{said}");
    assert_eq!(said.to_lowercase().matches("x-instance: hello-1").count(), 2, "{said}");
    let status = attached.kernel(&["status"]).await.ok();
    for line in ["connections to the proxy", "requests by the kernel", "by the sidecar: no published service"]
    {
        let is_one =
            |found: &str| found.trim_start().strip_prefix(line).is_some_and(|rest| rest.trim() == "1");
        assert!(status.lines().any(is_one), "{line} in {status}");
    }
    proxy.reaches("captured_connections_served_total", 1.0).await;
    let page = proxy.page("/metrics").await;
    let counted = "fairmesh_proxy_responses_total{service=\"shop/hello\",class=\"2xx\"";
    assert!(page.lines().any(|line| line.starts_with(counted) && line.ends_with(" 2")), "{page}");
    for event in ["redirected", "sent-by-kernel", "service-unknown"] {
        let counted = format!("fairmesh_proxy_kernel_events_total{{event=\"{event}\"}} 1");
        assert!(page.lines().any(|line| line == counted), "{counted} in {page}");
    }

    world.apply("{kind: Policy, service: shop/hello, timeout: 9s}").await.ok();
    until("requests need a decision", async || {
        let before = attached.counter("sent-by-kernel").await;
        attached.curl(&["http://hello.shop/", "http://hello.shop/"]).await.ok();
        attached.counter("sent-by-kernel").await == before
    })
    .await;
    let status = attached.kernel(&["status", "--admin", &proxy.admin]).await.ok();
    let reason = |line: &str| line.starts_with("shop/hello") && line.ends_with("its policy has a timeout");
    assert!(status.lines().any(reason), "{status}");

    proxy.process.kill().await;
    let failed = attached.curl(&["http://hello.shop/"]).await;
    assert_eq!(failed.code, Some(7), "refused at once: nothing listens at the virtual address");
    assert_eq!(attached.counter("no-proxy").await, 1);
    attached.kernel(&["detach"]).await.ok();
    assert!(!attached.pins().exists());
}
