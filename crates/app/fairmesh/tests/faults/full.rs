//! Processes with a full disk: readiness of a control plane, and the fate of keys and certificates.

use std::{ffi::OsString, fs, path::Path, process::Command};

use fairmesh_model::{HostMatch, Match, Policy, Record, RecordKey, Route};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1::{ApplyRequest, CreateTokenRequest, DescribeAuthorityRequest, Op, RotateAuthorityRequest},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::harness::{Process, Program, beside_others, free_port, skipped, until};

/// Runs a program; the error says why it failed.
fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let ran = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()) }
}

/// Starts a control plane with its data on a separate disk.
fn start(folder: &Path, port: u16, trust_domain: &str) -> Process {
    let dir = folder.display();
    let binary = env!("CARGO_BIN_EXE_fairmesh");
    let script = format!(
        "mount -t tmpfs -o size=6m tmpfs {dir}/data && exec {binary} control --trust-domain {trust_domain} --admin 127.0.0.1:{port} \
         --grpc unix:{dir}/control.sock --data-dir {dir}/data"
    );
    let args = ["--mount", "--propagation", "private", "sh", "-c", &script].map(OsString::from);
    let log = folder.join("control.log");
    Process::start(Program { binary: "unshare".into(), args: args.into(), env: Vec::new(), log })
}

/// A control plane that is ready.
struct Started {
    folder: tempfile::TempDir,
    port: u16,
    control: Process,
    connection: Connection,
}

/// Starts the control plane; `None` if the system cannot give the process a separate disk.
async fn on_a_small_disk(trust_domain: &str) -> Option<Started> {
    let mount = ["--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"];
    if let Err(reason) = run("unshare", &mount) {
        skipped("a disk of its own cannot be given to a process", reason);
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    let port = free_port();
    let control = start(folder.path(), port, trust_domain);
    until("it is ready", async || ready(port).await.starts_with("HTTP/1.1 200 ")).await;
    let address = Address::Unix(folder.path().join("control.sock"));
    let connection = handshake::connect(&Default::default(), &address, "test").await.unwrap();
    Some(Started { folder, port, control, connection })
}

async fn ready(port: u16) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else { return String::new() };
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A write of a policy of about 100 KB.
fn large(number: usize) -> Op {
    let hosts = (0..5_000).map(|i| HostMatch::Exact(format!("host-{number}-{i}.example.org"))).collect();
    let matches = Match { hosts, ..Match::default() };
    let routes = vec![Route { matches, ..Route::new("one".parse().unwrap()) }];
    let value = record_encoding::encode(&Record::Policy(Policy { routes, ..Policy::default() }));
    let key = RecordKey::Policy(format!("shop/s{number}").parse().unwrap()).to_string();
    Op { key, value: Some(value), condition: None }
}

#[tokio::test]
async fn control_plane_with_full_disk_is_not_ready_until_space_returns() {
    let _machine = beside_others().await;
    let Some(Started { folder, port, control, connection }) = on_a_small_disk("none").await else { return };
    let mut refusal = None;
    for number in 0..200 {
        let request = ApplyRequest { ops: vec![large(number)], dry_run: false, ..Default::default() };
        if let Err(status) = connection.admin().apply(request).await {
            refusal = Some(status.message().to_owned());
            break;
        }
    }
    assert!(refusal.as_deref().is_some_and(|text| text.contains("disk is full")), "{refusal:?}");
    let answer = ready(port).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("disk is full"), "{answer}");
    let (pid, data) =
        (control.pid().as_raw_nonzero().to_string(), folder.path().join("data").display().to_string());
    run("nsenter", &["--mount", "--target", &pid, "mount", "-o", "remount,size=64m", &data]).unwrap();
    until("it is ready again, without a write", async || ready(port).await.starts_with("HTTP/1.1 200 "))
        .await;
    connection
        .admin()
        .apply(ApplyRequest { ops: vec![large(0)], dry_run: false, ..Default::default() })
        .await
        .unwrap();
}

/// Path of a file on the process's separate disk.
fn on_disk_of(control: &Process, folder: &Path, file: &str) -> std::path::PathBuf {
    let root = format!("/proc/{}/root", control.pid().as_raw_nonzero());
    Path::new(&root).join(folder.join("data").strip_prefix("/").unwrap()).join(file)
}

