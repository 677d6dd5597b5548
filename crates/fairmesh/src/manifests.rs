//! Reading what a person wrote: YAML files into validated plans, or a refusal that shows the line.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use fairmesh_model::{Invalid, spec::Plan};
use fairmesh_registry::manifest::{self, ManifestError};
use miette::{Diagnostic, NamedSource, SourceSpan};
use serde::de::DeserializeOwned;

use crate::{cli::Files, failure::Failure};

/// One document: what it asks for, and where it stands.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// What it asks for.
    pub(crate) plan: Plan,
    /// Such as `shop.yaml:12`.
    pub(crate) place: String,
}

/// A file that is refused, with the line shown.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
struct Refusal {
    message: String,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("here")]
    span: SourceSpan,
    #[help]
    hint: String,
}

/// Reads all files. Nothing comes back unless every document is valid and no two are about the same record.
pub(crate) fn load(files: &Files) -> Result<Vec<Wanted>, Failure> {
    let mut wanted = Vec::new();
    for path in paths(files)? {
        let (name, text) = read(&path)?;
        let documents = manifest::parse(&name, &text).map_err(|error| refusal(error, &text))?;
        for document in documents {
            let place = format!("{name}:{}", document.line);
            if let Plan::Endpoints(service, _) = &document.plan {
                return Err(endpoints(&place, &service.to_string()));
            }
            wanted.push(Wanted { plan: document.plan, place });
        }
    }
    if wanted.is_empty() {
        return Err(Failure::refused("there is no document in it", "write one, such as 'kind: Service'"));
    }
    refuse_twins(&wanted)?;
    Ok(wanted)
}

/// Reads a file that holds one document of a sort of its own.
pub(crate) fn load_one<T: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, Failure> {
    let (name, text) = read(path)?;
    manifest::read(&name, &text, check).map_err(|error| refusal(error, &text))
}

/// The kind of the one document of a file, where it says one: one of those that are known.
pub(crate) fn kind_of(path: &Path, known: &[&str]) -> Result<Option<String>, Failure> {
    let (name, text) = read(path)?;
    manifest::kind_of(&name, &text, known).map_err(|error| refusal(error, &text))
}

/// What a plan is about: its kind and name.
pub(crate) fn subject(plan: &Plan) -> (&'static str, String) {
    match plan {
        Plan::Service(name, _) => ("Service", name.to_string()),
        Plan::Policy(name, _) => ("Policy", name.to_string()),
        Plan::Topology(..) => ("Topology", String::new()),
        Plan::Hosts(_) => ("Hosts", String::new()),
        Plan::ShardMap(name, _) => ("ShardMap", name.to_string()),
        Plan::Endpoints(name, _) => ("Endpoints", name.to_string()),
    }
}

fn paths(files: &Files) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in &files.files {
        if path.is_dir() {
            found.extend(in_folder(path)?);
        } else {
            found.push(path.clone());
        }
    }
    Ok(found)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error| unreadable(folder, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|end| end == "yaml" || end == "yml") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        let message = format!("{} holds no .yaml or .yml file", folder.display());
        return Err(Failure::refused(message, "name a file, or a folder that holds some"));
    }
    Ok(found)
}

/// The name to show and the text; `-` is standard input.
fn read(path: &Path) -> Result<(String, String), Failure> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| unreadable(path, &error))?;
        return Ok(("standard input".into(), text));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    Ok((path.display().to_string(), text))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::refused(format!("cannot read {}: {error}", path.display()), "check the path and its permissions")
}

fn refusal(error: ManifestError, text: &str) -> Failure {
    Failure::invalid(Refusal {
        message: format!("{}:{}:{}: {}", error.file, error.line, error.column, error.message),
        source_code: NamedSource::new(error.file, text.to_owned()).with_language("YAML"),
        span: (error.offset, error.length).into(),
        hint: error.hint,
    })
}

fn endpoints(place: &str, service: &str) -> Failure {
    Failure::refused(
        format!("{place}: endpoints of {service} are not applied: they come and go by themselves"),
        "run the program with 'fairmesh register', or start the control plane with --source FILE to watch this file",
    )
}

fn refuse_twins(wanted: &[Wanted]) -> Result<(), Failure> {
    let mut seen = BTreeMap::new();
    for one in wanted {
        let subject = subject(&one.plan);
        if let Some(first) = seen.insert(subject.clone(), &one.place) {
            let message = format!("{} {} is written twice: {first} and {}", subject.0, subject.1, one.place);
            return Err(Failure::refused(message, "keep one of the two"));
        }
    }
    Ok(())
}
