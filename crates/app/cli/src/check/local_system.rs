//! This machine: folders, their disks and permissions, and system features that the mesh needs.

use std::{
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
};

use fairmesh_console::default_paths::state_folders;
use fairmesh_kernel::DEFAULT_PINS;
use fairmesh_wire::transport::Address;

use super::CheckArgs;
use crate::findings_report::{Level, Report};

/// Number of free bytes below which a disk counts as nearly full. A control plane needs some space for each change.
const MIN_FREE: u64 = 256 << 20;
/// Percentage of free space below which a disk counts as nearly full. Matters only for small disks.
const MIN_FREE_PERCENT: u64 = 2;

/// Mode bit: anyone may write.
const OTHERS_WRITE: u32 = 0o002;
/// Mode bit: only owners may replace files in the folder.
const STICKY: u32 = 0o1000;

/// Checks the existing folders of data and sockets.
pub(super) fn folders(args: &CheckArgs, report: &mut Report) {
    for given in args.state_dir.iter().filter(|folder| !folder.is_dir()) {
        let message = format!("{} is not a folder", given.display());
        report.add(
            "state",
            Level::Error,
            message,
            "give the --data-dir or --state-dir of a process with --state-dir",
        );
    }
    for folder in state_folders(&args.state_dir).iter().filter(|folder| folder.is_dir()) {
        permissions("state.permissions", folder, "its records and keys", report);
        disk(folder, report);
    }
    for address in args.target.addresses().into_iter().chain([args.agent.address()]) {
        let Address::Unix(socket) = address else { continue };
        if let Some(folder) = socket.parent().filter(|folder| folder.is_dir()) {
            permissions(
                "socket.permissions",
                folder,
                "the socket in it, and so the process behind it",
                report,
            );
        }
    }
}

fn permissions(check: &'static str, folder: &Path, what: &str, report: &mut Report) {
    let Ok(facts) = folder.metadata() else { return };
    if facts.mode() & OTHERS_WRITE != 0 && facts.mode() & STICKY == 0 {
        report.add(
            check,
            Level::Error,
            format!("every user may write to {}, and replace {what}", folder.display()),
            format!("chmod o-w {}", folder.display()),
        );
    }
}

fn disk(folder: &Path, report: &mut Report) {
    let Ok(facts) = rustix::fs::statvfs(folder) else { return };
    let (free, total) = (facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize);
    let shown = format!("{} MB of {} MB are free for {}", free >> 20, total >> 20, folder.display());
    match is_nearly_full(free, total) {
        false => report.ok("disk", shown),
        true => report.add(
            "disk",
            Level::Warning,
            shown,
            "make space: a control plane whose disk is full takes no changes, and an agent saves no copies",
        ),
    }
}

/// Whether so few bytes are free that writes will soon fail.
fn is_nearly_full(free: u64, total: u64) -> bool {
    free < MIN_FREE.min(total / 10) || free < total / 100 * MIN_FREE_PERCENT && free < 16 * MIN_FREE
}

/// Checks the system features for capturing connections and for the kernel form. The mesh works without them.
pub(super) async fn abilities(report: &mut Report) {
    let mut found = Report::default();
    std::mem::swap(report, &mut found);
    // Loading eBPF programs and running a command are blocking.
    let examined = tokio::task::spawn_blocking(move || {
        examine(&mut found);
        found
    });
    if let Ok(found) = examined.await {
        *report = found;
    }
}

fn examine(report: &mut Report) {
    match fairmesh_kernel::mounted_cgroup2() {
        Some(mount) => report.ok("cgroup", format!("control groups of version 2 are mounted at {}", mount.display())),
        None => report.add(
            "cgroup",
            Level::Note,
            "no control groups of version 2 are mounted",
            // Mounting their controllers here would hide those of version 1 from every process of the machine, and a boot
            // with version 2 alone may break programs that use version 1.
            "'kernel attach' mounts them at a place of its own; 'proxy capture --cgroup' needs them at or below \
             /sys/fs/cgroup; everything else works without",
        ),
    }
    let nft =
        Command::new("nft").args(["list", "tables"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match nft {
        Ok(status) if status.success() => report.ok("nftables", "nft works"),
        Ok(_) => report.add(
            "nftables",
            Level::Note,
            "this user may not use nft",
            "'proxy capture' needs root, or CAP_NET_ADMIN",
        ),
        Err(_) => report.add(
            "nftables",
            Level::Note,
            "there is no command nft",
            "'proxy capture' needs it: install nftables",
        ),
    }
    let checks = fairmesh_kernel::probe(Path::new(DEFAULT_PINS));
    let problem = checks.iter().find_map(|check| check.problem.as_ref());
    match problem {
        None => report.ok("ebpf", "this kernel has what the kernel form needs"),
        Some(problem) => report.add(
            "ebpf",
            Level::Note,
            format!("the kernel form cannot be used: {problem}"),
            "'fairmesh kernel probe' lists what it needs, with the kernel's reasons; programs call through a proxy or the library \
             without it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_counts_as_nearly_full_by_free_bytes_and_percentage() {
        let gigabyte = 1 << 30;
        assert!(is_nearly_full(200 << 20, 100 * gigabyte));
        assert!(is_nearly_full(gigabyte, 100 * gigabyte), "one percent");
        assert!(!is_nearly_full(10 * gigabyte, 100 * gigabyte));
        assert!(!is_nearly_full(10 * gigabyte, 10_000 * gigabyte), "a small part of a large disk is much");
        assert!(!is_nearly_full(200 << 20, gigabyte), "a small disk");
    }
}
