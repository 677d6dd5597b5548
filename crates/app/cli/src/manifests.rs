//! Reads YAML files into validated resources, or refuses them with the line.

use std::{
    collections::{BTreeMap, btree_map::Entry},
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

/// Maximum number of lines named for repeats of an error.
const MAX_LINES: usize = 5;

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
#[error("{count} errors; nothing was changed")]
struct Refusals {
    /// Number of places; repeats of an error are shown once.
    count: usize,
    #[related]
    refusals: Vec<Refusal>,
}

/// The valid documents of files, and the errors of the others.
pub(crate) struct Loaded {
    /// The valid documents, of files without an error.
    pub(crate) documents: Vec<ManifestDocument>,
    /// All errors of all files; `None` if there are none.
    pub(crate) refused: Option<Failure>,
}

/// Reads all files, if every document is valid and no two have the same key. Otherwise reports all errors of all files.
pub(crate) fn load(files: &Files) -> Result<Vec<ManifestDocument>, Failure> {
    let Loaded { documents, refused } = load_valid(files)?;
    match refused {
        Some(failure) => Err(failure),
        None => Ok(documents),
    }
}

/// Reads all files.
///
/// # Errors
/// A file cannot be read, or the files have no document.
pub(crate) fn load_valid(files: &Files) -> Result<Loaded, Failure> {
    let (mut documents_read, mut refusals) = (Vec::new(), Vec::new());
    let mut first_places = BTreeMap::new();
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
            match first_places.entry(document.resource.kind_and_name()) {
                Entry::Occupied(first) => {
                    let (kind, name_of_object) = first.key();
                    let problem =
                        format!("{kind} {name_of_object} is written twice: first at {}", first.get());
                    refusals.push(at_line((&name, &text), document.line, problem, "keep one of the two"));
                }
                Entry::Vacant(entry) => {
                    entry.insert(place.clone());
                    documents_read.push(ManifestDocument { resource: document.resource, place });
                }
            }
        }
    }
    if documents_read.is_empty() && refusals.is_empty() {
        return Err(Failure::refused("the input has no document", "write one, such as 'kind: Service'"));
    }
    Ok(Loaded { documents: documents_read, refused: refused(refusals) })
}

/// The failure for these errors; `None` if there are none.
fn refused(refusals: Vec<Refusal>) -> Option<Failure> {
    let places: Vec<Place> = refusals.iter().map(|refusal| refusal.place.clone()).collect();
    let mut merged = merge_repeats(refusals);
    let only = merged.pop()?;
    if merged.is_empty() {
        return Some(Failure::invalid(only, places));
    }
    merged.push(only);
    Some(Failure::invalid(Refusals { count: places.len(), refusals: merged }, places))
}

/// Merges errors of a file that differ only in their places, such as a misspelt field in each entry of a list.
fn merge_repeats(refusals: Vec<Refusal>) -> Vec<Refusal> {
    let mut merged: Vec<(Refusal, Vec<usize>)> = Vec::new();
    for one in refusals {
        let is_same = |(first, _): &&mut (Refusal, Vec<usize>)| {
            let (first, one) = (&first.place, &one.place);
            (&first.file, &first.problem, &first.hint) == (&one.file, &one.problem, &one.hint)
        };
        match merged.iter_mut().find(is_same) {
            Some((_, lines)) => lines.push(one.place.line),
            None => merged.push((one, Vec::new())),
        }
    }
    let with_lines = |(mut first, lines): (Refusal, Vec<usize>)| {
        if !lines.is_empty() {
            first.place.problem += &also(&lines);
        }
        first
    };
    merged.into_iter().map(with_lines).collect()
}

/// The first lines of repeats, and the number of the others.
fn also(lines: &[usize]) -> String {
    let shown: Vec<_> = lines.iter().take(MAX_LINES).map(ToString::to_string).collect();
    let more = match lines.len().saturating_sub(MAX_LINES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(" (also in {} {}{more})", if lines.len() == 1 { "line" } else { "lines" }, shown.join(", "))
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

/// An error of a whole document, which begins at a line.
fn at_line((file, text): (&str, &str), line: usize, problem: String, hint: &str) -> Refusal {
    let offset: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let length = text.lines().nth(line.saturating_sub(1)).map_or(0, str::len);
    let (file, message, hint) = (file.to_owned(), problem, hint.to_owned());
    refusal(ManifestError { file, line, column: 1, offset, length, message, hint }, text)
}
