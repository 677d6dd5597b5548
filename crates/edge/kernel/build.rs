//! Compiles the eBPF programs with clang. Without clang the crate still builds, and reports missing programs at run
//! time.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The oldest supported version of clang, and the newest version that is searched for under a versioned name.
const OLDEST: u32 = 14;
const NEWEST: u32 = 25;

fn main() {
    println!("cargo:rerun-if-changed=../../../bpf");
    println!("cargo:rustc-check-cfg=cfg(has_programs)");
    println!("cargo:rustc-env=KERNEL_MAPS_LAYOUT={:016x}", layout());
    let Some(out) = env::var_os("OUT_DIR") else { return };
    let out = PathBuf::from(out);
    let names = (OLDEST..=NEWEST).rev().map(|version| format!("clang-{version}"));
    let mut names = ["clang".to_owned()].into_iter().chain(names);
    let Some(clang) = names.find(|name| is_suitable(name)) else {
        println!(
            "cargo:warning=the kernel form is left out: no clang of version {OLDEST} or newer for target bpf; run scripts/setup.sh build"
        );
        return;
    };
    for source in ["socket/fairmesh.bpf.c", "entry/redirector.bpf.c"] {
        compile(&clang, source, &out);
    }
    println!("cargo:rustc-cfg=has_programs");
    // Tests use this clang to compile the shared headers.
    println!("cargo:rustc-env=KERNEL_CLANG={clang}");
}

/// Compiles a source of `bpf` to an object of the same name.
fn compile(clang: &str, source: &str, out: &Path) {
    let object = out.join(Path::new(source).with_extension("o").file_name().unwrap_or_default());
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c"];
    let source = Path::new("../../../bpf").join(source);
    let compiled = Command::new(clang).args(flags).arg(&source).arg("-o").arg(&object).status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "{clang} does not compile {}; its errors are above",
        source.display()
    );
}

/// Hash of the map declarations, to detect maps of another release. Comments and white space do not change the hash.
fn layout() -> u64 {
    let mut text = String::new();
    for file in ["shared.h", "maps.h"] {
        let file = format!("../../../bpf/lib/{file}");
        let declared = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        for part in declared.split("/*") {
            text += part.split_once("*/").map_or(part, |(_, code)| code);
        }
    }
    // FNV-1a, 64 bits.
    text.bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether `name` is a clang that is new enough and compiles for eBPF.
fn is_suitable(name: &str) -> bool {
    let run = |argument| {
        let output = Command::new(name).arg(argument).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let version = run("-dumpversion").and_then(|text| text.split('.').next()?.trim().parse::<u32>().ok());
    version.is_some_and(|version| version >= OLDEST)
        && run("-print-targets").is_some_and(|targets| targets.contains("bpf"))
}
