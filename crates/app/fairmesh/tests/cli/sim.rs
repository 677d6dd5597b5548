//! `fairmesh sim`: exit codes, output, and refused scenarios.

use std::fs;

use super::support::fairmesh;

/// A fleet that is simulated in no time. Tests add callers and expectations.
const FLEET: &str = "\
name: tiny
duration: 20s
warmup: 5s
window: 5s
servers:
  - {name: a, count: 5, cores: 2}
callers:
  - name: web
    count: 4
    rate: 50
    requests: [{cpu: {exponential: 10ms}}]
";

/// Writes a file and runs `fairmesh sim` on it.
fn sim(folder: &tempfile::TempDir, command: &str, text: &str, more: &[&str]) -> super::support::Run {
    let path = folder.path().join("file.yaml");
    fs::write(&path, text).unwrap();
    let mut args = vec!["sim", command, path.to_str().unwrap()];
    args.extend_from_slice(more);
    fairmesh("unix:///nowhere", &args, "")
}

#[test]
fn sim_run_reports_and_plots_scenario_and_checks_its_expectations() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("out.json"), path("out.svg"));
    let table = sim(&folder, "run", FLEET, &["--report", &json, "--svg", &svg, "--seed", "7"]).ok();
    assert!(table.contains("tiny:") && table.contains("seed 7") && table.contains("cv"), "{table}");
    let reports: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(reports[0]["seed"], 7);
    assert!(reports[0]["meanUtilisation"].as_f64().unwrap() > 0.1, "{reports}");
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.matches("<polyline").count() > 5, "{picture}");

    let expecting = format!("{FLEET}expect: {{cvBelow: 0.000001}}\n");
    let missed = sim(&folder, "run", &expecting, &[]);
    assert_eq!(missed.code, Some(1), "{missed:?}");
    assert!(missed.out.contains("not as expected: the variation of utilisation"), "{missed:?}");
}

#[test]
fn invalid_scenario_is_refused_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    for (what, text, line, hint) in [
        ("unknown field", FLEET.replace("cores: 2", "coers: 2"), 6, "cores"),
        ("not a duration", FLEET.replace("20s", "20"), 2, "such as 20s"),
        ("no such host", FLEET.replace("cores: 2", "host: new"), 6, "hosts"),
        ("no such distribution", FLEET.replace("exponential", "normal"), 11, "exponential"),
    ] {
        let complaint = sim(&folder, "run", &text, &[]).fails(2);
        assert!(complaint.contains(&format!("file.yaml:{line}:")), "{what}: {complaint}");
        assert!(complaint.contains("help:") && complaint.contains(hint), "{what}: {complaint}");
    }
}

#[test]
fn sim_sweep_runs_each_grid_combination_and_summarises() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("out.csv").to_str().unwrap().to_owned();
    // A fleet with few requests.
    let grid = "\
name: subsets
fleets: {from: 178, count: 1}
baseline: {name: as it comes}
grid: {subset: [5]}
";
    let table = sim(&folder, "sweep", grid, &["--csv", &csv]).ok();
    assert!(table.contains("as it comes") && table.contains("subset=5"), "{table}");
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 3);
    let complaint = sim(&folder, "sweep", &grid.replace("subset:", "sbset:"), &[]).fails(2);
    assert!(complaint.contains("file.yaml:4:") && complaint.contains("sbset"), "{complaint}");
}

#[test]
fn sim_run_compares_planners_of_application_and_draws_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../../../../scenarios/app-cut-point.yaml");
    let json = folder.path().join("out.json").to_str().unwrap().to_owned();
    let table = sim(&folder, "run", text, &["--report", &json]).ok();
    for part in [
        "app-cut-point",
        "MEASURED",
        "STEADY STATE",
        "waterfall",
        "optimizer",
        "MS TO",
        "east → west",
        "metrics west",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let reports: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(reports[0]["planners"][3]["planner"], "optimizer");
    assert_eq!(reports[0]["measured"][4]["planner"], "optimizer");
    let svg = folder.path().join("out.svg");
    sim(&folder, "run", text, &["--svg", svg.to_str().unwrap()]).ok();
    assert!(fs::read_to_string(&svg).unwrap().contains("app-cut-point: latency over time"));
    let complaint = sim(&folder, "run", &text.replace("to: scan", "to: scam"), &[]).fails(2);
    assert!(complaint.contains("file.yaml:") && complaint.contains("'scam'"), "{complaint}");
}

/// A replica tree that is simulated in no time.
const TREE: &str = "\
kind: tree
name: little
duration: 3s
services: {count: 20, sizes: [{servers: 1, share: 1}, {servers: 30, share: 0.01}], endpointBytes: 300, sharded: 0.1, bytes: 300000, chunkBytes: 2000, popularity: 0.4}
writes: {batches: 20, bytes: 20000, sharded: 1, together: 2}
costs: {delivery: 30us, megabyte: 2ms, record: 3us}
root: {cores: 1, gigabits: 1}
regions: [{name: near, delay: 1ms}]
replicas: [{name: leaf, count: 2, link: {gigabits: 1}, machine: {cores: 1, gigabits: 1}}]
agents: {count: 10, link: {delay: 1ms, gigabits: 1}, machine: {cores: 1, gigabits: 1}, programs: 2, calls: 2, local: 50us}
";

#[test]
fn sim_run_reports_and_plots_replica_tree_and_checks_expectations() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("out.json"), path("out.svg"));
    let table = sim(&folder, "run", TREE, &["--report", &json, "--svg", &svg, "--factor", "0.5"]).ok();
    assert!(
        table.contains("little: 20 routers") && table.contains("leaf") && table.contains("programs"),
        "{table}"
    );
    let reports: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(reports[0]["services"], 10);
    assert!(reports[0]["layers"][3]["propagation"]["p50Ms"].as_f64().unwrap() > 2.0, "{reports}");
    assert!(fs::read_to_string(&svg).unwrap().contains("programs"));

    let missed = sim(&folder, "run", &format!("{TREE}expect: {{p99Below: 1ms}}\n"), &[]);
    assert_eq!(missed.code, Some(1), "{missed:?}");
    assert!(missed.out.contains("not as expected: the 99th percentile"), "{missed:?}");
    let complaint = sim(&folder, "run", &TREE.replace("cores: 1,", "coers: 1,"), &[]).fails(2);
    assert!(complaint.contains("file.yaml:7:") && complaint.contains("cores"), "{complaint}");
    let complaint = sim(&folder, "run", &TREE.replace("kind: tree", "kind: forest"), &[]).fails(2);
    assert!(complaint.contains("file.yaml:1:") && complaint.contains("tree"), "{complaint}");
}
