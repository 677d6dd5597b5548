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

use crate::{PATIENCE, eventually_blocking};

/// Command of a process.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path of the program.
    pub binary: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Complete environment of the program.
    pub env: Vec<(&'static str, String)>,
    /// File to which the program's output is written.
    pub log: PathBuf,
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Child,
}

impl Program {
    /// The binary under test with blank-separated arguments, and an empty environment.
    pub fn fairmesh(log: PathBuf, args: &str) -> Self {
        let args = args.split(' ').map(OsString::from).collect();
        Self { binary: binary(), args, env: Vec::new(), log }
    }
}

impl Process {
    /// Starts the program. Requires an async runtime, like the other methods.
    pub fn start(program: Program) -> Self {
        let child = spawn(&program);
        Self { program, child }
    }

    /// Kills the process at once, as a crash would.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Sends a signal to the process. After `STOP`, waits until all its threads have stopped: until then they go on working.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
        if signal == Signal::STOP {
            eventually_blocking("the process has stopped", || has_stopped(self.pid()));
        }
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap()
    }

    /// Restarts the process after it has ended.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program);
    }

    /// Waits for the process to end.
    ///
    /// # Panics
    /// If it does not end within [`PATIENCE`]; the message has its log.
    pub async fn end(&mut self) -> ExitStatus {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("it does not end:\n{}", self.log()),
        }
    }

    /// Exit status, if the process has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Output of the process so far.
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

/// Result of a command.
#[derive(Debug)]
pub struct Run {
    /// Exit code, unless a signal ended the command.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Run {
    /// Standard output of a successful command.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// The error message of a failed command, without line breaks and frames of the report.
    ///
    /// # Panics
    /// If it did not fail with code 1.
    #[track_caller]
    pub fn fails(self) -> String {
        self.fails_with(1)
    }

    /// As [`fails`](Self::fails), with another exit code.
    ///
    /// # Panics
    /// If it did not fail with that code.
    #[track_caller]
    pub fn fails_with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    /// Standard output of a successful command, parsed as JSON.
    ///
    /// # Panics
    /// If it failed, or the output is not JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Runs a command with an empty environment to its end.
///
/// # Panics
/// If it does not end within `patience`.
pub async fn run(mut command: Command, input: &str, patience: Duration) -> Run {
    let mut child = command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
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
/// If it is not built.
pub fn binary() -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("fairmesh");
    assert!(path.is_file(), "run: cargo build --workspace --bin fairmesh");
    path
}

/// A program built by `scripts/setup.sh`, or found in the path.
pub fn tool(name: &str) -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let ours = cache.map(|cache| cache.join("fairmesh/tools/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = ours.into_iter().chain(env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether all threads of a process have stopped (proc_pid_stat(5), field 3).
fn has_stopped(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}
