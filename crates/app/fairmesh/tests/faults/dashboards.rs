//! The dashboards, rules and alerts of `deploy`: every name in them exists, every panel has data, and alerts fire.

mod files;
mod mesh;
mod prometheus;
mod promql;
mod service_faults;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_test_support::run;
use tokio::{process::Command, time::Instant};

use self::{
    files::{Panel, dashboards, panels, path, read, rules},
    mesh::SmallMesh,
    prometheus::{Histograms, Prometheus},
    promql::Names,
    service_faults::{ALERTS, FaultyServices},
};
use crate::harness::{PATIENCE, beside_others, skipped, tool, until};

/// URL of the runbook rows in `docs/failures.md`.
const RUNBOOK: &str = "https://github.com/fairmesh/fairmesh/blob/main/docs/failures.md#";
/// Labels that Prometheus or the histogram format adds to every series.
const GIVEN: [&str; 4] = ["instance", "job", "le", "process"];
/// Series of Prometheus itself.
const OF_PROMETHEUS: &str = "up";

const A_MINUTE: &str =
    "usage is known after a whole minute; `imbalance_report_shows_overloaded_servers_waste` reads it";
/// Panels without data in the small mesh, each with the reason.
const WITHOUT_DATA: [(&str, &str); 13] = [
    ("imbalance: Wasted cores", A_MINUTE),
    ("imbalance: Used cores", A_MINUTE),
    ("imbalance: Wasted of used", A_MINUTE),
    ("imbalance: Instances with reports", A_MINUTE),
    ("imbalance: Wasted cores by service", A_MINUTE),
    ("imbalance: Used cores by service", A_MINUTE),
    ("imbalance: Most wasteful services", A_MINUTE),
    ("service: Wasted cores", A_MINUTE),
    ("region: Bytes between zones", "no service prefers its zone"),
    ("region: Unhealthy endpoints by region", "no endpoint is checked"),
    ("region: Services that rings plan in place of the optimizer", "no service asks for the optimizer"),
    ("security: Time of a signature", "nobody begins a handshake"),
    ("security: Least time of a certificate", "the mesh has no trust domain"),
];

/// Series that appear only with certain events. Other tests read them.
const UNSEEN: [&str; 4] = [
    "fairmesh_control_unhealthy_endpoints",
    "fairmesh_imbalance_containers",
    "fairmesh_imbalance_used_cores",
    "fairmesh_imbalance_wasted_cores",
];

