use std::{
    io::Write as _,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
};

use fairmesh_test_support::skipped;
use serde_json::Value;
use tempfile::TempDir;

use crate::in_kernel::Programs;

/// The C of the kernel form.
pub(crate) enum Decider {
    /// Compiled for this machine: `bpf/vectors.c`, until it is dropped.
    Native(TempDir),
    /// Run by the kernel: `bpf/vectors.bpf.c`.
    InKernel(Box<Programs>),
}

impl Decider {
    /// `None` where it cannot be compiled, which is said.
    pub(crate) fn native() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile(&["-O2", "-Wno-unused"], "vectors.c", &folder.path().join("decide"))?;
        Some(Self::Native(folder))
    }

    /// `None` where it cannot be compiled, or eBPF is refused, which is said.
    pub(crate) fn in_kernel() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("vectors.bpf.o");
        compile(&["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-c"], "vectors.bpf.c", &object)?;
        match Programs::load(&object) {
            Ok(programs) => Some(Self::InKernel(Box::new(programs))),
            Err(refused) => {
                skipped("eBPF programs decide the vectors", refused);
                None
            }
        }
    }

    /// The outputs for inputs of one kind, `length` bytes each.
    pub(crate) fn decide(&mut self, kind: &str, inputs: &[Vec<u8>], length: usize) -> Vec<Vec<u8>> {
        let outputs = match self {
            Self::Native(folder) => run(&folder.path().join("decide"), kind, &inputs.concat()),
            Self::InKernel(programs) => programs.decide(kind, inputs).concat(),
        };
        assert_eq!(outputs.len(), inputs.len() * length, "{kind}");
        outputs.chunks(length).map(<[u8]>::to_vec).collect()
    }
}

fn compile(flags: &[&str], source: &str, to: &Path) -> Option<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf").join(source);
    let compiled: Option<ExitStatus> = ["clang", "clang-14"].into_iter().find_map(|clang| {
        let mut command = Command::new(clang);
        command.args(flags).args(["-Wall", "-Werror"]).arg(&source).arg("-o").arg(to).status().ok()
    });
    match compiled {
        Some(status) => assert!(status.success(), "{}", source.display()),
        None => skipped("the C of the kernel is compiled by clang", "clang is missing"),
    }
    compiled.map(drop)
}

fn run(program: &Path, kind: &str, inputs: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    let mut child = command.arg(kind).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, bytes) = (child.stdin.take().unwrap(), inputs.to_vec());
    let writing = thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success(), "{kind}");
    output.stdout
}

/// All of a file of vectors.
pub(crate) fn vectors(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors").join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
