//! A temporary folder on a disk with enough free space, removed however the benchmark ends.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

/// A temporary folder that is removed when this value is dropped or the process ends. A second process waits for that,
/// since a killed process cleans nothing up.
#[derive(Debug)]
pub(super) struct ScratchDir {
    path: PathBuf,
    /// Closing it tells the sweeper process that this process has ended.
    tell: Option<ChildStdin>,
    sweeper: Child,
}

impl ScratchDir {
    /// Creates a folder on a disk with at least `bytes` free.
    pub(super) fn take(bytes: u64) -> Result<Self, String> {
        let parent = std::env::temp_dir();
        let free = free(&parent)?;
        if free < bytes {
            let gb = |bytes: u64| bytes as f64 / 1e9;
            return Err(format!(
                "this takes {:.1} GB of disk for a while, and {} has {:.1} GB free: make room, name another folder with \
                 TMPDIR, or try --quick, which takes a small part of it",
                gb(bytes),
                parent.display(),
                gb(free),
            ));
        }
        let path = parent.join(format!("fairmesh-bench-writes-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let binary = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut sweeper = Command::new(binary);
        sweeper.args(["role", "cleanup", "--dir"]).arg(&path).stdin(Stdio::piped());
        // The sweeper has its own process group, so that Ctrl-C in the terminal does not kill it before it cleans up.
        let mut sweeper = sweeper.process_group(0).spawn().map_err(|e| format!("no sweeper: {e}"))?;
        Ok(Self { path, tell: sweeper.stdin.take(), sweeper })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        self.tell.take();
        // Fails only if the sweeper has already ended.
        let _ = self.sweeper.wait();
    }
}

fn free(path: &Path) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}
