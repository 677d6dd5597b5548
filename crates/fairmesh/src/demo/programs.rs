//! The second act: programs that know nothing of Fairmesh call the shop through a sidecar, and what they reach is what the
//! library reaches and `fairmesh explain` foretells.

mod callers;
mod picks;

use std::{collections::BTreeSet, fmt::Write as _, process::Stdio, time::Duration};

use fairmesh_client::{Body, Mesh, Trace};
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use self::{
    callers::{CALLERS, Caller},
    picks::{Picks, Row},
};
use super::{
    DemoError,
    fleet::{PLACES, Place},
    report::table,
    running::Running,
    service,
};

/// Where the sidecar stands.
const PLACE: Place = PLACES[0];
/// Who calls, whichever program it is: subsets hang on it.
const CLIENT: &str = "programs";
/// How long one program, or the library, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often each calls where several endpoints may answer, and with how many seeds that is foretold.
const CALLS: usize = 6;
const SEEDS: u64 = 12;

/// What is called.
#[derive(Clone, Copy, Debug)]
struct Probe {
    service: &'static str,
    path: &'static str,
    /// The key and role of a call to a sharded service, which say where it goes.
    shard: Option<(u64, &'static str)>,
}

const PROBES: [Probe; 5] = [
    Probe { service: "shop/cart", path: "/carts/42", shard: Some((42, "primary")) },
    Probe { service: "shop/cart", path: "/carts/618", shard: Some((618, "secondary")) },
    Probe { service: "shop/cart", path: "/carts/950", shard: Some((950, "secondary")) },
    Probe { service: "shop/catalog", path: "/items/7", shard: None },
    Probe { service: "shop/recommend", path: "/because/7", shard: None },
];

impl Probe {
    fn calls(&self) -> usize {
        if self.shard.is_some() { 1 } else { CALLS }
    }

    fn words(&self) -> String {
        match self.shard {
            Some((key, role)) => format!("{}, key {key}, {role}", self.service),
            None => self.service.to_owned(),
        }
    }

    /// As programs write it: `cart.shop` is `shop/cart`.
    fn url(&self) -> String {
        let (tenant, service) = self.service.split_once('/').unwrap_or_default();
        format!("http://{service}.{tenant}{}", self.path)
    }

    fn headers(&self) -> Vec<String> {
        let mut headers = vec!["x-fairmesh-explain: true".to_owned()];
        if let Some((key, role)) = self.shard {
            headers.extend([format!("x-fairmesh-key: {key}"), format!("x-fairmesh-role: {role}")]);
        }
        headers
    }
}

/// What everybody reached.
#[derive(Debug)]
pub(super) struct Act {
    rows: Vec<Row>,
    /// Programs that this machine has.
    callers: Vec<&'static str>,
    absent: Vec<&'static str>,
}

/// Starts the sidecar, lets everybody call, and compares.
pub(super) async fn play(fleet: &mut Running) -> Result<Act, DemoError> {
    let sidecar = fleet.start_sidecar(PLACE, CLIENT).await?;
    for caller in CALLERS {
        caller.prepare(fleet.dir())?;
    }
    let (here, absent): (Vec<Caller>, Vec<Caller>) = CALLERS.into_iter().partition(|caller| caller.is_here());
    let mesh = service::mesh(fleet.agent_socket(PLACE), PLACE, CLIENT).await?;
    let (fleet, mesh, here) = (&*fleet, &mesh, &here);
    let rows = PROBES.iter().map(async |probe| {
        let explained = explained(fleet, probe);
        let programs = join_all(here.iter().map(|caller| caller.call(fleet.dir(), sidecar, probe)));
        let (explained, library, programs) = tokio::join!(explained, called(mesh, probe), programs);
        let picked = std::iter::once(library).chain(programs).collect();
        Row { what: probe.words(), one: probe.shard.is_some(), explained, picked }
    });
    let rows = join_all(rows).await;
    let names = here.iter().map(|caller| caller.name);
    let callers = std::iter::once("library").chain(names).collect();
    Ok(Act { rows, callers, absent: absent.into_iter().map(|caller| caller.name).collect() })
}

/// Where `fairmesh explain` says that the call goes: by any of some seeds, where chance has a part in it.
async fn explained(fleet: &Running, probe: &Probe) -> Picks {
    let seeds = if probe.shard.is_some() { 1 } else { SEEDS };
    let all = join_all((0..seeds).map(|seed| foretold(fleet, probe, seed))).await;
    all.into_iter().collect()
}

async fn foretold(fleet: &Running, probe: &Probe, seed: u64) -> Result<String, String> {
    let mut command = Command::new(&fleet.binary);
    command.args(["explain", probe.service, "--json", "--region", PLACE.name, "--client-id", CLIENT]);
    command.args(["--path", probe.path, "--seed", &seed.to_string()]);
    command.args(["--control", &fleet.control_address.to_string()]);
    if let Some((key, role)) = probe.shard {
        command.args(["--key", &key.to_string(), "--role", role]);
    }
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await.map_err(|_| "explain took too long")?;
    let output = output.map_err(|error| format!("explain: {error}"))?;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let instance = told["goesTo"]["instance"].as_str().map(str::to_owned);
    instance.ok_or_else(|| format!("explain: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Where the library's own calls go.
async fn called(mesh: &Mesh, probe: &Probe) -> Picks {
    let mut picks = BTreeSet::new();
    for _ in 0..probe.calls() {
        let call = timeout(PATIENCE, call(mesh, probe));
        picks.insert(call.await.map_err(|_| "the library's call took too long")??);
    }
    Ok(picks)
}

async fn call(mesh: &Mesh, probe: &Probe) -> Result<String, String> {
    let mut service = mesh.service(probe.service).map_err(|e| e.to_string())?;
    if let Some((key, role)) = probe.shard {
        service = service.key(key.into()).role(role).map_err(|e| e.to_string())?;
    }
    let trace = Trace::new();
    let request = http::Request::get(probe.path).extension(trace.clone()).body(Body::empty());
    let answer = service.send(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
    let status = answer.status();
    answer.into_body().collect().await.map_err(|e| e.to_string())?;
    if !status.is_success() {
        return Err(status.to_string());
    }
    let last = trace.take().pop().map(|tried| tried.endpoint.instance.to_string());
    last.ok_or_else(|| "the library tried nobody".to_owned())
}

impl Act {
    /// How many rows do not agree.
    pub(super) fn differing(&self) -> u64 {
        self.rows.iter().filter(|row| !row.agrees()).count() as u64
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let head = ["call", "explain"].iter().chain(&self.callers).chain(&["same"]);
        let mut table = table(&head.copied().collect::<Vec<_>>());
        for row in &self.rows {
            table.add_row(row.cells());
        }
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "Programs that know nothing of Fairmesh, through a sidecar in {}:\n{table}",
            PLACE.name
        );
        for absent in &self.absent {
            let _ = writeln!(out, "{absent} is not on this machine, and did not call");
        }
        for problem in self.rows.iter().flat_map(Row::problems) {
            let _ = writeln!(out, "{problem}");
        }
        out
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(|row| row.json(&self.callers)).collect();
        json!({ "callers": self.callers, "absent": self.absent, "calls": rows, "differing": self.differing() })
    }
}
