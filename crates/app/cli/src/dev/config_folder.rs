//! A folder of YAML files that is applied whenever it changes.

use std::{convert::Infallible, fs, path::PathBuf, time::Duration};

use fairmesh_console::{
    arguments::{Files, TargetArgs},
    connect::connect,
    failure::Failure,
};
use fairmesh_wire::handshake::Connection;
use tokio::time::sleep;

use crate::{manifests, records::apply};

/// Interval at which the folder is read. Its contents are used once two successive reads agree, because a file may be
/// half written.
const INTERVAL: Duration = Duration::from_millis(250);

/// Paths and contents of the files of a folder.
type Contents = Vec<(PathBuf, Vec<u8>)>;

/// A folder of YAML files, or one file.
pub(super) struct ConfigFolder {
    path: PathBuf,
    /// Contents that were last applied or refused.
    known: Contents,
}

impl ConfigFolder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, known: Contents::new() }
    }

    /// Refuses documents that cannot be applied.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.load().map(drop)
    }

    /// Applies the current contents of the folder.
    pub(super) async fn apply(&mut self, connection: &Connection) -> Result<(), Failure> {
        self.known = self.read();
        apply::apply_and_print(connection, self.load()?).await
    }

    /// Applies the folder after each change. A refused change is printed, and nothing is written.
    pub(super) async fn follow(mut self, target: &TargetArgs) -> Result<Infallible, Failure> {
        let mut last = self.known.clone();
        loop {
            sleep(INTERVAL).await;
            let now = self.read();
            if now == last && now != self.known {
                let applied = async { self.apply(&connect(target).await?).await };
                if let Err(failure) = applied.await {
                    failure.report();
                }
            }
            last = now;
        }
    }

    fn load(&self) -> Result<Vec<manifests::ManifestDocument>, Failure> {
        manifests::load(&Files { files: vec![self.path.clone()] })
    }

    /// Reads the folder. Unreadable files are left out here, because applying them will report the error.
    fn read(&self) -> Contents {
        let paths = manifests::yaml_files(&self.path).unwrap_or_default();
        paths.into_iter().filter_map(|path| Some((path.clone(), fs::read(path).ok()?))).collect()
    }
}
