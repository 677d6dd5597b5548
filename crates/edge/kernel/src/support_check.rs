//! Checks whether this kernel offers what the programs need.

use std::{fs, path::Path, process};

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
    /// Why the requirement is not met; `None` if it is met.
    pub problem: Option<String>,
}

/// Loads each program without attaching it, and removes everything afterwards. `pins` is the directory where they would
/// be pinned.
pub fn probe(pins: &Path) -> Vec<Check> {
    let name = format!("fairmesh-probe-{}", process::id());
    let folder = pins.with_file_name(name);
    let mut checks = Vec::new();
    let mut check = |what: &str, result: Result<(), KernelError>| {
        checks.push(Check { what: what.to_owned(), problem: result.err().map(|error| error.to_string()) });
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
