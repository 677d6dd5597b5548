//! Options given by their names of the previous release, which are hidden aliases of the new names.

use std::{collections::BTreeMap, ffi::OsString};

use clap::{Arg, Command};

/// Names of an option: its own name and its hidden aliases.
pub(super) fn names(option: &Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_all_aliases().unwrap_or_default())
}

/// Options given by an old name, with their new names.
pub(super) fn old_names(command: &Command, arguments: &[OsString]) -> BTreeMap<String, String> {
    let (mut command, mut found) = (command, BTreeMap::new());
    let given = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    for argument in given.filter_map(|argument| argument.to_str()) {
        let Some(written) = argument.strip_prefix("--").and_then(|text| text.split('=').next()) else {
            command = command.find_subcommand(argument).unwrap_or(command);
            continue;
        };
        let is_old =
            |option: &&Arg| option.get_all_aliases().is_some_and(|aliases| aliases.contains(&written));
        let renamed = command.get_arguments().find(is_old).and_then(Arg::get_long);
        found.extend(renamed.map(|name| (written.to_owned(), name.to_owned())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
        let found = old_names(&crate::cli::command(), &arguments);
        found.iter().map(|(old, new)| format!("{old}>{new}")).collect()
    }

    #[test]
    fn old_option_name_is_reported_once() {
        assert_eq!(
            found("fairmesh control --http 127.0.0.1:1 --http-name=a"),
            ["http>admin", "http-name>admin-name"]
        );
        assert_eq!(found("fairmesh rib replica --metrics none --metrics=none"), ["metrics>admin"]);
        assert_eq!(
            found("fairmesh check --http none --metrics none"),
            ["http>control-admin", "metrics>agent-admin"]
        );
        for new in [
            "fairmesh control --admin 127.0.0.1:1",
            "fairmesh register shop/x -- control --http a",
            "fairmesh",
        ] {
            assert!(found(new).is_empty(), "{new}");
        }
    }
}
