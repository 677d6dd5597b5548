//! Servers that close a connection after a response without announcing it (`connection: close`).

use rustix::process::{Signal, kill_process};

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, call, called_until_published},
};
use crate::harness::{Proxy, World, alone, beside_others, skipped, tool, until};

/// Requests to such a server: every send succeeds, and every request gets a response.
const CLOSED: &str = "
failed = 0
for at in range(1500):
    send(b'last-5')
    failed += read_response()[0] != b'200'
    send(b'plain-3')
    failed += read_response()[0] not in (b'200', b'502')
print(failed)
";

/// A caller, a server that closes its connections, and the proxy of both; `None` if the machine lacks a requirement.
async fn attached_server() -> Option<(Attached, World, LocalServer, Proxy)> {
    if tool("python3").is_none() {
        skipped("caller and server are Python programs", "python3 is missing");
        return None;
    }
    let attached = Attached::new("closing").await?;
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    called_until_published(&attached).await;
    Some((attached, world, server, proxy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_no_requests_to_closing_servers() {
    let _machine = beside_others().await;
    let Some((attached, _world, _server, _proxy)) = attached_server().await else { return };
    assert_eq!(call(&attached, CLOSED).await, "0\n");
    until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
}

/// Stops the proxy and waits until all its threads are stopped, since they stop one after another.
pub(super) const STOP: &str = "
import os, signal, time

def is_stopped(thread):
    return open(thread + '/stat').read().rpartition(')')[2].split()[0] == 'T'

def stop(process):
    os.kill(process, signal.SIGSTOP)
    threads = '/proc/%d/task/' % process
    while not all(is_stopped(threads + thread) for thread in os.listdir(threads)):
        time.sleep(0.001)

";

/// The caller stops the proxy, which therefore cannot learn that the server closes the connection until it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_detects_closing_server_while_proxy_is_stopped() {
    let _machine = alone().await;
    let Some((attached, _world, _server, proxy)) = attached_server().await else { return };
    let pid = proxy.process.pid();
    let script = format!(
        "{STOP}for _ in range(3):\n    ask(b'plain-1')\nstop({})\nask(b'last-1')\n\
         time.sleep(0.05)\nsend(b'plain-2')\nprint('sent', flush=True)\ncheck(b'plain-2')",
        pid.as_raw_nonzero()
    );
    let before = attached.counter("redirect-failed").await;
    let calling = call(&attached, &script);
    let stopping = async {
        let is_left = async || attached.counter("redirect-failed").await > before;
        until("the request is left to the sidecar", is_left).await;
        kill_process(pid, Signal::CONT).unwrap();
    };
    let (said, ()) = tokio::join!(calling, stopping);
    assert_eq!(said, "sent\n");
}
