use std::{io, path::PathBuf};

/// Why something cannot be done with the kernel form. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// clang was not found when the binary was built.
    #[error(
        "this binary was built without the kernel form: install clang (scripts/setup.sh build) and build it again"
    )]
    NoPrograms,
    /// Not attached.
    #[error(
        "nothing is attached at {0}; run 'fairmesh kernel attach --cgroup PATH' as root, and give the same --bpffs"
    )]
    NotAttached(PathBuf),
    /// What is attached is of another release.
    #[error(
        "the maps at {0} are of another release; run 'fairmesh kernel detach', which leaves connections to their own ways, and attach again"
    )]
    OtherRelease(PathBuf),
    /// This user may not open a map.
    #[error(
        "{0} may be opened by root and by the user whom 'fairmesh kernel attach --owner USER' named alone; run this as one of them, or attach again with --owner"
    )]
    NoAccess(PathBuf),
    /// Responses of the proxy take the short cut, and are not to.
    #[error(
        "responses take the short cut to all cgroups that are attached at {0}; run 'fairmesh kernel detach', and attach each of them again, the first one with --no-short-cut"
    )]
    ShortCutInUse(PathBuf),
    /// More than the programs compare.
    #[error("a cgroup can have {max} networks and {max} ports")]
    TooManySelected {
        /// Of each.
        max: usize,
    },
    /// The directory for pins is of another file system.
    #[error(
        "{0} is in no BPF file system; mount one (mount -t bpf bpf PATH), and give a directory in it with --bpffs"
    )]
    NoBpfFileSystem(PathBuf),
    /// A cgroup that must not be attached to.
    #[error("cgroup {path} {problem}; give a cgroup of the programs alone, such as /shop")]
    Cgroup {
        /// The cgroup as it was given.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no cgroup hierarchy of version 2, and none can be mounted.
    #[error("cannot mount a cgroup2 hierarchy at {path}: {source}; mount one, or run as root")]
    NoHierarchy {
        /// Where it would be mounted.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the system.
    #[error("{path}: {source}; this needs root (CAP_BPF, CAP_NET_ADMIN and write access)")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refuses a program, a map or a link.
    #[error("the kernel refuses {what}: {reason}; 'fairmesh kernel probe' lists what it offers")]
    Refused {
        /// Its name.
        what: String,
        /// What the kernel said.
        reason: String,
    },
}

impl KernelError {
    pub(crate) fn refused(what: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        Self::Refused { what: what.into(), reason }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
