//! Compiles the eBPF programs with clang. Without clang the crate builds, and says at run time that it has no programs.

use std::{env, path::PathBuf, process::Command};

/// Oldest and newest version that is looked for under its own name.
const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 14..=25;

fn main() {
    println!("cargo:rerun-if-changed=../../bpf");
    println!("cargo:rustc-check-cfg=cfg(has_programs)");
    let Some(out) = env::var_os("OUT_DIR") else { return };
    let object = PathBuf::from(out).join("fairmesh.bpf.o");
    let names = ["clang".to_owned()]
        .into_iter()
        .chain(CLANG_VERSIONS.rev().map(|version| format!("clang-{version}")));
    let Some(clang) = names.into_iter().find(|name| runs(name)) else {
        println!("cargo:warning=no clang: the kernel form is left out; run scripts/setup.sh build");
        return;
    };
    let compiled = Command::new(clang)
        .args([
            "-target",
            "bpf",
            "-mcpu=v3",
            "-O2",
            "-g",
            "-Wall",
            "-Werror",
            "-c",
            "../../bpf/fairmesh.bpf.c",
            "-o",
        ])
        .arg(&object)
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "clang does not compile bpf/fairmesh.bpf.c");
    println!("cargo:rustc-cfg=has_programs");
}

fn runs(name: &str) -> bool {
    // `-print-targets` lists the architectures that this clang compiles for.
    let output = Command::new(name).arg("-print-targets").output();
    output.is_ok_and(|output| {
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("bpf")
    })
}
