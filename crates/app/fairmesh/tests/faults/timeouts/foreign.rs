//! The gRPC client for Python. Skipped unless `scripts/setup.sh grpcio` has installed it.

use std::{env, path::PathBuf};

use tokio::process::Command;

use super::Mesh;
use crate::harness::{PATIENCE, Run, beside_others, run, skipped, until};

/// Calls a method, and prints each message and then the status. Arguments: `METHOD SECONDS`; 0 means no deadline.
const CALLER: &str = r#"
import sys, grpc
host, to, method, seconds = sys.argv[1:]
with grpc.insecure_channel(to, options=[("grpc.default_authority", host)]) as channel:
    call = channel.unary_stream("/any/" + method)(b"x", timeout=float(seconds) or None)
    try:
        for message in call:
            print(message.decode(), flush=True)
    except grpc.RpcError:
        pass
    print(call.code().name, call.details())
"#;

fn python() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("fairmesh/tools/grpcio/bin/python")).filter(|file| file.is_file())
}

struct Grpcio<'a> {
    python: PathBuf,
    mesh: &'a Mesh,
}

impl Grpcio<'_> {
    async fn call(&self, method: &str, seconds: &str) -> Run {
        let mut command = Command::new(&self.python);
        command.args(["-c", CALLER, "rpc.shop", &self.mesh.proxy.by_host, method, seconds]);
        run(command, "", PATIENCE).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_grpc_keeps_deadlines_and_gets_final_status() {
    let Some(python) = python() else {
        let reason = "there is no grpcio; `scripts/setup.sh grpcio` installs it";
        return skipped("gRPC's client for Python cannot call", reason);
    };
    let _machine = beside_others().await;
    let mesh = Mesh::start("idleTimeout: 2s").await;
    let grpcio = Grpcio { python, mesh: &mesh };
    let (told, long, drips, stalls) = tokio::join!(
        grpcio.call("told", "0"),
        grpcio.call("told", "7200"),
        grpcio.call("drip-25-100", "0"),
        grpcio.call("stall", "0"),
    );
    assert_eq!(told.out, "- -\nOK \n", "{}", told.err);
    let left = long.out.split_once('m').map(|(left, _)| left.parse::<u64>());
    assert!(matches!(left, Some(Ok(7_100_000..=7_200_000))), "{} {}", long.out, long.err);
    assert!(drips.out.ends_with("tea\nOK \n") && drips.out.matches("tea").count() == 25, "{}", drips.out);
    assert!(stalls.out.starts_with("tea\nDEADLINE_EXCEEDED nothing moved for 2s"), "{}", stalls.out);
    // On a busy machine, the deadline may pass before the client has connected.
    until("a message comes before the deadline", async || {
        let hasty = grpcio.call("stall", "0.5").await;
        assert!(hasty.out.contains("DEADLINE_EXCEEDED"), "{} {}", hasty.out, hasty.err);
        hasty.out.starts_with("tea\n")
    })
    .await;
}
