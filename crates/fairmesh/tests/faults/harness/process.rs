use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use super::PATIENCE;

/// How a process is started.
pub(crate) struct Program {
    pub(crate) binary: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// Where its output goes.
    pub(crate) log: PathBuf,
}

/// A process of its own; dropping it kills it.
pub(crate) struct Process {
    program: Program,
    child: Child,
}

impl Program {
    /// The binary under test, with arguments that hold no blanks.
    pub(crate) fn fairmesh(log: PathBuf, args: &str) -> Self {
        let args = args.split(' ').map(OsString::from).collect();
        Self { binary: env!("CARGO_BIN_EXE_fairmesh").into(), args, env: Vec::new(), log }
    }
}

impl Process {
    pub(crate) fn start(program: Program) -> Self {
        let child = spawn(&program);
        Self { program, child }
    }

    /// Ends it at once, as a crash would.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap()
    }

    /// Starts it again after it ended.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.program);
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        match timeout(2 * PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("it does not end:\n{}", self.log()),
        }
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.program.log).unwrap_or_default()
    }
}

fn spawn(program: &Program) -> Child {
    let log = File::options().create(true).append(true).open(&program.log).unwrap();
    Command::new(&program.binary)
        .args(&program.args)
        .env_clear()
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    /// Its output, when it went well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its complaint, when it failed; line breaks and frames of the report are left out.
    #[track_caller]
    pub(crate) fn fails(self) -> String {
        self.fails_with(1)
    }

    #[track_caller]
    pub(crate) fn fails_with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// Runs a command to its end, which must come within `patience`.
pub(crate) async fn run(mut command: Command, input: &str, patience: Duration) -> Run {
    let mut child = command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // A command that reads no input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()).await;
    let output = timeout(patience, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("still running after {patience:?}: {command:?}")).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A program that `scripts/setup.sh` has built, or that is on the path.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let ours = cache.map(|cache| cache.join("fairmesh/tools/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = ours.into_iter().chain(env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The binary under test as a command.
pub(crate) fn fairmesh(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(args);
    command
}
