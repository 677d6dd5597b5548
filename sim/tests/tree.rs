//! Trees of replicas: every change arrives, every byte is counted, and one seed gives one result.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::replica_tree::{Layer, Report, Scenario, run};

/// Two regions, three replicas in each, two agents at each leaf, all simulated.
const TREE: &str = "\
kind: tree
name: small
duration: 8s
warmup: 1s
services:
  count: 60
  sizes: [{servers: 1, share: 1}, {servers: 40, share: 0.1}, {servers: 300, share: 0.01}]
  endpointBytes: 400
  sharded: 0.05
  bytes: 2000000
  chunkBytes: 4000
  popularity: 0.4
writes: {batches: 40, bytes: 200000, sharded: 2, together: 4}
costs: {delivery: 30us, megabyte: 2ms, record: 3us}
root: {cores: 4, gigabits: 1}
regions: [{name: near, delay: 1ms}, {name: far, delay: 50ms}]
replicas:
  - {name: regional, count: 1, link: {gigabits: 1}, machine: {cores: 4, gigabits: 1}}
  - {name: leaf, count: 2, link: {delay: 300us, gigabits: 1}, machine: {cores: 4, gigabits: 1}}
agents:
  count: 2
  link: {delay: 300us, gigabits: 1}
  machine: {cores: 1, gigabits: 1}
  programs: 3
  calls: 4
  local: 50us
compare: true
";

fn read(text: &str) -> Scenario {
    serde_saphyr::from_str(text).unwrap()
}

fn play(text: &str) -> Report {
    let report = run(&read(text), |_| {}).unwrap();
    assert_eq!(report.different, Some(0), "{report:#?}");
    for layer in &report.layers {
        assert_eq!(layer.bytes_sent, layer.bytes_received + layer.bytes_lost, "{}", layer.name);
    }
    report
}

fn layer<'a>(report: &'a Report, name: &str) -> &'a Layer {
    report.layers.iter().find(|layer| layer.name == name).unwrap()
}

#[test]
fn programs_converge_to_root_of_replica_tree_and_bytes_are_counted() {
    let report = play(TREE);
    let processes: Vec<u64> = report.layers.iter().map(|layer| layer.processes).collect();
    assert_eq!(processes, [1, 2, 4, 8, 24]);
    assert_eq!((report.routers, report.routers_simulated), (24, 24));
    assert!((250..400).contains(&report.writes.batches), "{:?}", report.writes);
    let regional = layer(&report, "regional");
    // Everything written goes once to each replica, with some overhead.
    let written = report.writes.megabytes_per_second * 1e6 * report.seconds;
    let each = regional.bytes_received as f64 / 2.0;
    assert!(each > written * 0.98 && each < written * 1.3, "{each} of {written}");
    assert_eq!(layer(&report, "leaf").bytes_received, 2 * regional.bytes_received);
    assert_eq!(regional.snapshots, 0);
    // The one-way delay is the lower bound.
    let far = regional.propagation.unwrap();
    assert!(far.max_ms >= 50.0 && far.p50_ms < 60.0, "{far:?}");
    let end = layer(&report, "programs").propagation.unwrap();
    assert!(end.p50_ms > 1.0 && end.max_ms < 200.0, "{end:?}");
    let acknowledged = report.acknowledged.unwrap();
    assert!(acknowledged.p50_ms > end.p50_ms && acknowledged.max_ms < 5000.0, "{acknowledged:?}");
}

#[test]
fn results_depend_only_on_the_seed() {
    let scenario = read(TREE);
    let report = run(&scenario, |_| {}).unwrap();
    assert_eq!(run(&scenario, |_| {}).unwrap(), report);
    let other = run(&Scenario { seed: 2, ..scenario }, |_| {}).unwrap();
    assert_ne!(other.layers, report.layers);
}

#[test]
fn simulating_half_of_processes_gives_same_figures() {
    let text = TREE.replace("name: leaf, count: 2,", "name: leaf, count: 2, simulated: 1,");
    let (report, whole) = (play(&text), play(TREE));
    let (leaf, of_whole) = (layer(&report, "leaf"), layer(&whole, "leaf"));
    assert_eq!((leaf.processes, leaf.simulated, of_whole.simulated), (4, 2, 4));
    // Each process receives the same, so simulating half of them suffices.
    assert_eq!(leaf.bytes_received, of_whole.bytes_received);
    assert_eq!(layer(&report, "regional").sent.mean, layer(&whole, "regional").sent.mean);
    assert_eq!(report.routers, 24);
}

