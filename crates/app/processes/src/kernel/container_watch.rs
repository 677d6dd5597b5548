//! Follows containers: has the proxy listen in their networks while they run, and detaches what has ended.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_console::output;
use fairmesh_kernel::{
    CgroupState, CgroupWatch, Container, Ending, KernelError, end_attachment, is_attached, listening,
};
use fairmesh_proxy::{listen_in_container, watch_readable};
use futures_util::FutureExt as _;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep},
};

/// Interval of checks for ended containers and for a proxy that does not listen in them, such as one that was restarted.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval of looks for further processes without a change of cgroups: a program may enter another network at any time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the last connections of an ended cgroup.
const LAST_CONNECTIONS: Duration = Duration::from_secs(10);

/// What to follow.
#[derive(Debug)]
pub(super) enum Following {
    One(Container),
    /// The containers below the attached cgroup.
    AllBelow,
}

/// Follows the containers of one attached cgroup.
#[derive(Debug)]
pub(super) struct Follower {
    pins: PathBuf,
    /// The path and the id of the cgroup.
    path: String,
    id: u64,
    cgroup: CgroupWatch,
    /// Readable once cgroups below have changed; `None` for one container.
    changes: Option<AsyncFd<OwnedFd>>,
    /// The network of the one container; `None` if all networks below the cgroup are followed.
    network: Option<(u64, u64)>,
    /// A process in each network in which the proxy listens.
    containers: Vec<Followed>,
    /// When further processes were looked for; `None` if that is due.
    looked: Option<Instant>,
    /// Why a process that was found is not followed.
    unfollowed: Option<String>,
    /// The problem that was printed, until there is another one or none.
    reported: Option<String>,
}

#[derive(Debug)]
struct Followed {
    container: Container,
    /// Readable once the process has ended.
    process: AsyncFd<OwnedFd>,
    /// The number of its network namespace, once the proxy has listened there.
    namespace: Option<u64>,
}

impl Followed {
    fn new(container: Container) -> Result<Self, KernelError> {
        let process = container.process().try_clone_to_owned();
        let process = process.and_then(watch_readable);
        match process {
            Ok(process) => Ok(Self { container, process, namespace: None }),
            Err(source) => Err(KernelError::Container {
                pid: container.pid(),
                source,
                advice: "raise the limit of open files of this command",
            }),
        }
    }

    fn has_ended(&self) -> bool {
        self.process.readable().now_or_never().is_some()
    }
}

impl Follower {
    /// Follows in the attached cgroup with this path and id.
    pub(super) fn new(
        pins: &Path,
        (path, id): (String, u64),
        following: Following,
    ) -> Result<Self, KernelError> {
        let cgroup = CgroupWatch::new(&path, id)?;
        let (cgroup, network, containers) = match following {
            Following::One(container) => {
                (cgroup, Some(container.namespace()), vec![Followed::new(container)?])
            }
            Following::AllBelow => (cgroup.with_changes()?, None, Vec::new()),
        };
        let changes = cgroup.changes().map(|changes| changes.try_clone_to_owned().and_then(watch_readable));
        let changes = changes.transpose();
        let changes = changes.map_err(|source| KernelError::File { path: PathBuf::from(&path), source })?;
        let pins = pins.to_owned();
        let (looked, unfollowed, reported) = (None, None, None);
        Ok(Self { pins, path, id, cgroup, changes, network, containers, looked, unfollowed, reported })
    }

    /// Follows until the container has ended, or the cgroup is detached or removed.
    pub(super) async fn follow(mut self) -> Result<(), KernelError> {
        loop {
            self.wait().await;
            if !is_attached(&self.pins, self.id)? {
                self.warn_of_programs();
                return Ok(());
            }
            if self.has_ended() && self.detach().await? {
                return self.ended();
            }
            let followed = self.containers.len();
            self.containers.retain(|one| !one.has_ended());
            if self.containers.len() < followed {
                // Other programs may be in the same network.
                self.looked = None;
            }
            self.open_listeners().await;
        }
    }

    /// Whether the cgroup has ended. That of a container has once no program is left: programs that live longer than the
    /// process need the proxy, or have to be kept from other destinations than services.
    fn has_ended(&self) -> bool {
        match self.cgroup.state() {
            CgroupState::Populated => false,
            CgroupState::Empty => self.network.is_some(),
            CgroupState::Removed | CgroupState::Replaced => true,
        }
    }

    /// The result for a cgroup that has ended. One that was made again is not attached, so its containers are not served.
    fn ended(self) -> Result<(), KernelError> {
        match (self.network, self.cgroup.state()) {
            (None, CgroupState::Replaced) => Err(KernelError::Replaced { path: self.path }),
            _ => Ok(()),
        }
    }

    /// Warns if another command has detached programs that run. Containers below a cgroup are followed until then.
    fn warn_of_programs(&self) {
        if self.network.is_some() && self.cgroup.state() == CgroupState::Populated {
            output::warn(format!(
                "another command has detached {}, in which programs run: their connections are direct",
                self.path
            ));
        }
    }

    async fn wait(&self) {
        let Some(changes) = &self.changes else { return sleep(INTERVAL).await };
        tokio::select! {
            changed = changes.readable() => {
                // Drained by the next look.
                if let Ok(mut changed) = changed {
                    changed.clear_ready();
                }
            }
            () = sleep(INTERVAL) => {}
        }
    }

    /// Has the proxy open its listener in the containers that have none yet.
    pub(super) async fn open_listeners(&mut self) {
        self.look();
        let Some(listening) = listening(&self.pins) else { return self.report(self.unfollowed.clone()) };
        let is_served = |one: &Followed| one.namespace.is_some_and(|own| listening.namespaces.contains(&own));
        let mut problem = self.unfollowed.clone();
        for one in self.containers.iter_mut().filter(|one| !is_served(one)) {
            if one.container.shares_network_with(listening.proxy) {
                continue;
            }
            match listen_in_container(&listening, &one.container).await {
                Ok(namespace) => one.namespace = Some(namespace),
                Err(error) if !one.has_ended() => {
                    problem = Some(format!("process {}: {error}", one.container.pid()));
                }
                Err(_) => {}
            }
        }
        self.report(problem);
    }

    /// Looks for processes in further networks, and in the one of a process that has ended.
    fn look(&mut self) {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if !self.cgroup.has_changed() && !is_due {
            return;
        }
        self.looked = Some(Instant::now());
        let (containers, network) = (&self.containers, self.network);
        let is_known = |namespace| {
            network.is_some_and(|own| own != namespace)
                || containers.iter().any(|one| one.container.namespace() == namespace)
        };
        let found = self.cgroup.find(is_known);
        self.unfollowed = None;
        for container in found {
            match Followed::new(container) {
                Ok(followed) => self.containers.push(followed),
                Err(error) => self.unfollowed = Some(error.to_string()),
            }
        }
    }

    /// Prints a problem when it changes, and again when it returns.
    fn report(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.reported) {
            output::warn(format!("the proxy does not listen in a container: {problem}"));
        }
        self.reported = problem;
    }

    /// Detaches the ended cgroup once its last connection has ended, which the programs notice. Returns whether it has ended:
    /// another program may have started in it.
    async fn detach(&self) -> Result<bool, KernelError> {
        let began = Instant::now();
        loop {
            match end_attachment(&self.pins, self.id)? {
                Ending::Connected if began.elapsed() < LAST_CONNECTIONS => sleep(INTERVAL).await,
                Ending::Connected | Ending::Ended => return Ok(true),
                Ending::Populated => return Ok(false),
            }
        }
    }
}
