use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use fairmesh_model::spec::Plan;

use super::SOURCE_LABEL;
use crate::{Registration, manifest};

/// A file as it was last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Its content; `None` where there is no file any more.
    text: Option<String>,
    /// What its last good content lists; `None` before there was one.
    pub(super) wanted: Option<Vec<Registration>>,
    /// Whether that is carried out.
    pub(super) done: bool,
    /// What is wrong with the content of now.
    pub(super) error: Option<String>,
}

/// A file or a folder, and what is known of it.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) known: BTreeMap<String, Seen>,
}

impl Source {
    /// Every file as it is now, those that are gone included.
    ///
    /// Content is compared, not times: editors and copies keep or forge them, and files of endpoints are small.
    pub(super) fn read(mut self) -> BTreeMap<String, Seen> {
        let (files, trouble) = match self.files() {
            Ok(files) => (files, None),
            Err(error) => (BTreeMap::new(), Some(error.to_string())),
        };
        for (name, path) in &files {
            let seen = self.known.entry(name.clone()).or_default();
            match fs::read_to_string(path) {
                Ok(text) => seen.update(name, text),
                Err(error) => seen.error = Some(format!("{}: {error}; make it readable", path.display())),
            }
        }
        for (_, seen) in self.known.iter_mut().filter(|(name, _)| !files.contains_key(*name)) {
            match &trouble {
                // Not seen is not the same as gone.
                Some(error) => seen.error = Some(format!("{}: {error}", self.path.display())),
                None => seen.gone(),
            }
        }
        if let (Some(error), true) = (trouble, self.known.is_empty()) {
            let error = Some(format!("{}: {error}; create it", self.path.display()));
            self.known.insert(self.path.display().to_string(), Seen { error, ..Seen::default() });
        }
        self.known
    }

    fn files(&self) -> io::Result<BTreeMap<String, PathBuf>> {
        if !fs::metadata(&self.path)?.is_dir() {
            return Ok(BTreeMap::from([(name(&self.path), self.path.clone())]));
        }
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let yaml = path.extension().is_some_and(|e| e == OsStr::new("yaml") || e == OsStr::new("yml"));
            // Names with a leading dot are what editors and mounts keep beside the real ones.
            if yaml && !name(&path).starts_with('.') {
                files.insert(name(&path), path);
            }
        }
        Ok(files)
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

impl Seen {
    fn update(&mut self, name: &str, text: String) {
        if self.text.as_ref() == Some(&text) {
            return;
        }
        match registrations(name, &text) {
            Ok(wanted) => (self.wanted, self.done, self.error) = (Some(wanted), false, None),
            Err(error) => self.error = Some(error),
        }
        self.text = Some(text);
    }

    /// A file that is gone lists nothing.
    fn gone(&mut self) {
        if self.text.take().is_some() {
            (self.wanted, self.done, self.error) = (Some(Vec::new()), false, None);
        }
    }
}

fn registrations(file: &str, text: &str) -> Result<Vec<Registration>, String> {
    let mut registrations = Vec::new();
    let documents = manifest::parse(file, text).map_err(|error| error.to_string())?;
    if documents.is_empty() {
        // An editor that saves in two steps empties a file first; nobody means to stop a fleet like that.
        return Err(format!(
            "{file}: it is empty; to take all its endpoints out, write 'endpoints: []', or delete it"
        ));
    }
    for document in documents {
        let line = document.line;
        let Plan::Endpoints(service, endpoints) = document.plan else {
            let kind = document.spec.kind();
            return Err(format!(
                "{file}:{line}: kind {kind} does not belong here; keep Endpoints, and apply the rest with 'fairmesh apply -f'"
            ));
        };
        let fairmesh_model::spec::Document::Endpoints(spec) = &document.spec else { continue };
        for (mut endpoint, written) in endpoints.into_iter().zip(&spec.endpoints) {
            if endpoint.lease.is_some() {
                let instance = &endpoint.instance;
                return Err(format!(
                    "{file}:{line}: '{instance}' has a lease; leave it out, since the file vouches for it"
                ));
            }
            endpoint.labels.insert(SOURCE_LABEL.into(), file.into());
            let service = service.clone();
            let state_meant = written.state.is_some();
            registrations.push(Registration { service, endpoint, state_meant, declaration: None });
        }
    }
    Ok(registrations)
}
