//! Removes the files and processes of a killed benchmark.

use std::{fs, io, path::Path};

use rustix::process::{Pid, Signal, kill_process};

use super::{BoxError, orders};

/// Waits for the end of its input, then ends the processes that were started in `dir`, and removes `dir`.
pub(super) async fn sweep(dir: &Path) -> Result<(), BoxError> {
    let mut orders = orders();
    while let Ok(Some(_)) = orders.next_line().await {}
    for pid in workers(dir)? {
        // Fails only if the process has already ended.
        let _ = kill_process(pid, Signal::KILL);
    }
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", dir.display()).into()),
        _ => Ok(()),
    }
}

/// All other processes with an argument in `dir`.
fn workers(dir: &Path) -> Result<Vec<Pid>, BoxError> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) else {
            continue;
        };
        // A process that ended meanwhile has no arguments.
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut arguments =
            arguments.split(|&byte| byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
        if arguments.any(|argument| Path::new(argument).starts_with(dir)) {
            found.push(pid);
        }
    }
    Ok(found)
}
