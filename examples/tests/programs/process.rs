//! A program that goes on while a test looks at it.

use std::{
    path::{Path, PathBuf},
    process::{self, ExitStatus, Stdio},
    sync::Once,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::machine::PATIENCE;

pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for the next line that starts so: its rest.
    pub(crate) async fn line_after(&mut self, start: &str) -> String {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(rest) = line.strip_prefix(start) {
                    return rest.to_owned();
                }
            }
            panic!("the program ended without a line '{start}...'");
        };
        timeout(PATIENCE, found).await.unwrap()
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().unwrap())).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap()
    }
}

/// The binary `fairmesh`, which a build of the workspace puts beside the examples.
pub(crate) fn fairmesh() -> PathBuf {
    static BUILT: Once = Once::new();
    let path = Path::new(env!("CARGO_BIN_EXE_hello_server")).with_file_name("fairmesh");
    BUILT.call_once(|| {
        if !path.exists() {
            let build = ["build", "--quiet", "--workspace", "--bin", "fairmesh"];
            let built = process::Command::new(env!("CARGO")).args(build).status().unwrap();
            assert!(built.success() && path.exists(), "run: cargo build --workspace --bin fairmesh");
        }
    });
    path
}
