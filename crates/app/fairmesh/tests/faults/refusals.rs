//! Stores on which a control plane must refuse to start. The error names the store and the remedy, and the store is
//! left unchanged.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::{Process, Program, Run, beside_others, run, until};

/// A folder for a control plane that does not run yet.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn args(&self, socket: &str, data: &Path) -> String {
        let dir = self.folder.path().display();
        format!(
            "control --trust-domain none --admin 127.0.0.1:0 --grpc unix:{dir}/{socket} --data-dir {}",
            data.display()
        )
    }

    /// Starts a control plane on a data folder and waits until it serves.
    async fn start(&self, data: &Path) -> Process {
        let program = Program::fairmesh(self.path("log"), &self.args("control.sock", data));
        let process = Process::start(program);
        let socket = self.path("control.sock");
        until("it listens", async || tokio::net::UnixStream::connect(&socket).await.is_ok()).await;
        process
    }

    /// Starts a control plane that must refuse; returns its error text.
    async fn refused(&self, data: &Path) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(self.args("other.sock", data).split(' '));
        complaint(run(command, "", Duration::from_secs(20)).await)
    }
}

/// Error text without whitespace, since reports are wrapped at the line width.
#[track_caller]
fn complaint(run: Run) -> String {
    run.fails().replace(' ', "")
}

#[track_caller]
fn says(complaint: &str, words: &[&str]) {
    for word in words {
        assert!(complaint.contains(&word.replace(' ', "")), "no '{word}' in {complaint}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_store_is_refused_with_remedy_and_left_unchanged() {
    let _machine = beside_others().await;
    let place = Place::new();
    let data = place.path("data");
    let mut control = place.start(&data).await;
    control.signal(Signal::TERM);
    assert!(control.end().await.success());
    // The file beside it, with the figures of the imbalance indicator, may be damaged without a refusal.
    let store = data.join("rib.redb");
    let sound = fs::read(&store).unwrap();
    let mut header = sound.clone();
    header[..64].fill(0xa5);
    let mut pages = sound.clone();
    pages[4096..].fill(0xa5);
    let damages: [(&str, &[u8]); 4] = [
        ("cut short", &sound[..sound.len() / 2]),
        ("empty", &[]),
        ("wrong header", &header),
        ("wrong pages", &pages),
    ];
    for (what, damaged) in damages {
        fs::write(&store, damaged).unwrap();
        let complaint = place.refused(&data).await;
        says(&complaint, &[store.to_str().unwrap(), "move", "start empty"]);
        assert!(fs::read(&store).unwrap() == damaged, "{what}: the file was changed");
    }
    fs::write(&store, sound).unwrap();
    drop(place.start(&data).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_open_elsewhere_is_refused() {
    let _machine = beside_others().await;
    let place = Place::new();
    let data = place.path("data");
    let mut first = place.start(&data).await;
    let complaint = place.refused(&data).await;
    says(&complaint, &[data.to_str().unwrap(), "another process has it open", "stop that one first"]);
    assert!(first.has_ended().is_none(), "the first goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_refuses_unwritable_data_folder() {
    let _machine = beside_others().await;
    let place = Place::new();
    let data = place.path("data");
    fs::create_dir(&data).unwrap();
    for (folder, mode) in [(place.folder.path(), 0o755), (&data, 0o555)] {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Root ignores permissions, so another user starts the binary, from a place where that user may read it.
    let binary = place.path("fairmesh");
    fs::copy(env!("CARGO_BIN_EXE_fairmesh"), &binary).unwrap();
    let mut command = Command::new(&binary);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let socket = tempfile::tempdir().unwrap();
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let grpc = format!("unix:{}/control.sock", socket.path().display());
    command
        .args(["control", "--trust-domain", "none", "--admin", "127.0.0.1:0", "--grpc", &grpc, "--data-dir"])
        .arg(&data);
    let complaint = complaint(run(command, "", Duration::from_secs(20)).await);
    says(&complaint, &[data.to_str().unwrap(), "Permission denied", "writable"]);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "nothing was left there");
}
