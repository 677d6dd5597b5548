use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where a store is, in words for people: the path of its file, or the address of its etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(Arc<str>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Place {
    fn from(words: &str) -> Self {
        Self(words.into())
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Self(path.to_string_lossy().into())
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}
