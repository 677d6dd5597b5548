//! The scenarios of the repository meet their expectations.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::{Scenario, run};

#[test]
fn simulated_scenarios_meet_their_expectations() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Trees are simulated in `tree.rs`, applications in `application.rs`.
    files.retain(|path| !fs::read_to_string(path).unwrap().starts_with("kind: "));
    files.sort();
    assert!(files.len() >= 17, "{files:?}");
    let play = |path: &Path| {
        let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(path.file_stem().unwrap().to_str(), Some(scenario.name.as_str()));
        let missed = run(&scenario, |_| {}).unwrap().report.missed;
        missed.into_iter().map(|missed| format!("{}: {missed}", scenario.name)).collect::<Vec<_>>()
    };
    let (first, second) = files.split_at(files.len() / 2);
    let missed: Vec<String> = std::thread::scope(|scope| {
        let other = scope.spawn(|| second.iter().flat_map(|path| play(path)).collect::<Vec<_>>());
        let mine: Vec<String> = first.iter().flat_map(|path| play(path)).collect();
        mine.into_iter().chain(other.join().unwrap()).collect()
    });
    assert!(missed.is_empty(), "{missed:#?}");
}
