use std::{io, path::PathBuf};

/// Errors of the kernel form. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// clang was not found when the binary was built.
    #[error(
        "this binary was built without the kernel form: install clang (scripts/setup.sh build) and build it again"
    )]
    NoPrograms,
    /// The programs are not attached.
    #[error(
        "nothing is attached at {0}; run 'fairmesh kernel attach --cgroup PATH' as root, and give the same --bpffs"
    )]
    NotAttached(PathBuf),
    /// The attached programs belong to another release.
    #[error(
        "the maps at {0} are of another release; run 'fairmesh kernel detach', which leaves connections to their own ways, and attach again"
    )]
    OtherRelease(PathBuf),
    /// This user may not open a map.
    #[error(
        "{0} may be opened by root and by the user whom 'fairmesh kernel attach --owner USER' named alone; run this as one of them, or attach again with --owner"
    )]
    NoAccess(PathBuf),
    /// The short cut is in use and cannot be switched off.
    #[error(
        "responses take the short cut to all cgroups that are attached at {0}; run 'fairmesh kernel detach', and attach each of them again, the first one with --no-short-cut"
    )]
    ShortCutInUse(PathBuf),
    /// More networks or ports than the programs can compare.
    #[error("a cgroup can have {max} networks and {max} ports")]
    TooManySelected {
        /// Maximum number of networks, and of ports.
        max: usize,
    },
    /// Another command does not end.
    #[error(
        "another 'fairmesh kernel attach' or 'detach' has held {path} for {seconds} s; end it ('fuser {path}' names its process), and run this again"
    )]
    Busy {
        /// The file that the other command has locked.
        path: PathBuf,
        /// Time for which this command has waited.
        seconds: u64,
    },
    /// The pin directory is not on a BPF file system.
    #[error(
        "{0} is in no BPF file system; mount one (mount -t bpf bpf PATH), and give a directory in it with --bpffs"
    )]
    NoBpfFileSystem(PathBuf),
    /// The programs must not be attached to this cgroup.
    #[error("cgroup {path} {problem}; give a cgroup of the programs alone, such as /shop")]
    Cgroup {
        /// The cgroup's path as given.
        path: String,
        /// Reason why the cgroup is refused.
        problem: &'static str,
    },
    /// A cgroup is another one than before.
    #[error("cgroup {path} was removed and made again: nothing is attached to the new one; run this again")]
    Replaced {
        /// The cgroup's path.
        path: String,
    },
    /// A process cannot be served as a container.
    #[error("container of process {pid}: {source}; {advice}")]
    Container {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// There is no cgroup2 hierarchy, and none can be mounted.
    #[error("cannot mount a cgroup2 hierarchy at {path}: {source}; mount one, or run as root")]
    NoHierarchy {
        /// The intended mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system file cannot be used.
    #[error("{path}: {source}; this needs root (CAP_BPF, CAP_NET_ADMIN and write access)")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no interface {0} here; 'ip link' lists those that there are")]
    NoInterface(String),
    /// The kernel refuses a program, a map or a link.
    #[error("the kernel refuses {what}: {reason}; 'fairmesh kernel probe' lists what it offers")]
    Refused {
        /// Name of the refused object.
        what: String,
        /// The kernel's reason.
        reason: String,
        /// The number of the system's error, if there is one.
        os_error: Option<i32>,
    },
}

impl KernelError {
    pub(crate) fn refused(what: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut os_error = None;
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            os_error = os_error.or_else(|| error.downcast_ref::<io::Error>()?.raw_os_error());
            cause = error.source();
        }
        Self::Refused { what: what.into(), reason, os_error }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
