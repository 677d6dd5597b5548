//! Enforces the order of dependencies between crates, and the purity of crates that decide.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

mod tables;

use tables::{
    FLOORS, IMPURE, LISTENING, LISTENS, MAX_CRATE_LINES, MAX_FILE_LINES, MAY_USE, MAY_USE_ALL, ONLY, PURE,
    PURE_FILES, PURE_MAY_USE, TESTING,
};

struct Crate {
    name: String,
    folder: PathBuf,
    /// Dependencies by their declared names, without those for tests and build scripts.
    dependencies: BTreeSet<String>,
    /// Whether `cargo test --doc` runs the library's examples; `None` without a library.
    runs_examples: Option<bool>,
}

impl Crate {
    /// Index of the crate's floor in [`FLOORS`]; `None` for crates outside `crates` and for test crates.
    fn floor(&self) -> Option<usize> {
        let folder = self.folder.parent().unwrap();
        if !folder.parent().unwrap().ends_with("crates") || folder.ends_with(TESTING) {
            return None;
        }
        let floor = FLOORS.iter().position(|floor| folder.ends_with(floor));
        Some(floor.unwrap_or_else(|| panic!("{} lies on no floor: {}", self.name, folder.display())))
    }
}

fn crates() -> Vec<Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(read).collect()
}

fn read(package: &serde_json::Value) -> Crate {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    let mut targets = package["targets"].as_array().unwrap().iter();
    let library = targets.find(|target| target["kind"][0] == "lib");
    Crate {
        name: short(&text(&package["name"])),
        folder: Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned(),
        dependencies: dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| text(&dependency["name"]))
            .collect(),
        runs_examples: library.and_then(|library| library["doctest"].as_bool()),
    }
}

fn short(name: &str) -> String {
    name.strip_prefix("fairmesh-").unwrap_or(name).to_owned()
}

fn ours(dependency: &str) -> Option<&str> {
    dependency.strip_prefix("fairmesh-")
}

#[test]
fn every_crate_uses_only_listed_crates() {
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for one in crates() {
        if MAY_USE_ALL.contains(&one.name.as_str()) {
            continue;
        }
        let Some(allowed) = allowed.get(one.name.as_str()) else {
            wrong.push(format!("{} is not in MAY_USE", one.name));
            continue;
        };
        let used = one.dependencies.iter().filter_map(|dependency| ours(dependency));
        wrong.extend(
            used.filter(|used| !allowed.contains(used)).map(|used| format!("{} uses {used}", one.name)),
        );
    }
    assert!(wrong.is_empty(), "against the direction of dependencies: {wrong:#?}");
}

#[test]
fn crates_use_no_crate_of_higher_architecture_layer() {
    let crates = crates();
    let floors: BTreeMap<&str, usize> =
        crates.iter().filter_map(|one| Some((&*one.name, one.floor()?))).collect();
    for one in &crates {
        let Some(own) = floors.get(&*one.name) else { continue };
        for used in one.dependencies.iter().filter_map(|dependency| ours(dependency)) {
            let Some(floor) = floors.get(used) else { continue };
            assert!(floor <= own, "{} uses {used} of the floor '{}' above it", one.name, FLOORS[*floor]);
        }
    }
}

#[test]
fn crate_order_has_no_cycle() {
    let mut beneath = BTreeSet::new();
    for (name, uses) in MAY_USE {
        assert!(uses.iter().all(|used| beneath.contains(used)), "{name} stands before what it uses");
        beneath.insert(*name);
    }
}

#[test]
fn restricted_dependencies_stay_in_their_crates() {
    for one in crates() {
        for (dependency, owners) in ONLY {
            let has = one.dependencies.contains(*dependency);
            let fits = !has || owners.contains(&one.name.as_str());
            assert!(fits, "{} uses {dependency}, which belongs to {owners:?}", one.name);
        }
    }
}

