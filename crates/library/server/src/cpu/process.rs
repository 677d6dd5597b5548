//! Processes, from `/proc`.

use std::{collections::BTreeSet, fs, ops::RangeInclusive, path::Path, thread::available_parallelism};

/// Microseconds per clock tick. Linux reports 100 ticks per second to programs, regardless of its own timer
/// frequency.
const TICK_US: u64 = 10_000;

/// Maximum number of processes of one program that are read.
const MAX_PROCESSES: usize = 1024;

/// Fields of `/proc/<pid>/stat`.
struct Stat {
    parent: u32,
    /// CPU time of the process and of its waited-for children, in ticks. A child's time passes to its parent when the
    /// child ends, so the sum over a process tree only grows.
    ticks: u64,
}

/// CPU time of a process and all its descendants, in microseconds; `None` after it has ended.
pub(super) fn used_us(proc: &Path, pid: u32) -> Option<u64> {
    let mut ticks = stat(proc, pid)?.ticks;
    let mut seen = BTreeSet::from([pid]);
    let mut waiting = vec![pid];
    while let Some(pid) = waiting.pop() {
        for child in children(proc, pid) {
            if seen.len() < MAX_PROCESSES && seen.insert(child) {
                // The child may just have ended.
                ticks += stat(proc, child).map_or(0, |stat| stat.ticks);
                waiting.push(child);
            }
        }
    }
    Some(ticks * TICK_US)
}

/// Number of cores that a process may use. The standard library's value is only a fallback: it subtracts quotas
/// rounded down to whole cores, so 1.5 cores would count as one.
pub(super) fn cores(proc: &Path, pid: u32) -> u32 {
    let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges: Vec<_> = allowed.unwrap_or_default().trim().split(',').filter_map(range).collect();
    // The list also contains cores that the machine does not have.
    let stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
    let online = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split(' ').next()?.parse().ok());
    let cores = online.filter(|core: &u32| ranges.iter().any(|range| range.contains(core))).count();
    let cores = if cores > 0 { cores } else { available_parallelism().map_or(1, usize::from) };
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// Parses a range such as `3` or `0-7`.
fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Whether a process exists.
pub(super) fn is_running(proc: &Path, pid: u32) -> bool {
    stat(proc, pid).is_some()
}

/// Whether any member is unrelated: neither the process itself nor an ancestor or descendant.
pub(super) fn any_unrelated(proc: &Path, pid: u32, members: Vec<u32>) -> bool {
    let ancestors: BTreeSet<u32> = self_and_ancestors(proc, pid).collect();
    members.into_iter().take(MAX_PROCESSES).any(|member| {
        let related = ancestors.contains(&member) || self_and_ancestors(proc, member).any(|up| up == pid);
        // A process that has ended cannot be examined, and is ignored.
        !related && stat(proc, member).is_some()
    })
}

/// Iterates over a process, its parent, and so on.
fn self_and_ancestors(proc: &Path, pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| stat(proc, *pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), parent).take(MAX_PROCESSES)
}

/// The children of all threads of a process; none if the kernel does not list them.
fn children(proc: &Path, pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(proc.join(pid.to_string()).join("task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = texts
        .flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>());
    numbers.collect()
}

fn stat(proc: &Path, pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The name may contain spaces and brackets, and ends at the last bracket.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Field 3 of the line is the first one here. Fields 14 to 17 are user and system time, of the process and of its
    // children.
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks })
}
