//! Simulated fleets from the command line: exit codes, what is written, what is refused.

use std::fs;

use super::support::fairmesh;

/// A fleet that is simulated in no time; its callers and what is expected are added.
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
fn a_scenario_is_played_drawn_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("out.json"), path("out.svg"));
    let table = sim(&folder, "run", FLEET, &["--json", &json, "--svg", &svg, "--seed", "7"]).ok();
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
fn a_scenario_that_is_wrong_is_refused_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    for (what, text, line, hint) in [
        ("unknown field", FLEET.replace("cores: 2", "coers: 2"), 6, "cores"),
        ("not a duration", FLEET.replace("20s", "20"), 2, "20ms"),
        ("no such host", FLEET.replace("cores: 2", "host: new"), 6, "hosts"),
        ("no such distribution", FLEET.replace("exponential", "normal"), 11, "exponential"),
    ] {
        let complaint = sim(&folder, "run", &text, &[]).fails(2);
        assert!(complaint.contains(&format!("file.yaml:{line}:")), "{what}: {complaint}");
        assert!(complaint.contains("help:") && complaint.contains(hint), "{what}: {complaint}");
    }
}

#[test]
fn a_grid_is_swept_and_summed_up() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("out.csv").to_str().unwrap().to_owned();
    // A fleet of few requests.
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
