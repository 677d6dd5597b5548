//! Commands that drain a region: repeated, and interrupted while they wait.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use serde_json::Value;

use super::support::{Mesh, Run, send, wait_until};

/// A service whose policy holds every drain of its region.
const HELD: &str = "{kind: Service, name: shop/held}\n---\n{kind: Policy, service: shop/held, traffic: {planner: rings, mode: hold}}\n";

/// Declares `shop/held`, registers an endpoint in `eu`, and waits until the planner knows its region.
fn hold_drains(mesh: &Mesh) {
    mesh.apply(HELD).ok();
    mesh.register("shop/held", "one", "eu", 19_400);
    wait_until("the planner has seen the region", || {
        let forecast = mesh.run(&["drain", "--region", "eu", "--dry-run"]).ok();
        forecast.contains("shop/held will hold the drain")
    });
}

/// State of the drain of `eu` in `get regions`.
fn drain_of_eu(mesh: &Mesh) -> Value {
    let regions = mesh.run(&["get", "regions", "--json"]).json();
    let eu = regions.as_array().unwrap().iter().find(|region| region["name"] == "eu");
    eu.unwrap()["drain"].clone()
}

/// A command that waits for a drain.
struct Waiting {
    child: Child,
    err: BufReader<ChildStderr>,
    told: String,
}

impl Waiting {
    fn start(control: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("FAIRMESH_CONTROL", control);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err, told: String::new() }
    }

    /// Reads until the command prints these words.
    fn says(mut self, words: &str) -> Self {
        while !self.told.contains(words) {
            assert_ne!(self.err.read_line(&mut self.told).unwrap(), 0, "it ended: {}", self.told);
        }
        self
    }

    /// Sends the command a signal, and waits until it ends.
    fn interrupted_by(mut self, signal: &str) -> Run {
        send(&self.child, signal);
        wait_until("it ends", || self.child.try_wait().unwrap().is_some());
        self.err.read_to_string(&mut self.told).unwrap();
        let output = self.child.wait_with_output().unwrap();
        Run { code: output.status.code(), out: String::from_utf8(output.stdout).unwrap(), err: self.told }
    }
}

#[test]
fn repeated_region_drain_command_follows_running_drain() {
    let mesh = Mesh::with_shop();
    hold_drains(&mesh);
    mesh.run(&["drain", "--region", "eu", "--over", "1h", "--yes", "--detach"]).ok();
    let begun = drain_of_eu(&mesh)["until"].clone();
    // A drain that continues anyway needs no confirmation.
    for over in [&[][..], &["--over", "1h"]] {
        let again = mesh.run(&[&["drain", "--region", "eu", "--detach"], over].concat());
        assert!(again.err.contains("it keeps its schedule") && again.code == Some(0), "{again:?}");
        assert_eq!(drain_of_eu(&mesh)["until"], begun);
    }
    let item = mesh.run(&["drain", "--region", "eu", "--dry-run", "--json"]).json();
    assert_eq!(item["overMs"], 3_600_000, "{item}");
    let other = mesh.run(&["drain", "--region", "eu", "--over", "2h"]).fails(2);
    assert!(other.contains("add --yes"), "another schedule is confirmed: {other}");
    mesh.run(&["drain", "--region", "eu", "--over", "2h", "--yes", "--detach"]).ok();
    assert_ne!(drain_of_eu(&mesh)["until"], begun);

    let control = mesh.address();
    for (signal, name, code) in [("INT", "SIGINT", 130), ("TERM", "SIGTERM", 143)] {
        let waiting =
            Waiting::start(&control, &["drain", "--region", "eu", "--json"]).says("held: shop/held");
        let run = waiting.interrupted_by(signal);
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.err.contains("the drain of region eu goes on"), "{run:?}");
        let item: Value = serde_json::from_str(&run.out).unwrap();
        assert!(item["done"] == false && item["interruptedBy"] == name, "{item}");
        assert!(item["drain"]["state"] == "draining" && item["drain"]["stepsMade"] == 0, "{item}");
    }

    // Without `--over`, the drain is reversed at the default pace.
    let waiting = Waiting::start(&control, &["undrain", "--region", "eu"]);
    let run = waiting.says("held: shop/held").interrupted_by("INT");
    assert!(run.code == Some(130) && run.err.contains("the return of region eu goes on"), "{run:?}");
    assert_eq!(drain_of_eu(&mesh)["state"], "returning");
}

#[test]
fn interrupted_drain_command_reports_region_already_drained() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 19_401);
    mesh.run(&["drain", "--region", "eu", "--over", "0s", "--yes"]).fails(4);
    hold_drains(&mesh);
    let waiting = Waiting::start(&mesh.address(), &["drain", "--region", "eu"]).says("held: shop/held");
    let run = waiting.interrupted_by("INT");
    assert_eq!(run.code, Some(130), "{run:?}");
    let last = run.err.lines().last().unwrap();
    assert!(last.contains("region eu is drained") && last.contains("undrain --region eu"), "{run:?}");
    assert!(!run.err.contains("goes on"), "{run:?}");
}

/// A relay to the control plane that drops all requests after a response has contained these bytes; returns its
/// address.
fn way_that_ends_with(mesh: &Mesh, bytes: &'static [u8]) -> String {
    let (path, control) = (mesh.path("way.sock"), mesh.path("control.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    let has_ended = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, control) = (client.unwrap(), UnixStream::connect(&control).unwrap());
            let (requests, responses) = (has_ended.clone(), has_ended.clone());
            let back = (control.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || carry((client, control), |_| !requests.load(SeqCst)));
            thread::spawn(move || {
                let mut last = Vec::new();
                carry(back, |part| {
                    last.extend_from_slice(part);
                    if last.windows(bytes.len()).any(|window| window == bytes) {
                        responses.store(true, SeqCst);
                    }
                    last.drain(..last.len().saturating_sub(bytes.len()));
                    true
                });
            });
        }
    });
    format!("unix:{}", path.display())
}

/// Copies bytes from one socket to the other, except those for which `passes` returns false.
fn carry((mut from, mut to): (UnixStream, UnixStream), mut passes: impl FnMut(&[u8]) -> bool) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if passes(&bytes[..count]) && to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn region_drain_can_be_interrupted_while_reading_remaining_calls() {
    let mesh = Mesh::with_shop();
    mesh.register("shop/catalog", "catalog-0", "eu", 19_402);
    // The response with the state of a finished drain arrives; the following forecast request gets no response.
    let control = way_that_ends_with(&mesh, b"done");
    let command = ["drain", "--region", "eu", "--over", "0s", "--yes", "--json"];
    let run = Waiting::start(&control, &command).says("region eu is drained").interrupted_by("INT");
    assert_eq!(run.code, Some(130), "{run:?}");
    let item: Value = serde_json::from_str(&run.out).unwrap();
    assert!(item["done"] == false && item["drain"]["state"] == "drained", "{item}");
}