#[tokio::test]
async fn certificate_authority_with_full_disk_keeps_its_state() {
    let _machine = beside_others().await;
    let Some(Started { folder, control, connection, .. }) = on_a_small_disk("prod").await else { return };
    let describe = async || {
        let described = connection.authority().describe_authority(DescribeAuthorityRequest {}).await.unwrap();
        let described = described.into_inner();
        (described.bundle.unwrap_or_default().roots, described.issuer)
    };
    // The root whose rotation begins below is new.
    let rotate = async |root| {
        let request = RotateAuthorityRequest { root, force: !root };
        connection.authority().rotate_authority(request).await
    };
    let token = async |agent: &str| {
        let request = CreateTokenRequest { agent: agent.into(), ttl_seconds: 60, ..Default::default() };
        connection.authority().create_token(request).await
    };
    let (before, root) =
        (describe().await, fs::read(on_disk_of(&control, folder.path(), "ca/root.key")).unwrap());

    // A separate file fills the disk up to its last block.
    let filling = on_disk_of(&control, folder.path(), "filling");
    let filled = fs::write(&filling, vec![1; 16 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    for (what, refused) in [
        ("a root", rotate(true).await.map(drop)),
        ("an intermediate", rotate(false).await.map(drop)),
        ("a token", token("web-1").await.map(drop)),
    ] {
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("No space left"), "{what}: {refused}");
    }
    assert_eq!(describe().await, before);
    assert_eq!(fs::read(on_disk_of(&control, folder.path(), "ca/root.key")).unwrap(), root);

    fs::remove_file(&filling).unwrap();
    token("web-1").await.unwrap();
    rotate(true).await.unwrap();
    rotate(false).await.unwrap();
    let after = describe().await;
    assert_eq!(after.0.len(), 2);
    assert_ne!(after.1, before.1);
}

/// Starts an agent of this control plane, with its state on a separate disk.
fn start_agent(folder: &Path) -> Process {
    let dir = folder.display();
    let binary = env!("CARGO_BIN_EXE_fairmesh");
    let script = format!(
        "mount -t tmpfs -o size=4m tmpfs {dir}/data && exec {binary} agent --name web-1 --admin none --control \
         unix:{dir}/control.sock --listen unix:{dir}/agent.sock --state-dir {dir}/data"
    );
    let args = ["--mount", "--propagation", "private", "sh", "-c", &script].map(OsString::from);
    let log = folder.join("agent.log");
    Process::start(Program { binary: "unshare".into(), args: args.into(), env: Vec::new(), log })
}

#[tokio::test]
async fn agent_with_full_disk_renews_in_memory_and_warns() {
    let _machine = beside_others().await;
    let Some(Started { folder, control: _control, .. }) = on_a_small_disk("prod").await else { return };
    let agent = start_agent(folder.path());
    let key = on_disk_of(&agent, folder.path(), "identity/identity.key");
    until("the agent joins", async || key.exists()).await;
    let kept = fs::read(&key).unwrap();
    let filling = on_disk_of(&agent, folder.path(), "filling");
    let filled = fs::write(&filling, vec![1; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);

    // The agent needs another certificate at once.
    let control = format!("unix:{}/control.sock", folder.path().display());
    let revoke = || {
        let revoke = ["identity", "revoke", "fairmesh/agent/web-1", "--issued-before", "now"];
        run(env!("CARGO_BIN_EXE_fairmesh"), &[&revoke[..], &["--control", &control]].concat()).unwrap();
    };
    revoke();
    let log = || fs::read_to_string(folder.path().join("agent.log")).unwrap();
    until("the log says it", async || {
        log().contains("the new certificate cannot be kept on disk") && log().contains("No space left")
    })
    .await;
    assert_eq!(fs::read(&key).unwrap(), kept, "the file before is whole");
    // The agent issues certificates to programs with its new one.
    let certified = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(["call", "shop/cart", "/", "--as", "shop/web"]).env_clear();
        command.env("FAIRMESH_IDENTITY_DIR", folder.path().join("kept"));
        command.env("FAIRMESH_AGENT", format!("unix:{}/agent.sock", folder.path().display()));
        // The service does not exist; the command requests a certificate anyway.
        command.output().unwrap();
        folder.path().join("kept/shop/web/identity.key").exists()
    };
    until("a program gets a certificate", async || certified()).await;

    fs::remove_file(&filling).unwrap();
    revoke();
    until("the next one is kept", async || fs::read(&key).is_ok_and(|now| now != kept)).await;
}
