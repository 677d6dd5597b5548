use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit to request where the hard limit is infinite: Linux's own maximum for one process.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Raises the soft limit of file descriptors to the hard one, as servers do: the soft one is low for programs that use
/// `select`, which Fairmesh does not. It stays where the system refuses.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MAX_DESCRIPTORS);
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Soft limit of file descriptors of this process.
pub fn descriptor_limit() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(MAX_DESCRIPTORS);
    usize::try_from(current).unwrap_or(usize::MAX)
}
