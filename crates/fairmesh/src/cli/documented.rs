//! The reference of the command line, `docs/cli.md`, compared with the definitions.

use clap::{Arg, Command};

/// The page.
const PAGE: &str = include_str!("../../../../docs/cli.md");

/// Synopses: the code of the first column of tables, such as `get services|endpoints [SERVICE]`.
fn synopses() -> Vec<&'static str> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split_once("` | ").map(|(cell, _)| cell));
    // A cell may have several, as `a`, `b`.
    cells.flat_map(|cell| cell.split("`, `")).collect()
}

/// The command that a synopsis begins with; `None` if it is something else, such as an option of a table of options.
fn find<'a>(root: &'a Command, synopsis: &str) -> Option<(&'a Command, String)> {
    let (mut command, mut name) = (root, String::new());
    for word in synopsis.split(' ') {
        match command.find_subcommand(word) {
            Some(below) => {
                command = below;
                name += &format!("{word} ");
            }
            None => break,
        }
    }
    (!name.is_empty()).then(|| (command, name.trim().to_owned()))
}

/// The long options that a text names.
fn options(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let named =
        text.split("--").skip(1).map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]);
    named.filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_option_of_the_reference_exists() {
    let root = super::command();
    let mut wrong = Vec::new();
    for synopsis in synopses() {
        let Some((command, name)) = find(&root, synopsis) else { continue };
        // A program of the user follows these dashes.
        let own = synopsis.split(" -- ").next().unwrap_or_default();
        for option in options(own) {
            if !command.get_arguments().any(|argument| argument.get_long() == Some(option)) {
                wrong.push(format!("{name} --{option}"));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/cli.md names options that do not exist: {wrong:?}");
}

#[test]
fn every_command_is_in_the_reference() {
    fn missing(command: &Command, name: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            let name = format!("{name} {}", below.get_name()).trim().to_owned();
            missing(below, &name, found);
            let leaf = below.get_subcommands().all(Command::is_hide_set)
                || below.get_arguments().any(Arg::is_positional);
            if leaf && !PAGE.contains(&format!("`{name}")) {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    missing(&super::command(), "", &mut found);
    assert!(found.is_empty(), "docs/cli.md lacks {found:?}");
}
