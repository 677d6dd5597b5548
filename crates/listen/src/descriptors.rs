use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is asked for where the system sets no bound: the bound of Linux itself for one process.
const MOST: u64 = 1 << 20;

/// Raises the soft limit of file descriptors to the hard one, as servers do: the soft one is low for programs that use `select`,
/// which none of ours does. Where the system refuses, it stays.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST);
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// How many file descriptors this process may have open.
pub fn descriptor_limit() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(MOST);
    usize::try_from(current).unwrap_or(usize::MAX)
}
