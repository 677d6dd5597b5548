//! The command that draws the pictures of `docs/optimizer`, on a small application.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

#[path = "../examples/applications.rs"]
#[allow(dead_code, reason = "the test calls what its main calls")]
mod applications;

/// An application with the names of those in the pictures.
const APPLICATION: &str = "\
kind: app
name: app-boutique
topology:
  regions: [{name: west}, {name: east}]
  roundTrips: [{between: [west, east], rtt: 30ms}]
  egress: {price: $0.02, dollarsPerMs: $0.00001}
services:
  - {name: front, cores: {west: 1, east: 1}}
  - {name: store, cores: {east: 1}}
operations:
  - {name: show, service: front, cpu: 2ms, calls: [[{to: load, request: 100, response: 10000}]]}
  - {name: load, service: store, cpu: 2ms}
clients:
  - {to: show, rates: {west: 30, east: 10}}
rings:
  - {within: region, load: 0.75}
  - {within: any, load: 0.9}
play: {duration: 8s, warmup: 4s, window: 2s}
variants:
  - {name: capacity-cut, events: [{at: 4s, service: front, region: west, action: {speed: {times: 0.5}}}]}
";

/// Asserts that elements are closed in the order in which they are opened.
fn assert_well_formed(name: &str, svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("{name}: '{tag}' has no end"));
        let element = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{name}: {tag}");
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{name}"),
            None if tag.ends_with('/') => {}
            None => open.push(element),
        }
    }
    assert!(open.is_empty() && svg.starts_with("<svg"), "{name}: {open:?} is not closed");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
}

#[test]
fn pictures_of_small_application_are_well_formed_and_name_planners() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("app.yaml");
    fs::write(&file, APPLICATION).unwrap();
    applications::draw(&folder, &[file.to_str().unwrap().to_owned()]).unwrap();
    for picture in ["egress.svg", "recovery.svg", "latency-over-load.svg"] {
        let svg = fs::read_to_string(folder.join(picture)).unwrap();
        assert_well_formed(picture, &svg);
        for planner in ["rings", "waterfall", "optimizer"] {
            assert!(svg.contains(&format!(">{planner}<")), "{picture}: {planner}");
        }
    }
    let figures: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("figures.json")).unwrap()).unwrap();
    assert_eq!(figures[1]["scenario"], "app-boutique-capacity-cut");
    assert!(figures[0]["planners"][0]["meanMs"].as_f64().unwrap() > 4.0, "{figures}");
}
