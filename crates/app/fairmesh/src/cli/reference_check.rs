//! Checks that the command reference, `docs/cli.md`, agrees with the command-line definitions.

use clap::{Arg, Command};

/// Text of `docs/cli.md`.
const PAGE: &str = include_str!("../../../../../docs/cli.md");

/// Synopses in the first column of the tables, such as `get services|endpoints [SERVICE]`.
fn synopses() -> Vec<&'static str> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split_once("` | ").map(|(cell, _)| cell));
    // A cell may hold several synopses, separated by commas.
    cells.flat_map(|cell| cell.split("`, `")).collect()
}

/// The command at the start of a synopsis, with its full name; `None` if the cell holds something else, such as an
/// option.
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

/// Names of the long options in a text, without their dashes.
fn options(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let named =
        text.split("--").skip(1).map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]);
    named.filter(|name| !name.is_empty()).collect()
}

#[test]
fn cli_reference_names_only_existing_options() {
    let root = super::command();
    let mut wrong = Vec::new();
    for synopsis in synopses() {
        let Some((command, name)) = find(&root, synopsis) else { continue };
        // Options after ` -- ` belong to the user's program.
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
fn cli_reference_lists_every_command() {
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

/// Splits a shell line into words. Stops at a comment, a pipe, a redirection or the end of the line.
fn words(line: &str) -> Vec<String> {
    let (mut found, mut quote) = (Vec::<String>::new(), None);
    let mut is_within = false;
    for one in line.chars() {
        match (quote, one) {
            (Some(end), one) if one == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(one);
                if !is_within {
                    found.push(String::new());
                    is_within = true;
                }
            }
            (None, '#' | '&' | '|' | '>' | '<') if !is_within => break,
            (None, one) if one.is_whitespace() => is_within = false,
            (_, one) => {
                if !is_within {
                    found.push(String::new());
                    is_within = true;
                }
                found.last_mut().expect("a word was begun").push(one);
            }
        }
    }
    found
}

/// The `fairmesh` commands in a shell block, without leading variables, `sudo` or `runuser`, or a program piped into
/// them.
fn printed(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let line =
            line.split(" | fairmesh ").nth(1).map_or(line.to_owned(), |rest| format!("fairmesh {rest}"));
        let mut words = words(&line);
        let is_before = |word: &String| {
            let is_variable = word.contains('=') && !word.starts_with('-');
            is_variable || ["sudo", "runuser", "-u", "--"].contains(&&**word)
        };
        // The user name after `-u` may itself be `fairmesh`.
        while let Some(first) = words.first().filter(|first| is_before(first)) {
            let takes_value = first == "-u";
            words.drain(..if takes_value { 2.min(words.len()) } else { 1 });
        }
        words
    });
    lines.filter(|words| words.first().is_some_and(|first| first == "fairmesh") && words.len() > 1).collect()
}

#[test]
fn commands_on_documentation_pages_parse() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut pages: Vec<_> =
        ["README.md", "deploy/README.md", "examples/README.md"].map(|page| root.join(page)).to_vec();
    for folder in ["docs", "docs/balancing", "docs/regions"] {
        pages.extend(std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages.into_iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
        let shells = blocks.filter(|(language, _)| ["", "sh"].contains(language));
        // Commands with a placeholder such as `…` cannot be parsed.
        let commands = shells.flat_map(|(_, block)| printed(block));
        for words in commands.filter(|words| !words.iter().any(|word| word.contains('…'))) {
            count += 1;
            if let Err(error) = super::command().try_get_matches_from(&words) {
                wrong.push(format!("{}: {}\n{error}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 90, "{count} commands are too few");
}
