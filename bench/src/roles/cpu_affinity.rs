//! The processor on which each role runs.

use rustix::{
    io,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Processor of callers, and of endpoints behind a proxy.
pub(crate) const CALLERS: usize = 0;
/// Processor of the measured process.
pub(crate) const MEASURED: usize = 1;

/// Pins this process, and its later children, to one of its allowed processors: the `number`th, counted from 0 and
/// wrapping around.
///
/// Clients and servers get one processor each. Otherwise the kernel places two processes that wake each other sometimes
/// on one and sometimes on two processors, for seconds at a time; throughput then halves at random, and every latency
/// is a matter of luck.
pub(super) fn keep_to(number: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut one = CpuSet::new();
    // A running process may use at least one processor.
    one.set(allowed[number % allowed.len()]);
    sched_setaffinity(None, &one)
}
