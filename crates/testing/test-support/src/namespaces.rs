//! Network namespaces as hosts. Creating them requires root.

use std::{
    env, fs,
    fs::File,
    os::fd::AsFd as _,
    panic::resume_unwind,
    path::Path,
    process::{self, Command},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Directory of named network namespaces.
const NAMED: &str = "/run/netns";
/// Prefix of the names of our namespaces; the process id follows.
const OURS: &str = "fairmesh-";

/// A network namespace of this process, deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates a namespace called `fairmesh-PID-NAME`; `name` must be unique within this process.
    ///
    /// # Errors
    /// Why this process cannot create it.
    pub fn new(name: &str) -> Result<Self, String> {
        let name = format!("{OURS}{}-{name}", process::id());
        ip(&["netns", "add", &name])?;
        let file = File::open(Path::new(NAMED).join(&name)).map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, file })
    }

    /// The name that `ip netns` shows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in the namespace.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn ip(&self, arguments: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// Runs a function on a separate thread in the namespace. Its sockets and child processes stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter();
                work()
            });
            there.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Moves this thread, and processes that it starts, to the namespace.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes namespaces of test processes that were killed before they could remove them.
pub fn remove_orphans() {
    let entries = fs::read_dir(NAMED).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(OURS).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            remove(&name);
        }
    }
}

/// Removes a namespace. A failure is printed, but fails no test.
fn remove(name: &str) {
    if let Err(problem) = ip(&["netns", "del", name]) {
        eprintln!("the network namespace {name} is left: {problem}");
    }
}

/// Runs `ip`.
///
/// # Errors
/// Its message, or why it cannot be run.
pub fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).env("PATH", path()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), complaint.trim()))
}

/// Search path for programs: system folders first, which a user's path may lack.
pub fn path() -> String {
    format!("/usr/sbin:/usr/bin:/sbin:/bin:{}", env::var("PATH").unwrap_or_default())
}

/// Whether a program is in one of these folders.
pub fn is_installed(program: &str) -> bool {
    env::split_paths(&path()).any(|folder| folder.join(program).is_file())
}
