use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Location of a store for messages: the path of its file, or the address of its etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLocation(Arc<str>);

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for StoreLocation {
    fn from(words: &str) -> Self {
        Self(words.into())
    }
}

impl From<&Path> for StoreLocation {
    fn from(path: &Path) -> Self {
        Self(path.to_string_lossy().into())
    }
}

impl From<PathBuf> for StoreLocation {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}
