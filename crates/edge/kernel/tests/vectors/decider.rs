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

/// Runs the kernel form's decision code, which is written in C.
pub(crate) enum Decider {
    /// `bpf/vectors/vectors.c`, compiled for this machine; deleted on drop.
    Native(TempDir),
    /// `bpf/vectors/vectors.bpf.c`, run by the kernel.
    InKernel(Box<Programs>),
}

impl Decider {
    /// `None`, with a message, if the code cannot be compiled.
    pub(crate) fn native() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        compile(&["-O2", "-Wno-unused"], "vectors.c", &folder.path().join("decide"))?;
        Some(Self::Native(folder))
    }

    /// `None`, with a message, if the code cannot be compiled or eBPF is refused.
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

    /// Outputs of `length` bytes each for inputs of one kind.
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf/vectors").join(source);
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

/// Parses a vector file.
pub(crate) fn vectors(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors").join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
