use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use fairmesh_model::spec::Plan;

use super::SOURCE_LABEL;
use crate::{Registration, manifest};

/// What a look finds at the path of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Found {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// There is no file.
    Nothing,
    /// Its content.
    Text(String),
}

/// A file and what came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// What the last look found.
    last: Found,
    /// What counts: two looks found it so.
    taken: Found,
    /// What its last good content lists; `None` before there was one.
    pub(super) wanted: Option<Vec<Registration>>,
    /// Whether that is carried out.
    pub(super) done: bool,
    /// What is wrong with the content that counts.
    pub(super) error: Option<String>,
    /// Why the last look found nothing out.
    pub(super) trouble: Option<String>,
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
            Err(error) => (
                BTreeMap::new(),
                Some(format!("{}: {error}; create it, readable for this user", self.path.display())),
            ),
        };
        for (name, path) in &files {
            let seen = self.known.entry(name.clone()).or_default();
            match fs::read_to_string(path) {
                Ok(text) => seen.look(name, Found::Text(text)),
                Err(error) => seen.trouble = Some(format!("{}: {error}; make it readable", path.display())),
            }
        }
        for (name, seen) in self.known.iter_mut().filter(|(name, _)| !files.contains_key(*name)) {
            match &trouble {
                // Not seen is not the same as gone.
                Some(_) => seen.trouble.clone_from(&trouble),
                None => seen.look(name, Found::Nothing),
            }
        }
        if trouble.is_some() && self.known.is_empty() {
            self.known.insert(self.path.display().to_string(), Seen { trouble, ..Seen::default() });
        }
        self.known
    }

    fn files(&self) -> io::Result<BTreeMap<String, PathBuf>> {
        if !fs::metadata(&self.path)?.is_dir() {
            return Ok(BTreeMap::from([(label(&self.path), self.path.clone())]));
        }
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let yaml = path.extension().is_some_and(|e| e == OsStr::new("yaml") || e == OsStr::new("yml"));
            // Names with a leading dot are what editors and mounts keep beside the real ones.
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if yaml && !hidden {
                files.insert(label(&path), path);
            }
        }
        Ok(files)
    }
}

fn label(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Seen {
    /// Takes in what a look found, once the look before found the same.
    fn look(&mut self, name: &str, found: Found) {
        self.trouble = None;
        if found == self.last && found != self.taken {
            self.take(name, &found);
            self.taken = found.clone();
        }
        self.last = found;
    }

    fn take(&mut self, name: &str, found: &Found) {
        let wanted = match found {
            Found::Text(text) => registrations(name, text),
            // A file that is gone lists nothing.
            Found::Nothing | Found::Unknown => Ok(Vec::new()),
        };
        match wanted {
            Ok(wanted) => (self.wanted, self.done, self.error) = (Some(wanted), false, None),
            Err(error) => self.error = Some(error),
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