/// Paths of Prometheus and promtool; `None` if one is missing.
fn tools() -> Option<[PathBuf; 2]> {
    let found = tool("prometheus").zip(tool("promtool")).map(<[PathBuf; 2]>::from);
    if found.is_none() {
        skipped("dashboards and alerts cannot be tried", "`scripts/setup.sh prometheus` fetches Prometheus");
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_panels_have_data_and_name_existing_series() {
    let Some([prometheus, _]) = tools() else { return };
    let _machine = beside_others().await;
    let mesh = SmallMesh::start().await;
    let start = |name: &str, histograms| {
        let rules = [path("deploy/prometheus/rules.yaml").canonicalize().unwrap()];
        let folder = mesh.fleet.path(name);
        Prometheus::start(prometheus.clone(), &folder, (&mesh.pages, &rules), histograms)
    };
    let both = [start("native", Histograms::Native), start("classic", Histograms::Classic)];
    let panels = panels();
    all_have_data(&both, &panels).await;
    let unknown = unknown_names(&mesh.metrics().await, &panels);
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Waits until each panel has had data, except the panels of `WITHOUT_DATA`. All queries of a panel must have data at
/// the same time.
async fn all_have_data(both: &[Prometheus], panels: &[Panel]) {
    let panels = || panels.iter().filter(|panel| WITHOUT_DATA.iter().all(|(name, _)| *name != panel.name));
    let mut waiting: Vec<_> = both.iter().flat_map(|one| panels().map(move |panel| (one, panel))).collect();
    let deadline = Instant::now() + PATIENCE;
    while !waiting.is_empty() {
        let (mut still, mut missing) = (Vec::new(), Vec::new());
        for (one, panel) in waiting {
            let queries = queries_without_data(one, panel).await;
            if !queries.is_empty() {
                missing.push((one.histograms, &panel.name, queries));
                still.push((one, panel));
            }
        }
        assert!(Instant::now() < deadline, "without data: {missing:#?}");
        waiting = still;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn queries_without_data(prometheus: &Prometheus, panel: &Panel) -> Vec<String> {
    let mut without = Vec::new();
    for query in &panel.queries {
        if prometheus.query(query).await.is_empty() {
            without.push(query.clone());
        }
    }
    without
}

/// Series and labels in panels, rules and alerts that no process exports and no rule records.
fn unknown_names(pages: &[String], panels: &[Panel]) -> Vec<String> {
    let mut known = Series::default();
    pages.iter().for_each(|page| known.read(page));
    known.0.extend(UNSEEN.map(|name| (name.to_owned(), BTreeSet::new())));
    let recorded = rules("rules.yaml");
    for rule in &recorded {
        let labels = &Names::of(&rule.expression).groups;
        known.0.entry(rule.name.clone()).or_default().extend(labels.iter().cloned());
    }
    let alerts = rules("alerts.yaml");
    let rules = recorded.iter().chain(&alerts).map(|rule| (&rule.name, &rule.expression));
    let queries = panels.iter().flat_map(|panel| panel.queries.iter().map(move |query| (&panel.name, query)));
    let unknown = rules.chain(queries).flat_map(|(user, expression)| {
        known.lacks(&Names::of(expression)).into_iter().map(move |name| format!("{user}: {name}"))
    });
    unknown.collect()
}

/// Labels by series name; a known series that no process exports at present has no labels.
#[derive(Default)]
struct Series(BTreeMap<String, BTreeSet<String>>);

impl Series {
    /// Adds a metrics page in the Prometheus text format.
    fn read(&mut self, page: &str) {
        for line in page.lines() {
            if let Some(words) = line.strip_prefix("# TYPE ") {
                let (name, kind) = words.split_once(' ').unwrap();
                let suffixes: &[_] =
                    if kind == "histogram" { &["", "_bucket", "_count", "_sum"] } else { &[""] };
                for suffix in suffixes {
                    self.0.entry(format!("{name}{suffix}")).or_default();
                }
            } else if let Some(name) = line.split(['{', ' ']).next().filter(|name| !name.starts_with('#')) {
                let labels = Names::of(line.rsplit_once(' ').unwrap().0).series.remove(0).1;
                let family = ["_bucket", "_count", "_sum"].into_iter().find_map(|end| name.strip_suffix(end));
                for name in [Some(name), family].into_iter().flatten() {
                    self.0.entry(name.to_owned()).or_default().extend(labels.clone());
                }
            }
        }
    }

    /// Series and labels of an expression that no process exports.
    fn lacks(&self, names: &Names) -> Vec<String> {
        let mut lacks = Vec::new();
        let mut of_all: BTreeSet<&str> = GIVEN.into();
        for (name, labels) in names.series.iter().filter(|(name, _)| name != OF_PROMETHEUS) {
            let Some(known) = self.0.get(name) else {
                lacks.push(name.clone());
                continue;
            };
            of_all.extend(known.iter().map(String::as_str));
            let wrong = labels.iter().filter(|label| !known.is_empty() && !known.contains(*label));
            lacks.extend(
                wrong.filter(|label| !GIVEN.contains(&&***label)).map(|label| format!("{name}{{{label}}}")),
            );
        }
        let all_known =
            names.series.iter().all(|(name, _)| self.0.get(name).is_none_or(|known| !known.is_empty()));
        if all_known {
            lacks.extend(names.groups.iter().filter(|label| !of_all.contains(&***label)).cloned());
        }
        lacks
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_faults_in_small_mesh_fire_prometheus_alerts() {
    let Some([prometheus, _]) = tools() else { return };
    let _machine = beside_others().await;
    let mut mesh = SmallMesh::start().await;
    let rules = prompt_rules(&mesh.fleet.path("alerts.yaml"));
    let folder = mesh.fleet.path("native");
    let prometheus = Prometheus::start(prometheus, &folder, (&mesh.pages, &rules), Histograms::Native);
    until("calls are measured", async || {
        !prometheus.query("service:fairmesh_calls:rate2m > 0").await.is_empty()
    })
    .await;
    // The mesh has no key server.
    fires(&prometheus, &["FairmeshKeyServerDown"]).await;
    let urgent: Vec<_> =
        prometheus.firing().await.into_iter().filter(|(_, severity)| severity == "critical").collect();
    assert_eq!(urgent.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["FairmeshKeyServerDown"]);

    mesh.call_forever("lost.shop", "text/plain");
    fires(&prometheus, &["FairmeshNoEndpoints", "FairmeshCallsFail"]).await;
    mesh.leaving.kill().await;
    fires(&prometheus, &["FairmeshEndpointsLost"]).await;
    mesh.fleet.control.kill().await;
    let without_control = [
        "FairmeshControlPlaneAbsent",
        "FairmeshProcessDown",
        "FairmeshReplicaDisconnected",
        "FairmeshAgentDisconnected",
    ];
    fires(&prometheus, &without_control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_services_fire_prometheus_alerts() {
    let Some([prometheus, _]) = tools() else { return };
    let _machine = beside_others().await;
    let mut mesh = FaultyServices::start().await;
    let rules = prompt_rules(&mesh.folder.path().join("alerts.yaml"));
    let folder = mesh.folder.path().join("native");
    let prometheus = Prometheus::start(prometheus, &folder, (&mesh.pages, &rules), Histograms::Native);
    // Rates begin with the first scrape.
    until("all processes are scraped", async || prometheus.query("up == 1").await.len() == mesh.pages.len())
        .await;
    mesh.call();
    fires(&prometheus, ALERTS).await;
}

/// The rules, with alerts that fire at once instead of after minutes, which are written to this file.
fn prompt_rules(alerts: &Path) -> [PathBuf; 2] {
    let text = read("deploy/prometheus/alerts.yaml");
    let lines: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("for: ")).collect();
    fs::write(alerts, lines.join("\n")).unwrap();
    [path("deploy/prometheus/rules.yaml").canonicalize().unwrap(), alerts.to_owned()]
}

async fn fires(prometheus: &Prometheus, alerts: &[&str]) {
    for alert in alerts {
        until(&format!("{alert} fires"), async || {
            prometheus.firing().await.iter().any(|(name, _)| name == alert)
        })
        .await;
    }
}

#[tokio::test]
async fn promtool_accepts_rules_and_tests_each_alert() {
    let Some([_, promtool]) = tools() else { return };
    for arguments in [&["check", "rules", "rules.yaml", "alerts.yaml"][..], &["test", "rules", "tests.yaml"]]
    {
        let mut command = Command::new(&promtool);
        command.args(arguments).current_dir(path("deploy/prometheus"));
        let run = run(command, "", PATIENCE).await;
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    }
    let tests = read("deploy/prometheus/tests.yaml");
    let untried = rules("alerts.yaml").into_iter().map(|alert| alert.name);
    let untried: Vec<_> = untried.filter(|name| !tests.contains(&format!("alertname: {name}\n"))).collect();
    assert!(untried.is_empty(), "tests.yaml does not try {untried:?}");
}

#[test]
fn alerts_link_to_rows_of_failures_page() {
    let (rows, page) = (read("docs/failures.md"), read("docs/dashboards.md"));
    for alert in rules("alerts.yaml") {
        let row = alert.runbook.as_deref().and_then(|url| url.strip_prefix(RUNBOOK));
        let row = row.unwrap_or_else(|| panic!("{} has no runbook in docs/failures.md", alert.name));
        assert!(rows.contains(&format!("| <a id=\"{row}\"></a>")), "docs/failures.md has no row {row}");
        assert!(
            page.contains(&format!("`{}`", alert.name)),
            "docs/dashboards.md does not list {}",
            alert.name
        );
    }
    for (name, _) in dashboards() {
        assert!(page.contains(&format!("`{name}.json`")), "docs/dashboards.md does not list {name}.json");
    }
}

#[test]
fn dashboards_have_current_schema_and_unique_panels() {
    for (name, dashboard) in dashboards() {
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39, "{name}");
        assert_eq!(dashboard["uid"], format!("fairmesh-{name}"));
    }
    let names: Vec<_> = panels().into_iter().map(|panel| panel.name).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{names:#?}");
    for (name, reason) in WITHOUT_DATA {
        assert!(unique.contains(&name.to_owned()), "{name} ({reason}) is no panel");
    }
}
