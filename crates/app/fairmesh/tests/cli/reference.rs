//! The commands in `docs/cli.md`: complete commands run as printed, and some test runs every other command.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::support::{Mesh, SHOP};

/// Command groups whose first word is added by a helper in the test file.
const BY_HELPERS: [(&str, &str); 2] = [("kernel", "faults/kernel.rs"), ("sim", "cli/sim.rs")];

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/cli.md")).unwrap()
}

/// Commands in the first column of tables: `get services|hosts [SERVICE]` stands for `get services` and `get hosts`.
fn commands(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let synopses = rows.flat_map(|(cell, _)| cell.split("`, `"));
    let is_word = |word: &&str| {
        !word.starts_with('-') && word.chars().all(|c| c.is_ascii_lowercase() || "-|\\".contains(c))
    };
    let mut found = BTreeSet::new();
    for synopsis in synopses {
        let mut names = vec![String::new()];
        for word in synopsis.split(' ').take_while(is_word).map(|word| word.replace('\\', "")) {
            let longer =
                |name: &String| word.split('|').map(|one| format!("{name} {one}")).collect::<Vec<_>>();
            names = names.iter().flat_map(longer).collect();
        }
        found.extend(names.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()));
    }
    found
}

/// Code of a file without comments, with each list of words joined: `["get", "hosts"]` becomes `["get hosts"]`.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.collect::<Vec<_>>().join(" ").replace("\", \"", " ")
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_command_of_cli_reference_is_run_by_some_test() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files = Vec::new();
    rust_files(&tests, &mut files);
    let all: Vec<_> = files.iter().map(|path| code(path)).collect();
    let runs =
        |text: &str, words: &str| [' ', '"'].iter().any(|end| text.contains(&format!("\"{words}{end}")));
    let commands = commands(&page());
    assert!(commands.len() > 70, "{commands:?}");
    let forgotten: Vec<_> = commands
        .iter()
        .filter(|command| {
            let by_helper = BY_HELPERS.iter().any(|(group, file)| {
                let text = code(&tests.join(file));
                let rest = command.strip_prefix(&format!("{group} "));
                rest.is_some_and(|rest| runs(&text, group) && runs(&text, rest))
            });
            !by_helper && !all.iter().any(|text| runs(text, command))
        })
        .collect();
    assert!(forgotten.is_empty(), "no test runs {forgotten:?}");
}

#[test]
fn first_commands_of_cli_reference_work_as_printed() {
    let page = page();
    let block = page.split("```\n").nth(1).unwrap();
    let mesh = Mesh::start();
    mesh.file("shop.yaml", SHOP);
    let binaries = Path::new(env!("CARGO_BIN_EXE_fairmesh")).parent().unwrap();
    let mut run = 0;
    for (port, line) in (9000..).zip(block.lines()) {
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(mesh.path(""))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", binaries.display()))
            .env("FAIRMESH_CONTROL", mesh.address())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        // Both replicas of the applied map.
        for (instance, region) in [("cart-0", "eu"), ("cart-1", "us")] {
            mesh.register("shop/cart", instance, region, port);
        }
        run += 1;
    }
    assert_eq!(run, 3, "{block}");
}

#[test]
fn every_environment_variable_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.is_file()).chain([root.join("README.md")]);
    let pages: String = pages.map(read).collect();
    // Variables of the library, for callers and servers, are in its own table.
    let library = read(root.join("docs/library.md"));
    let (_, table) = library.split_once("## Variables").unwrap();
    let mut seen = 0;
    let folders = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders(&root.join("crates")).flat_map(|floor| folders(&floor)) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let mut files = Vec::new();
        rust_files(&folder.join("src"), &mut files);
        let place = match &*name {
            "test-runner" | "test-support" => continue,
            "calls" | "client" | "identity" | "server" | "wire" => table,
            _ => &pages,
        };
        for file in files {
            for variable in
                code(&file).split("\"FAIRMESH_").skip(1).filter_map(|rest| rest.split(['"', ' ']).next())
            {
                let named = ["`", "="].map(|end| format!("`FAIRMESH_{variable}{end}"));
                let is_there = named.iter().any(|name| place.contains(name));
                assert!(is_there, "FAIRMESH_{variable} of {} is not documented", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
