//! `--config fairmesh.yaml` of the mesh's processes: a file that sets options by their command-line names.
//!
//! Options of the file become arguments before the arguments are parsed, so each value is checked once and in one
//! place. The command line takes precedence over the environment, and the environment over the file.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, Command};
use fairmesh_console::failure::Failure;
use serde_json::{Map, Value};

use super::option_aliases::names;

/// Commands that take a configuration file, each as a list of words.
const PROCESSES: &[&[&str]] = &[
    &["control"],
    &["agent"],
    &["proxy"],
    &["dns"],
    &["lookaside"],
    &["keyserver"],
    &["gateway"],
    &["node"],
    &["rib", "replica"],
];

/// Name of the option that gives the configuration file.
const OPTION: &str = "config";

/// Adds `--config` to the commands in [`PROCESSES`].
pub(super) fn add_option(command: Command) -> Command {
    let option = || {
        Arg::new(OPTION)
            .long(OPTION)
            .value_name("FILE")
            .value_hint(clap::ValueHint::FilePath)
            .value_parser(clap::value_parser!(PathBuf))
            .help("Options in YAML, by their names without the dashes; those of the command line and the environment come first")
    };
    PROCESSES.iter().fold(command, |command, words| mutate(command, words, &|one| one.arg(option())))
}

fn mutate(command: Command, words: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match words {
        [] => change(command),
        [first, rest @ ..] => command.mut_subcommand(*first, |below| mutate(below, rest, change)),
    }
}

/// The arguments, followed by the options of the configuration file that `--config` names.
pub(super) fn expand(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let Some(words) = PROCESSES.iter().find(|words| begins_with(&arguments, words)) else {
        return Ok(arguments);
    };
    let own = &arguments[1 + words.len()..];
    let Some(path) = named_file(own) else { return Ok(arguments) };
    let process = words.iter().try_fold(command, |command, word| command.find_subcommand(word));
    // Every word in [`PROCESSES`] is a command.
    let Some(process) = process else { return Ok(arguments) };
    let mut added = Vec::new();
    for (name, value) in read(&path)? {
        let option = find(process, &name, &path)?;
        let is_set = option.get_env().is_some_and(|variable| env::var_os(variable).is_some());
        if !is_set && !is_given(own, option) {
            added.extend(as_arguments((option, &name), &value, &path)?);
        }
    }
    let mut all = arguments[..=words.len()].to_vec();
    all.extend(added);
    all.extend_from_slice(own);
    Ok(all)
}

fn begins_with(arguments: &[OsString], words: &[&str]) -> bool {
    arguments.len() > words.len()
        && words.iter().zip(&arguments[1..]).all(|(word, argument)| argument == word)
}

/// The file given by `--config FILE` or `--config=FILE`.
fn named_file(arguments: &[OsString]) -> Option<PathBuf> {
    let mut arguments = arguments.iter().take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(PathBuf::from(path));
        }
    }
    None
}

fn read(path: &Path) -> Result<Map<String, Value>, Failure> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::refused(
            format!("cannot read {shown}: {error}"),
            "name a YAML file with options after --config",
        )
    })?;
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Map::new());
    }
    serde_saphyr::from_str(&text).map_err(|error| {
        Failure::refused(
            format!("{shown}: {error}"),
            "write one option a line, such as 'region: eu'; an option that may be repeated takes a list",
        )
    })
}

fn find<'a>(process: &'a Command, name: &str, path: &Path) -> Result<&'a Arg, Failure> {
    let mut options = process.get_arguments().filter(|option| option.get_id() != OPTION);
    options.find(|option| names(option).any(|known| known == name)).ok_or_else(|| {
        let known = process.get_arguments().filter_map(Arg::get_long).filter(|known| *known != OPTION);
        let known = known.collect::<Vec<_>>().join(", ");
        Failure::refused(
            format!("{}: there is no option '{name}' of 'fairmesh {}'", path.display(), process.get_name()),
            format!("write one of {known}"),
        )
    })
}

