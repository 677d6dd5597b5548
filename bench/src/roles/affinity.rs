//! The processor on which each role runs.

use rustix::{
    io,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The processor of callers, and of endpoints behind a proxy.
pub(crate) const CALLERS: usize = 0;
/// The processor of what is measured.
pub(crate) const MEASURED: usize = 1;

/// Keeps this process, and what it starts from now on, to one of the processors that it may use, counted from 0 and around.
///
/// Clients and servers get one each: left to itself, the kernel puts two processes that wake each other now on one processor
/// and now on two, for seconds at a time, and then half of what a run can do, and every latency, is a matter of luck.
pub(super) fn keep_to(number: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut one = CpuSet::new();
    // A process that runs may use at least one.
    one.set(allowed[number % allowed.len()]);
    sched_setaffinity(None, &one)
}
