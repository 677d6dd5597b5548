//! Reads YAML files into validated resources, or refuses them with the line.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use fairmesh_console::{
    arguments::Files,
    failure::{Failure, Place},
};
use fairmesh_model::{Invalid, spec::Resource};
use fairmesh_registry::manifest::{self, ManifestError};
use miette::{Diagnostic, NamedSource, SourceSpan};
use serde::de::DeserializeOwned;

/// A document with its position.
#[derive(Debug)]
pub(crate) struct ManifestDocument {
    /// The validated document.
    pub(crate) resource: Resource,
    /// Position such as `shop.yaml:12`.
    pub(crate) place: String,
}

/// A file that was refused, with the line of the error.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{}:{}:{}: {}", place.file, place.line, place.column, place.problem)]
struct Refusal {
    place: Place,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("here")]
    span: SourceSpan,
    #[help]
    hint: String,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let place = refusal.place.clone();
        Self::invalid(refusal, vec![place])
    }
}

/// Several places that were refused.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{} errors; nothing was changed", refusals.len())]
struct Refusals {
    #[related]
    refusals: Vec<Refusal>,
}

/// Reads all files, if every document is valid and no two have the same key. Otherwise reports all errors of all files.
pub(crate) fn load(files: &Files) -> Result<Vec<ManifestDocument>, Failure> {
    let (mut documents_read, mut refusals) = (Vec::new(), Vec::new());
    for path in paths(files)? {
        let (name, text) = read(&path)?;
        let documents = manifest::parse(&name, &text).unwrap_or_else(|_| {
            refusals.extend(manifest::errors(&name, &text).into_iter().map(|error| refusal(error, &text)));
            Vec::new()
        });
        for document in documents {
            let place = format!("{name}:{}", document.line);
            if let Resource::Endpoints(service, _) = &document.resource {
                return Err(endpoints(&place, &service.to_string()));
            }
            documents_read.push(ManifestDocument { resource: document.resource, place });
        }
    }
    match refusals.pop() {
        Some(only) if refusals.is_empty() => return Err(only.into()),
        Some(last) => {
            refusals.push(last);
            let places = refusals.iter().map(|refusal| refusal.place.clone()).collect();
            return Err(Failure::invalid(Refusals { refusals }, places));
        }
        None => {}
    }
    if documents_read.is_empty() {
        return Err(Failure::refused("the input has no document", "write one, such as 'kind: Service'"));
    }
    refuse_duplicates(&documents_read)?;
    Ok(documents_read)
}

/// Reads a file with one document of another format.
pub(crate) fn load_one<T: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, Failure> {
    let (name, text) = read(path)?;
    manifest::read(&name, &text, check).map_err(|error| refusal(error, &text).into())
}

/// The kind of a file's only document, if it is one of `known`.
pub(crate) fn kind_of(path: &Path, known: &[&str]) -> Result<Option<String>, Failure> {
    let (name, text) = read(path)?;
    manifest::kind_of(&name, &text, known).map_err(|error| refusal(error, &text).into())
}

fn paths(files: &Files) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in &files.files {
        found.extend(yaml_files(path)?);
    }
    Ok(found)
}

/// Returns the file itself or, for a folder, its YAML files ordered by name.
pub(crate) fn yaml_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() { in_folder(path) } else { Ok(vec![path.to_owned()]) }
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
        let message = format!("{} has no .yaml or .yml file", folder.display());
        return Err(Failure::refused(message, "give a file, or a folder that has some"));
    }
    Ok(found)
}

/// Reads a file. Returns its name for messages, and its text; `-` is standard input.
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

fn refusal(error: ManifestError, text: &str) -> Refusal {
    let ManifestError { file, line, column, message, hint, .. } = error;
    Refusal {
        source_code: NamedSource::new(file.clone(), text.to_owned()).with_language("YAML"),
        span: (error.offset, error.length).into(),
        place: Place { file, line, column, problem: message, hint: hint.clone() },
        hint,
    }
}

fn endpoints(place: &str, service: &str) -> Failure {
    Failure::refused(
        format!("{place}: endpoints of {service} cannot be applied: servers register themselves"),
        "run the program with 'fairmesh register', or start the control plane with --source FILE to watch this file; callers of a mesh with a \
         trust domain use endpoints without 'mtls: true' only where the policy of their service says 'mtls: permissive'",
    )
}

fn refuse_duplicates(documents_read: &[ManifestDocument]) -> Result<(), Failure> {
    let mut seen = BTreeMap::new();
    for one in documents_read {
        let key = one.resource.kind_and_name();
        if let Some(first) = seen.insert(key.clone(), &one.place) {
            let message = format!("{} {} is written twice: {first} and {}", key.0, key.1, one.place);
            return Err(Failure::refused(message, "keep one of the two"));
        }
    }
    Ok(())
}