/// Whether the command line sets the option.
fn is_given(arguments: &[OsString], option: &Arg) -> bool {
    let is_long = |text: &str| {
        let written = text.strip_prefix("--").and_then(|text| text.split('=').next());
        written.is_some_and(|written| names(option).any(|name| name == written))
    };
    let is_short =
        |text: &str| option.get_short().is_some_and(|short| text.starts_with(&format!("-{short}")));
    let mut own =
        arguments.iter().take_while(|argument| *argument != "--").filter_map(|argument| argument.to_str());
    own.any(|text| is_long(text) || is_short(text))
}

/// Turns an option of the file and its values into arguments. The error names the file and the option.
fn as_arguments((option, name): (&Arg, &str), value: &Value, path: &Path) -> Result<Vec<OsString>, Failure> {
    let wrong = |hint: &str| {
        Err(Failure::refused(format!("{}: '{name}' does not take {value}", path.display()), hint))
    };
    if !option.get_action().takes_values() {
        return match value {
            Value::Bool(true) => Ok(vec![format!("--{name}").into()]),
            Value::Bool(false) | Value::Null => Ok(Vec::new()),
            _ => wrong("write true or false"),
        };
    }
    let single = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let values: Option<Vec<_>> = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(values) if matches!(option.get_action(), ArgAction::Append) => {
            values.iter().map(single).collect()
        }
        value => single(value).map(|text| vec![text]),
    };
    match values {
        Some(values) => {
            Ok(values.iter().map(|text| OsStr::new(&format!("--{name}={text}")).to_owned()).collect())
        }
        None => wrong("write a text or a number; an option that may be repeated takes a list of them"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn expanded(yaml: &str, line: &str) -> Result<Vec<String>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(yaml.as_bytes()).unwrap();
        let line = line.replace("FILE", file.path().to_str().unwrap());
        let arguments = line.split(' ').map(OsString::from).collect();
        let expanded = expand(&crate::cli::command(), arguments).map_err(|failure| format!("{failure:?}"))?;
        let name = file.path().to_str().unwrap().to_owned();
        Ok(expanded.iter().map(|argument| argument.to_str().unwrap().replace(&name, "FILE")).collect())
    }

    #[test]
    fn command_line_takes_precedence_over_config_file() {
        let yaml =
            "region: eu\nlisten: [127.0.0.1:1, 127.0.0.1:2]\nmetrics-per-endpoint: true\nadmin: none\n";
        let line = expanded(yaml, "fairmesh proxy --config FILE --region=us").unwrap().join(" ");
        for part in ["--listen=127.0.0.1:1", "--listen=127.0.0.1:2", "--metrics-per-endpoint", "--admin=none"]
        {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(line.ends_with("--config FILE --region=us") && !line.contains("--region=eu"), "{line}");
        let replica = expanded("upstream: 10.0.0.1:7400\n", "fairmesh rib replica --config=FILE").unwrap();
        assert_eq!(replica[1..4], ["rib", "replica", "--upstream=10.0.0.1:7400"]);
        assert_eq!(expanded("# nothing\n", "fairmesh agent --config FILE").unwrap().len(), 4);
    }

    #[test]
    fn refused_config_file_entry_is_reported_with_hint() {
        let refused = |yaml, line| expanded(yaml, line).unwrap_err();
        assert!(
            refused("regoin: eu\n", "fairmesh agent --config FILE").contains("there is no option 'regoin'")
        );
        assert!(
            refused("region: {a: b}\n", "fairmesh agent --config FILE").contains("'region' does not take")
        );
        assert!(
            refused("region: [eu, us]\n", "fairmesh agent --config FILE").contains("'region' does not take")
        );
        assert!(
            refused("metrics-per-endpoint: 1\n", "fairmesh proxy --config FILE").contains("true or false")
        );
        assert!(refused("- a\n", "fairmesh proxy --config FILE").contains("one option a line"));
    }

    #[test]
    fn register_does_not_expand_config_option_of_its_program() {
        assert_eq!(expanded("x: y\n", "fairmesh register shop/x -- --config FILE").unwrap().len(), 6);
    }
}