#[test]
fn deciding_crates_use_no_clock_randomness_or_io() {
    for one in crates().into_iter().filter(|one| PURE.contains(&one.name.as_str())) {
        for dependency in &one.dependencies {
            let fits = ours(dependency).is_some_and(|name| PURE.contains(&name))
                || PURE_MAY_USE.contains(&dependency.as_str());
            assert!(fits, "{} is pure and may not use {dependency}", one.name);
        }
        for file in sources(&one.folder.join("src")) {
            assert_pure(&file);
        }
    }
}

#[test]
fn rib_core_uses_no_clock_randomness_or_io() {
    for one in crates() {
        let files = PURE_FILES.iter().filter(|(name, _)| *name == one.name).flat_map(|(_, files)| *files);
        for file in files {
            assert_pure(&one.folder.join("src").join(file));
        }
    }
}

/// `cargo test --doc` compiles every crate, which takes minutes on a busy machine. `doctest = false` skips a crate.
#[test]
fn crates_with_doc_examples_run_doctests() {
    for one in crates() {
        let Some(runs_examples) = one.runs_examples else { continue };
        let has_examples = sources(&one.folder.join("src")).iter().any(|file| has_example(file));
        assert_eq!(runs_examples, has_examples, "{}: `doctest` of Cargo.toml", one.folder.display());
    }
}

/// Whether a documentation comment in the file has a code block.
fn has_example(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap();
    text.lines()
        .map(str::trim_start)
        .any(|line| (line.starts_with("///") || line.starts_with("//!")) && line.contains("```"))
}

#[test]
fn crates_and_files_stay_within_line_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
    let mut wrong = Vec::new();
    let mut crate_lines = BTreeMap::<PathBuf, usize>::new();
    for folder in ["crates", "bench", "examples", "fuzz", "sim", "vectors"] {
        for (file, lines) in line_counts(&root.join(folder)) {
            if lines > MAX_FILE_LINES {
                wrong.push(format!("{} has {lines} lines", file.display()));
            }
            if let Some(src) = file.ancestors().find(|folder| folder.ends_with("src")) {
                *crate_lines.entry(src.to_owned()).or_default() += lines;
            }
        }
    }
    let large = crate_lines.into_iter().filter(|(_, lines)| *lines > MAX_CRATE_LINES);
    wrong.extend(large.map(|(src, lines)| format!("{} has {lines} lines", src.display())));
    assert!(wrong.is_empty(), "divide by subject: {wrong:#?}");
}

#[test]
fn listener_limits_come_from_one_table() {
    for one in crates().into_iter().filter(|one| !["bench", "fuzz", "examples"].contains(&one.name.as_str()))
    {
        for file in sources(&one.folder.join("src")) {
            let is_of_tests = file.components().any(|part| part.as_os_str() == "tests");
            if is_of_tests || LISTENS.iter().any(|allowed| file.ends_with(allowed)) {
                continue;
            }
            let found = names(&file, LISTENING);
            assert!(
                found.is_none(),
                "{}: {found:?}: listen by fairmesh_listen or fairmesh_wire",
                file.display()
            );
        }
    }
}

fn assert_pure(file: &Path) {
    let found = names(file, IMPURE);
    assert!(found.is_none(), "{}: a pure file names {found:?}", file.display());
}

/// The first of `words` in the code of a file, with its line; test code is skipped.
fn names(file: &Path, words: &'static [&'static str]) -> Option<(usize, &'static str)> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().find_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        words.iter().find(|word| code.contains(**word)).map(|word| (number + 1, *word))
    })
}

/// Every Rust file below a folder with its number of lines, without generated files and build output.
fn line_counts(folder: &Path) -> Vec<(PathBuf, usize)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("generated") && !path.ends_with("target") {
                found.extend(line_counts(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            found.push((path, lines));
        }
    }
    found
}

/// Every Rust file below a folder, without test files.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    found
}
