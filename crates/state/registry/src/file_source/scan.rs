use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use fairmesh_model::spec::Resource;

use super::SOURCE_LABEL;
use crate::{Registration, manifest};

/// The content found at a file's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum FileContent {
    /// Not read yet.
    #[default]
    Unknown,
    /// The file does not exist.
    Nothing,
    /// The content. Shared, since each scan begins with a copy of all states.
    Text(Arc<str>),
}

/// The state of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileState {
    /// The content in the last scan.
    last: FileContent,
    /// The accepted content: the content that two consecutive scans last agreed on.
    accepted: FileContent,
    /// Number of endpoints in the last valid content; `None` if no content has been valid yet.
    pub(super) listed: Option<usize>,
    /// Endpoints still to be registered. Dropped once registered, because a large fleet takes more memory here than
    /// as records.
    pub(super) due: Option<Arc<[Registration]>>,
    /// Why the accepted content is invalid or could not be registered.
    pub(super) error: Option<String>,
    /// The read error of the last scan.
    pub(super) read_error: Option<String>,
}

/// A file or a folder, and what is known about its files.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) known: BTreeMap<String, FileState>,
}

impl Source {
    /// Reads every file, and notices deleted files.
    ///
    /// Compares content and not modification times: editors and copies keep or forge times, and endpoint files are
    /// small.
    pub(super) fn read(mut self) -> BTreeMap<String, FileState> {
        let (files, read_error) = match files(&self.path) {
            // A folder that is not mounted looks empty.
            Ok(files) if files.is_empty() && self.lists_any() => (files, Some(emptied(&self.path))),
            Ok(files) => (files, None),
            Err(error) => (
                BTreeMap::new(),
                Some(format!("{}: {error}; create it, readable for this user", self.path.display())),
            ),
        };
        for (name, path) in &files {
            let file = self.known.entry(name.clone()).or_default();
            match fs::read_to_string(path) {
                Ok(text) => file.observe(name, FileContent::Text(text.into())),
                Err(error) => {
                    file.read_error = Some(format!("{}: {error}; make it readable", path.display()))
                }
            }
        }
        for (name, file) in self.known.iter_mut().filter(|(name, _)| !files.contains_key(*name)) {
            match &read_error {
                // An unreadable folder does not mean that its files are deleted.
                Some(_) => file.read_error.clone_from(&read_error),
                None => file.observe(name, FileContent::Nothing),
            }
        }
        if read_error.is_some() && self.known.is_empty() {
            self.known
                .insert(self.path.display().to_string(), FileState { read_error, ..FileState::default() });
        }
        self.known
    }
}

impl Source {
    /// Whether any known file lists endpoints, or did before this process started.
    fn lists_any(&self) -> bool {
        self.known.values().any(|file| file.listed.is_none_or(|count| count > 0))
    }
}

fn emptied(path: &Path) -> String {
    format!(
        "{}: it has no file any more; mount it again, or keep a file with 'endpoints: []' there to remove all its endpoints",
        path.display()
    )
}

/// Returns the files of a source, by the value of [`super::SOURCE_LABEL`].
pub(super) fn files(source: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    if !fs::metadata(source)?.is_dir() {
        return Ok(BTreeMap::from([(label(source), source.to_owned())]));
    }
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(source)? {
        let path = entry?.path();
        let yaml = path.extension().is_some_and(|e| e == OsStr::new("yaml") || e == OsStr::new("yml"));
        // Editors and mounts keep temporary files with a leading dot.
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if yaml && !hidden {
            files.insert(label(&path), path);
        }
    }
    Ok(files)
}

fn label(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl FileState {
    /// Accepts the content of a scan if the previous scan found the same content.
    fn observe(&mut self, name: &str, found: FileContent) {
        self.read_error = None;
        if found != self.last {
            self.last = found;
        } else if found != self.accepted {
            self.accept(name, &found);
            self.accepted = self.last.clone();
        }
    }

    fn accept(&mut self, name: &str, found: &FileContent) {
        let wanted = match found {
            FileContent::Text(text) => registrations(name, text),
            // A deleted file lists nothing.
            FileContent::Nothing | FileContent::Unknown => Ok(Vec::new()),
        };
        match wanted {
            Ok(wanted) => {
                (self.listed, self.due, self.error) = (Some(wanted.len()), Some(wanted.into()), None);
            }
            Err(error) => self.error = Some(error),
        }
    }
}

fn registrations(file: &str, text: &str) -> Result<Vec<Registration>, String> {
    let mut registrations = Vec::new();
    // Line of each instance's document. A single document lists no instance twice, but several documents may.
    let mut lines = HashMap::new();
    let documents = manifest::parse(file, text).map_err(|error| error.to_string())?;
    if documents.is_empty() {
        // Some editors empty a file before they write it, which must not remove a fleet.
        return Err(format!(
            "{file}: it is empty; to remove all its endpoints, write 'endpoints: []', or delete it"
        ));
    }
    for document in documents {
        let line = document.line;
        let Resource::Endpoints(service, endpoints) = document.resource else {
            let kind = document.spec.kind();
            return Err(format!(
                "{file}:{line}: kind {kind} is not read from this source; keep Endpoints here, and apply the rest \
                 with 'fairmesh apply -f'"
            ));
        };
        let fairmesh_model::spec::Document::Endpoints(spec) = &document.spec else { continue };
        for (mut endpoint, written) in endpoints.into_iter().zip(&spec.endpoints) {
            if endpoint.lease.is_some() {
                let instance = &endpoint.instance;
                return Err(format!(
                    "{file}:{line}: '{instance}' has a lease; leave it out, since the file keeps it registered"
                ));
            }
            if let Some(before) = lines.insert((service.clone(), endpoint.instance.clone()), line) {
                let instance = &endpoint.instance;
                return Err(format!(
                    "{file}:{line}: '{instance}' of {service} is listed in the document of line {before} too; give every \
                     endpoint its own instance id"
                ));
            }
            endpoint.labels.insert(SOURCE_LABEL.into(), file.into());
            let service = service.clone();
            let explicit_state = written.state.is_some();
            registrations.push(Registration { service, endpoint, explicit_state, declaration: None });
        }
    }
    Ok(registrations)
}
