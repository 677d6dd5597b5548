//! Compiles the C by which the kernel form reads messages, for the target that compares it with the proxy's parsers.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=../bpf");
    let mut build = cc::Build::new();
    // libFuzzer sees which parts of the C an input reaches if clang compiles it so.
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        build.compiler("clang").flag("-fsanitize=fuzzer-no-link");
    }
    // Most of the programs is not called from here.
    build.file("../bpf/vectors/vectors.c").define("FAIRMESH_LIBRARY", None).opt_level(2).warnings(false);
    build.compile("fairmesh_kernel_parser");
}