#[test]
fn slow_link_of_replica_tree_receives_coalesced_values() {
    // 40 kB per second of bandwidth for 200 kB of writes: only the last of repeated changes is sent.
    let services = "count: 60\n  sizes: [{servers: 1, share: 1}, {servers: 40, share: 0.1}, {servers: 300, share: 0.01}]";
    let few = "count: 2\n  sizes: [{servers: 1, share: 1}, {servers: 20, share: 0.5}]";
    let text = TREE.replace(services, few).replace("sharded: 2,", "sharded: 0,");
    let slow = text.replace(
        "name: leaf, count: 2, link: {delay: 300us, gigabits: 1}",
        "name: leaf, count: 2, link: {delay: 300us, gigabits: 0.00032}",
    );
    assert_ne!(slow, text);
    let (slow, fast) = (play(&slow), play(&text));
    let (slow, fast) = (layer(&slow, "leaf"), layer(&fast, "leaf"));
    assert!(
        slow.bytes_received * 3 < fast.bytes_received,
        "{} of {}",
        slow.bytes_received,
        fast.bytes_received
    );
    assert!((0.035..0.0405).contains(&slow.received.mean), "the link is full: {:?}", slow.received);
    // The table is sent in half a second, so nothing waits for longer than two messages with the whole table.
    assert!(slow.propagation.unwrap().max_ms < 1500.0, "{:?}", slow.propagation);
}

#[test]
fn all_processes_of_replica_tree_reconnect_after_root_restart() {
    let report = play(&format!("{TREE}events: [{{at: 3s, action: {{restartRoot: {{for: 2s}}}}}}]\n"));
    let [recovery] = &report.recoveries[..] else { panic!("{report:#?}") };
    assert_eq!(recovery.lost, 2);
    // At most six doublings of a 50 ms backoff, and a handshake over 50 ms.
    assert!(recovery.seconds.unwrap() < 4.0, "{recovery:?}");
    assert!(report.writes.refused > 50, "{:?}", report.writes);
}

#[test]
fn disconnected_region_of_replica_tree_resumes_from_log() {
    let cut = "events: [{at: 3s, action: {cut: {region: far, for: 2s}}}]\n";
    let report = play(&format!("{TREE}{cut}"));
    let [recovery] = &report.recoveries[..] else { panic!("{report:#?}") };
    assert_eq!((recovery.lost, recovery.snapshots), (1, 0));
    let later = layer(&report, "programs").propagation_later.unwrap();
    assert!(later.max_ms > 1000.0, "what was written early in the cut came late: {later:?}");
}

#[test]
fn overflow_of_watchers_changed_keys_is_recovered_from_log() {
    // A batch takes 30 ms on this link, and 20,000 changes of 12,000 records come within a tenth of a second.
    let text = TREE
        .replace("count: 60\n", "count: 1000\n")
        .replace("{servers: 300, share: 0.01}", "{servers: 400, share: 0.0005}")
        .replace("link: {gigabits: 1}", "link: {gigabits: 0.1}")
        .replace("bytes: 2000000", "bytes: 8000000");
    let burst = "events: [{at: 3s, action: {burst: {records: 20000, over: 100ms}}}]\n";
    let report = play(&format!("{text}{burst}"));
    assert!(report.servers > 8000, "{}", report.servers);
    let regional = layer(&report, "regional");
    assert_eq!((regional.snapshots, report.different), (0, Some(0)), "{regional:#?}");
}

#[test]
fn scaled_down_hyperscale_trees_meet_expectations() {
    for name in ["hyperscale", "hyperscale-outages"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
        let mut scenario = read(&fs::read_to_string(path).unwrap());
        scenario.validate().unwrap();
        assert_eq!((scenario.name.as_str(), scenario.routers()), (name, 1_000_000));
        assert_eq!(scenario.services.count, 50_000);
        scenario.scale(0.002);
        // The same amount in fewer batches, which simulate faster.
        scenario.writes.batches /= 40.0;
        scenario.compare = true;
        let report = run(&scenario, |_| {}).unwrap();
        assert_eq!(report.missed, [""; 0]);
        assert_eq!((report.routers, report.different), (80 * 20, Some(0)));
        assert!(report.recoveries.iter().all(|recovery| recovery.lost == 0 || recovery.seconds.is_some()));
    }
}

#[test]
fn invalid_replica_tree_scenario_is_rejected_with_field() {
    for (from, to, place) in [
        ("duration: 8s", "duration: 1s", "duration"),
        ("servers: 1, share: 1}", "servers: 2, share: 1}", "services.sizes"),
        ("name: far", "name: near", "regions[1].name"),
        ("count: 2, link", "count: 2, simulated: 3, link", "replicas[1].simulated"),
        (
            "compare: true",
            "events: [{at: 1s, action: {cut: {region: no, for: 1s}}}]",
            "events[0].action.region",
        ),
    ] {
        let text = TREE.replace(from, to);
        assert_ne!(text, TREE, "{from}");
        let refused = read(&text).validate().unwrap_err().to_string();
        assert!(refused.contains(place), "{place}: {refused}");
    }
    assert!(serde_saphyr::from_str::<Scenario>(&TREE.replace("calls:", "call:")).is_err());
}
