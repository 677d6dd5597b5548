//! Runs `fairmesh gateway upgrade` with real replicas under load.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use fairmesh_test_support::{binary, eventually_async as until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    bounds::Victim,
    mesh::{Mesh, Options},
};

/// A pod that responds with errors while the file exists.
async fn serve_pod(broken: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let broken = broken.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                let status = if broken.exists() { "503 Service Unavailable" } else { "200 OK" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: 12\r\nconnection: close\r\n\r\nred/web for "
                );
                stream.write_all(answer.as_bytes()).await
            });
        }
    });
    address
}

/// Successor processes started by hooks; dropping the value ends them.
struct Successors(PathBuf);

impl Successors {
    fn pids(&self) -> Vec<i32> {
        let written = std::fs::read_to_string(&self.0).unwrap_or_default();
        written.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Successors {
    fn drop(&mut self) {
        for pid in self.pids().into_iter().filter_map(Pid::from_raw) {
            // The replaced processes have exited, and their process ids are not reused this soon.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_upgrade_replaces_replicas_and_rolls_back_after_errors() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let handover: &'static str = format!("--handover {}", at("handover.sock")).leak();
    let broken = folder.path().join("broken");
    let options = Options { gateway: handover, ..Options::default() };
    let Some(mesh) = Mesh::start_with(serve_pod(broken.clone()).await, options).await else { return };
    let mesh = Arc::new(mesh);
    let successors = Successors(folder.path().join("pids"));
    let red = mesh.identity("red", "red/client").await;
    until("red reaches its web", async || mesh.reaches_web(&red).await).await;
    let start = format!(
        "{} {} >>{} 2>&1 & echo $! >>{}",
        binary().display(),
        mesh.gateway_args(handover),
        at("successors.log"),
        at("pids")
    );
    let upgrade = async |watch: &str, run: &str, back: &str| {
        let replica = format!("gw-1={}", mesh.gateway_pages);
        let args =
            ["gateway", "upgrade", "--watch", watch, "--replica", &replica, "--run", run, "--back", back];
        mesh.command(&args).await
    };
    let victim = Victim::start(&mesh, red.clone());
    let upgraded = upgrade("1s", &start, "false").await;
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    assert!(victim.stop().await > 0, "calls went on, and none failed");
    assert_eq!(successors.pids().len(), 1);

    // The next program responds with errors. Fewer than five errors prove nothing, and a busy machine answers only a
    // few calls per second.
    let calls = [(); 4].map(|()| {
        let (mesh, red) = (Arc::clone(&mesh), red.clone());
        tokio::spawn(async move {
            loop {
                mesh.reaches_web(&red).await;
            }
        })
    });
    let (breaks, mends) =
        (format!("touch {}; {start}", at("broken")), format!("rm {}; {start}", at("broken")));
    let stopped = upgrade("4s", &breaks, &mends).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("rose for red"), "{stopped:?}");
    assert!(stopped.err.contains("all replicas run the program before"), "{stopped:?}");
    assert!(!broken.exists() && successors.pids().len() == 3);
    until("calls succeed again", async || mesh.reaches_web(&red).await).await;
}
