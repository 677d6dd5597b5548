//! Second part of the demo: unmodified programs call the shop through a sidecar, and must reach the endpoints that the
//! library reaches and `fairmesh explain` predicts.

mod http_clients;
mod picks;

use std::{collections::BTreeSet, fmt::Write as _, process::Stdio, time::Duration};

use fairmesh_client::{Body, Mesh, Trace};
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use self::{
    http_clients::{HTTP_CLIENTS, HttpClient},
    picks::{Picks, Row},
};
use super::{
    error::DemoError,
    fleet::Fleet,
    report::table,
    service,
    topology::{DemoRegion, REGIONS},
};

/// Region of the sidecar.
const REGION: DemoRegion = REGIONS[0];
/// Client id of all callers, which determines their subsets.
const CLIENT: &str = "programs";
/// Timeout of one program, or of the library.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of calls by each program if several endpoints may respond. Also the number of seeds for the prediction.
const CALLS: usize = 6;
const SEEDS: u64 = 12;

/// A call that the library and each unmodified program make, to compare the endpoints that they reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparedCall {
    pub(super) service: &'static str,
    pub(super) path: &'static str,
    /// Key and role of a call to a sharded service.
    pub(super) shard: Option<(u64, &'static str)>,
}

const PROBES: [ComparedCall; 5] = [
    ComparedCall { service: "shop/cart", path: "/carts/42", shard: Some((42, "primary")) },
    ComparedCall { service: "shop/cart", path: "/carts/618", shard: Some((618, "secondary")) },
    ComparedCall { service: "shop/cart", path: "/carts/950", shard: Some((950, "secondary")) },
    ComparedCall { service: "shop/catalog", path: "/items/7", shard: None },
    ComparedCall { service: "shop/recommend", path: "/because/7", shard: None },
];

impl ComparedCall {
    fn calls(&self) -> usize {
        if self.shard.is_some() { 1 } else { CALLS }
    }

    fn words(&self) -> String {
        match self.shard {
            Some((key, role)) => format!("{}, key {key}, {role}", self.service),
            None => self.service.to_owned(),
        }
    }

    /// Returns the URL for programs. The host `cart.shop` stands for the service `shop/cart`.
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

/// Endpoints reached by all callers.
#[derive(Debug)]
pub(super) struct Action {
    rows: Vec<Row>,
    /// Programs installed on this machine.
    callers: Vec<&'static str>,
    absent: Vec<&'static str>,
}

/// Starts the sidecar, makes all calls, and compares.
pub(super) async fn play(fleet: &mut Fleet) -> Result<Action, DemoError> {
    let sidecar = fleet.start_sidecar(REGION, CLIENT).await?;
    for caller in HTTP_CLIENTS {
        caller.prepare(fleet.dir())?;
    }
    let (here, absent): (Vec<HttpClient>, Vec<HttpClient>) =
        HTTP_CLIENTS.into_iter().partition(|caller| caller.is_installed());
    let mesh = service::mesh(fleet.agent_socket(REGION), REGION, CLIENT, None).await?;
    let (fleet, mesh, here) = (&*fleet, &mesh, &here);
    let rows = PROBES.iter().map(async |probe| {
        let prediction = predict(fleet, probe);
        let programs = join_all(here.iter().map(|caller| caller.call(fleet.dir(), sidecar, probe)));
        let (predicted, library, programs) = tokio::join!(prediction, called(mesh, probe), programs);
        let picked = std::iter::once(library).chain(programs).collect();
        Row { what: probe.words(), one: probe.shard.is_some(), predicted, picked }
    });
    let rows = join_all(rows).await;
    let names = here.iter().map(|caller| caller.name);
    let callers = std::iter::once("library").chain(names).collect();
    Ok(Action { rows, callers, absent: absent.into_iter().map(|caller| caller.name).collect() })
}

/// The targets predicted by `fairmesh explain`, over several seeds where the pick is random.
pub(super) async fn predict(fleet: &Fleet, probe: &ComparedCall) -> Picks {
    let seeds = if probe.shard.is_some() { 1 } else { SEEDS };
    let all = join_all((0..seeds).map(|seed| predict_with_seed(fleet, probe, seed))).await;
    all.into_iter().collect()
}

async fn predict_with_seed(fleet: &Fleet, probe: &ComparedCall, seed: u64) -> Result<String, String> {
    let mut command = Command::new(&fleet.binary);
    command.args(["explain", probe.service, "--json", "--region", REGION.name, "--client-id", CLIENT]);
    command.args(["--path", probe.path, "--seed", &seed.to_string()]);
    command.args(["--control", &fleet.control_socket().to_string()]);
    if let Some((key, role)) = probe.shard {
        command.args(["--key", &key.to_string(), "--role", role]);
    }
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(CALL_TIMEOUT, output).await.map_err(|_| "explain took too long")?;
    let output = output.map_err(|error| format!("explain: {error}"))?;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let instance = told["goesTo"]["instance"].as_str().map(str::to_owned);
    instance.ok_or_else(|| format!("explain: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The targets of the library's own calls.
async fn called(mesh: &Mesh, probe: &ComparedCall) -> Picks {
    let mut picks = BTreeSet::new();
    for _ in 0..probe.calls() {
        let call = timeout(CALL_TIMEOUT, call(mesh, probe));
        picks.insert(call.await.map_err(|_| "the library's call took too long")??);
    }
    Ok(picks)
}

async fn call(mesh: &Mesh, probe: &ComparedCall) -> Result<String, String> {
    let mut service = mesh.service(probe.service).map_err(|e| e.to_string())?;
    if let Some((key, role)) = probe.shard {
        service = service.key(key).role(role).map_err(|e| e.to_string())?;
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
    last.ok_or_else(|| "the library made no attempt".to_owned())
}

impl Action {
    /// Number of rows with a difference.
    pub(super) fn differing(&self) -> u64 {
        self.rows.iter().filter(|row| !row.agrees()).count() as u64
    }

    /// The result as text.
    pub(super) fn text(&self) -> String {
        let head = ["call", "explain"].iter().chain(&self.callers).chain(&["same"]);
        let mut table = table(&head.copied().collect::<Vec<_>>());
        for row in &self.rows {
            table.add_row(row.cells());
        }
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Unmodified programs, through a sidecar in {}:\n{table}", REGION.name);
        for absent in &self.absent {
            let _ = writeln!(out, "{absent} is not installed on this machine, and was skipped");
        }
        for problem in self.rows.iter().flat_map(Row::problems) {
            let _ = writeln!(out, "{problem}");
        }
        out
    }

    /// The result as JSON.
    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(|row| row.json(&self.callers)).collect();
        json!({ "callers": self.callers, "absent": self.absent, "calls": rows, "differing": self.differing() })
    }
}
