//! Disk space: checked before it is used, and released however the benchmark ends.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

/// A folder that is gone when this is, or when the process is: another one waits for that, since one that is killed
/// cleans nothing up.
#[derive(Debug)]
pub(super) struct DiskSpace {
    path: PathBuf,
    /// Its end tells the sweeper that this process ended.
    tell: Option<ChildStdin>,
    sweeper: Child,
}

impl DiskSpace {
    /// A new folder on a disk with so many bytes free.
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
        // A group of its own: what ends the benchmark from the keyboard is not to end what cleans up behind it.
        let mut sweeper = sweeper.process_group(0).spawn().map_err(|e| format!("no sweeper: {e}"))?;
        Ok(Self { path, tell: sweeper.stdin.take(), sweeper })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DiskSpace {
    fn drop(&mut self) {
        self.tell.take();
        // Fails only where no sweeper is left.
        let _ = self.sweeper.wait();
    }
}

fn free(path: &Path) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Looks whether there are so many bytes of memory.
pub(super) fn remember(bytes: u64) -> Result<(), String> {
    let available = kilobytes("/proc/meminfo", "MemAvailable:")?;
    if available >= bytes {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(format!(
        "this takes {:.1} GB of memory, since a control plane holds all records there, and {:.1} GB are available: end other \
         programs, or try --quick, which takes a small part of it",
        gb(bytes),
        gb(available),
    ))
}

/// How many bytes of memory a process has now.
pub(super) fn resident(pid: u32) -> Result<u64, String> {
    kilobytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// A line of a file of the kernel that counts in kilobytes, in bytes.
fn kilobytes(file: &str, name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.map(|number| number * 1024).ok_or_else(|| format!("{file} says nothing of {name}"))
}
