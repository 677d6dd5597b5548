use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread::{self, JoinHandle, sleep},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::Host;

/// Interval of the checks whether the process still runs.
const LOOK: Duration = Duration::from_millis(10);
/// Pause before a process that exited is restarted, as a service manager makes it.
const PAUSE: Duration = Duration::from_millis(200);

/// Command and environment of a process.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) words: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// File for the process's output.
    pub(crate) log: PathBuf,
    /// A folder to mount a tmpfs at, with its size in megabytes; the tmpfs exists as long as the process.
    pub(crate) disk: Option<(PathBuf, u32)>,
}

/// A process that is restarted whenever it exits, as by a service manager. Dropping the value ends the process, and so
/// does the end of the test process.
#[derive(Debug)]
pub(crate) struct Daemon {
    shared: Arc<Shared>,
    log: PathBuf,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    child: Mutex<Option<Child>>,
    wanted: AtomicBool,
    over: AtomicBool,
    /// Number of times that the process exited by itself.
    ends: AtomicU32,
}

impl Plan {
    /// Plan for a program; `arguments` are split at blanks.
    pub(crate) fn new(log: PathBuf, binary: &str, arguments: &str) -> Self {
        let words = std::iter::once(binary).chain(arguments.split_whitespace()).map(str::to_owned).collect();
        Self { words, env: Vec::new(), log, disk: None }
    }

    /// Plan for the binary under test.
    pub(crate) fn fairmesh(log: PathBuf, arguments: &str) -> Self {
        Self::new(log, env!("CARGO_BIN_EXE_fairmesh"), arguments)
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut words = Vec::new();
        if let Some((folder, megabytes)) = &self.disk {
            fs::create_dir_all(folder).unwrap();
            let script = r#"mount -t tmpfs -o size="$1"m tmpfs "$2" && shift 2 && exec "$@""#;
            let disk = [&megabytes.to_string(), folder.to_str().unwrap()].map(str::to_owned);
            words.extend(["unshare", "--mount", "sh", "-c", script, "sh"].map(str::to_owned));
            words.extend(disk);
        }
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        words.extend(self.words.iter().cloned());
        Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }
}

impl Daemon {
    pub(crate) fn start(host: &Host, plan: Plan) -> Self {
        let shared = Arc::new(Shared { wanted: AtomicBool::new(true), ..Shared::default() });
        let (host, kept, log) = (host.clone(), shared.clone(), plan.log.clone());
        let keeper = thread::spawn(move || {
            host.enter();
            kept.keep(&plan);
        });
        Self { shared, log, keeper: Some(keeper) }
    }

    /// Kills the process, as a crash or a power cut would, and does not restart it.
    pub(crate) fn kill(&self) {
        self.shared.wanted.store(false, Relaxed);
        if let Some(mut child) = self.shared.child().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the process after [`kill`](Self::kill).
    pub(crate) fn revive(&self) {
        self.shared.wanted.store(true, Relaxed);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid().expect("it runs"), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        let child = self.shared.child();
        Pid::from_raw(i32::try_from(child.as_ref()?.id()).unwrap())
    }

    /// A path as the process sees it.
    pub(crate) fn inside(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.pid().expect("it runs").as_raw_nonzero());
        Path::new(&root).join(path.strip_prefix("/").unwrap())
    }

    /// Resident memory of the process, private and shared, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let pid = self.pid().expect("it runs").as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes << 10
    }

    /// Number of times that the process exited by itself.
    pub(crate) fn ends(&self) -> u32 {
        self.shared.ends.load(Relaxed)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        self.kill();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Shared {
    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap()
    }

    fn keep(&self, plan: &Plan) {
        while !self.over.load(Relaxed) {
            let mut child = self.child();
            let ended = child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if ended {
                *child = None;
                self.ends.fetch_add(1, Relaxed);
                drop(child);
                sleep(PAUSE);
                continue;
            }
            if child.is_none() && self.wanted.load(Relaxed) && !self.over.load(Relaxed) {
                *child = Some(plan.spawn());
            }
            drop(child);
            sleep(LOOK);
        }
    }
}
