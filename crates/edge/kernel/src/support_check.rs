//! Checks whether this kernel offers what the programs need.

use std::{fs, path::Path, process};

use rustix::io::Errno;

use crate::{
    KernelError,
    bpf_object::{self, CallerProgram, PROGRAMS},
    bpf_pins,
};

/// A requirement, and whether the kernel meets it.
#[derive(Debug)]
pub struct Check {
    /// Description of the requirement.
    pub what: String,
    /// Reason why the requirement is not met, and what to do; `None` if it is met.
    pub problem: Option<String>,
    /// The kernel's own reason, if it refused something.
    pub refusal: Option<String>,
}

impl Check {
    fn new(what: &str, result: Result<(), KernelError>) -> Self {
        let what = what.to_owned();
        let Err(error) = result else { return Self { what, problem: None, refusal: None } };
        let problem = explain(&what, &error);
        let refusal = match error {
            KernelError::Refused { reason, .. } => Some(reason),
            _ => None,
        };
        Self { what, problem: Some(problem), refusal }
    }
}

/// Explains an error of the check, in which nothing is attached, so that EPERM can only mean a lack of permission.
fn explain(what: &str, error: &KernelError) -> String {
    let KernelError::Refused { os_error, .. } = error else { return error.to_string() };
    match os_error.map(Errno::from_raw_os_error) {
        Some(Errno::PERM) => {
            "this process may not use eBPF: run it as root, or with CAP_BPF and CAP_NET_ADMIN; a container must \
             allow the system call bpf"
        }
        Some(Errno::NOSYS) => "this kernel has no eBPF: use one with CONFIG_BPF_SYSCALL, or a container that allows it",
        _ => return format!("this kernel refuses its {what}: use Linux 6.12.34 or newer, with BTF"),
    }
    .to_owned()
}

/// Loads each program without attaching it, and removes everything afterwards. `pins` is the directory where they would
/// be pinned.
pub fn probe(pins: &Path) -> Vec<Check> {
    let name = format!("fairmesh-probe-{}", process::id());
    let folder = pins.with_file_name(name);
    let mut checks = Vec::new();
    let mut check = |what: &str, result: Result<(), KernelError>| {
        checks.push(Check::new(what, result));
    };
    let created = bpf_pins::create(&folder);
    let is_created = created.is_ok();
    check("BPF file system", created);
    if is_created {
        match bpf_object::open(&folder, &CallerProgram::default()) {
            Ok(mut programs) => {
                check("maps", Ok(()));
                for name in PROGRAMS {
                    check(&format!("program {name}"), bpf_object::load(&mut programs, name));
                }
            }
            Err(error) => check("maps", Err(error)),
        }
        // Errors are ignored: leftovers are visible in the file system.
        let _ = bpf_pins::remove(bpf_pins::list(&folder));
        let _ = fs::remove_dir(&folder);
    }
    checks
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn refusal_by_kernel_is_explained_with_what_to_do() {
        let refused = |os_error| {
            let error = aya::maps::MapError::from(aya::sys::SyscallError {
                call: "bpf_map_create",
                io_error: io::Error::from_raw_os_error(os_error),
            });
            Check::new("maps", Err(KernelError::refused("a map", &error)))
        };
        for (error, advice) in [
            (Errno::PERM, "run it as root, or with CAP_BPF"),
            (Errno::NOSYS, "CONFIG_BPF_SYSCALL"),
            (Errno::INVAL, "refuses its maps: use Linux 6.12.34 or newer"),
        ] {
            let check = refused(error.raw_os_error());
            let (problem, refusal) = (check.problem.unwrap(), check.refusal.unwrap());
            assert!(problem.contains(advice) && !problem.contains("os error"), "{problem}");
            assert!(refusal.contains("os error"), "{refusal}");
        }
    }
}
