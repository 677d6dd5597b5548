use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit to set if the hard limit is infinite: Linux's own maximum for one process.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Raises the soft limit of file descriptors to the hard limit, as servers do. The soft limit is low for programs that
/// use `select`, which Fairmesh does not. If the system refuses, the limit stays as it is.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MAX_DESCRIPTORS);
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// The soft limit of file descriptors of this process.
pub fn descriptor_limit() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(MAX_DESCRIPTORS);
    usize::try_from(current).unwrap_or(usize::MAX)
}
