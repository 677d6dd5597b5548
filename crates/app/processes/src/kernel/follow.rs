//! Follows containers: has the proxy listen in their networks while they run, and detaches what has ended.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_console::output;
use fairmesh_kernel::{CgroupWatch, Container, KernelError, detach_one, is_attached, is_idle, listening};
use fairmesh_proxy::listen_in_container;
use futures_util::FutureExt as _;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep},
};

/// Interval of checks for ended containers and for a proxy that does not listen in them, such as one that was restarted.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval of looks below the cgroup without a change there: a program may enter another network at any time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the last connections of an ended container.
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
    /// The id of the cgroup.
    id: u64,
    containers: Vec<Followed>,
    /// Where further containers start; `None` if there is only one.
    below: Option<Below>,
    /// The last error that was printed.
    reported: String,
}

#[derive(Debug)]
struct Below {
    watch: CgroupWatch,
    changes: AsyncFd<OwnedFd>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Followed {
    container: Container,
    /// Readable once the process has ended.
    process: AsyncFd<OwnedFd>,
    /// The number of its network namespace, once the proxy has listened there.
    namespace: Option<u64>,
}

/// Waits for a descriptor to become readable.
#[allow(unsafe_code, reason = "tokio has no safe function for descriptors that are no sockets")]
fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same one, as long as it exists.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    watched.map_err(io::Error::from)
}

impl Followed {
    fn new(container: Container) -> Result<Self, KernelError> {
        let process = container.process().try_clone_to_owned();
        let process = process.and_then(readable);
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
        let (containers, below) = match following {
            Following::One(container) => (vec![Followed::new(container)?], None),
            Following::AllBelow => {
                let watch = CgroupWatch::open(&path)?;
                let changes = watch.changes().try_clone_to_owned();
                let changes = changes.and_then(readable);
                let changes = changes.map_err(|source| KernelError::File { path: path.into(), source })?;
                (Vec::new(), Some(Below { watch, changes, looked: None }))
            }
        };
        Ok(Self { pins: pins.to_owned(), id, containers, below, reported: String::new() })
    }

    /// Follows until the container has ended, or the cgroup is detached or removed.
    pub(super) async fn follow(mut self) -> Result<(), KernelError> {
        loop {
            self.wait().await;
            if !is_attached(&self.pins, self.id) {
                return Ok(());
            }
            let followed = self.containers.len();
            self.containers.retain(|one| !one.has_ended());
            let has_ended = match &mut self.below {
                Some(below) => {
                    if self.containers.len() < followed {
                        // Other programs may be in the same network.
                        below.looked = None;
                    }
                    !below.watch.exists()
                }
                None => self.containers.is_empty(),
            };
            if has_ended {
                return self.detach().await;
            }
            self.open_listeners().await;
        }
    }

    async fn wait(&self) {
        let Some(below) = &self.below else { return sleep(INTERVAL).await };
        tokio::select! {
            changed = below.changes.readable() => {
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
        let Some(listening) = listening(&self.pins) else { return };
        let is_served = |one: &Followed| one.namespace.is_some_and(|own| listening.namespaces.contains(&own));
        let mut problem = None;
        for one in self.containers.iter_mut().filter(|one| !is_served(one)) {
            if one.container.shares_network_with(listening.proxy) {
                continue;
            }
            match listen_in_container(listening.proxy, &one.container).await {
                Ok(namespace) => one.namespace = Some(namespace),
                Err(error) if !one.has_ended() => problem = Some((one.container.pid(), error)),
                Err(_) => {}
            }
        }
        self.report(problem.map(|(pid, error)| format!("process {pid}: {error}")));
    }

    /// Looks for further containers.
    fn look(&mut self) {
        let Some(below) = &mut self.below else { return };
        let is_due = below.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if !below.watch.has_changed() && !is_due {
            return;
        }
        below.looked = Some(Instant::now());
        let containers = &self.containers;
        let is_known = |namespace| containers.iter().any(|one| one.container.namespace() == namespace);
        let found = below.watch.find(is_known);
        let mut problem = None;
        for container in found {
            match Followed::new(container) {
                Ok(followed) => self.containers.push(followed),
                Err(error) => problem = Some(error.to_string()),
            }
        }
        self.report(problem);
    }

    /// Prints a problem when it changes.
    fn report(&mut self, problem: Option<String>) {
        let Some(problem) = problem.filter(|problem| *problem != self.reported) else { return };
        output::warn(format!("the proxy does not listen in a container: {problem}"));
        self.reported = problem;
    }

    /// Detaches the ended cgroup once its last connection has ended, which the programs notice.
    async fn detach(self) -> Result<(), KernelError> {
        let began = Instant::now();
        let detached = loop {
            match is_idle(&self.pins, self.id) {
                Ok(false) if began.elapsed() < LAST_CONNECTIONS => sleep(INTERVAL).await,
                Ok(_) => break detach_one(&self.pins, self.id),
                Err(error) => break Err(error),
            }
        };
        match detached {
            // By 'detach' meanwhile.
            Err(KernelError::NotAttached(_)) => Ok(()),
            detached => detached,
        }
    }
}
