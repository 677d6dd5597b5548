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

use crate::PATIENCE;

/// How a process is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub binary: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(&'static str, String)>,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A process of its own; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Child,
}

impl Program {
    /// The binary under test with arguments that hold no blanks, and an empty environment.
    pub fn fairmesh(log: PathBuf, args: &str) -> Self {
        let args = args.split(' ').map(OsString::from).collect();
        Self { binary: binary(), args, env: Vec::new(), log }
    }
}

impl Process {
    /// Starts it. Takes an async runtime, as all that follows.
    pub fn start(program: Program) -> Self {
        let child = spawn(&program);
        Self { program, child }
    }

    /// Ends it at once, as a crash would.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap()
    }

    /// Starts it again after it ended.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`]; the message has its log.
    pub async fn end(&mut self) -> ExitStatus {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("it does not end:\n{}", self.log()),
        }
    }

    /// How it ended, if it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// What it has printed.
    pub fn log(&self) -> String {
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
pub struct Run {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Run {
    /// Its output, when it succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its complaint, when it failed; line breaks and frames of the report are left out.
    ///
    /// # Panics
    /// When it did not fail with code 1.
    #[track_caller]
    pub fn fails(self) -> String {
        self.fails_with(1)
    }

    /// As [`fails`](Self::fails), with another code.
    ///
    /// # Panics
    /// When it did not fail with that code.
    #[track_caller]
    pub fn fails_with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    /// Its output as JSON, when it succeeded.
    ///
    /// # Panics
    /// When it did not, or the output is not JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Runs a command, with an empty environment, to its end.
///
/// # Panics
/// When it does not end within `patience`.
pub async fn run(mut command: Command, input: &str, patience: Duration) -> Run {
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

/// The binary under test as a command.
pub fn fairmesh(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args);
    command
}

/// The binary `fairmesh`, which cargo puts into the folder above that of the tests.
///
/// # Panics
/// When it is not built.
pub fn binary() -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("fairmesh");
    assert!(path.is_file(), "run: cargo build --workspace --bin fairmesh");
    path
}

/// A program that `scripts/setup.sh` has built, or that is on the path.
pub fn tool(name: &str) -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let ours = cache.map(|cache| cache.join("fairmesh/tools/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = ours.into_iter().chain(env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}
