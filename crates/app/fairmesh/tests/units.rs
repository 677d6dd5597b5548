//! The systemd units and their documentation name only options and variables that the binary has.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{collections::BTreeSet, fs, process::Command};

fn deployed(file: &str) -> String {
    fs::read_to_string(format!("{}/../../../deploy/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn help(command: &str) -> BTreeSet<String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fairmesh")).args(command.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    words(&String::from_utf8(output.stdout).unwrap())
}

/// Options and `FAIRMESH_` variables in a text.
fn words(text: &str) -> BTreeSet<String> {
    let of_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let words = text.split(|c| !of_names(c));
    words.filter(|word| word.starts_with("--") || word.starts_with("FAIRMESH_")).map(str::to_owned).collect()
}

#[test]
fn systemd_units_name_only_existing_options_and_variables() {
    for (name, command) in [
        ("control", "control"),
        ("agent", "agent"),
        ("proxy", "proxy"),
        ("replica", "rib replica"),
        ("gateway", "gateway"),
        ("node", "node"),
    ] {
        let unit = deployed(&format!("fairmesh-{name}.service"));
        let start = format!("ExecStart=/usr/local/bin/fairmesh {command} ");
        assert!(unit.lines().any(|line| line.starts_with(&start)), "{unit}");
        let mut known = help(command);
        // The units define this variable for further arguments.
        known.insert(format!("FAIRMESH_{}_OPTIONS", name.to_uppercase()));
        let unknown: Vec<_> = words(&unit).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "fairmesh {command} does not know {unknown:?}");
    }
}

#[test]
fn systemd_units_limit_agent_and_restart_processes() {
    let agent = deployed("fairmesh-agent.service");
    for setting in ["CPUQuota=", "MemoryMax=", "TasksMax="] {
        assert!(agent.lines().any(|line| line.starts_with(setting)), "{setting}");
    }
    let others = ["control", "proxy", "replica", "gateway", "node"]
        .map(|name| deployed(&format!("fairmesh-{name}.service")));
    for unit in [agent].into_iter().chain(others) {
        assert!(unit.lines().any(|line| line == "Restart=always"), "{unit}");
    }
}
