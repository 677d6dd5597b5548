//! The processor of this machine, and a thread pinned to its idlest core.

use std::{collections::BTreeMap, fs, io, thread, time::Duration};

use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};

/// Time over which idle cores are sampled.
const SAMPLE_TIME: Duration = Duration::from_millis(300);

/// Model name of the processor; `None` if unknown.
pub(super) fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let named = info.lines().filter_map(|line| line.split_once(':'));
    let model = named.filter(|(field, _)| matches!(field.trim(), "model name" | "Model" | "cpu model"));
    model.map(|(_, name)| name.trim().to_owned()).find(|name| !name.is_empty())
}

/// The idlest core that this process may use, with its idle time in thousandths.
pub(super) fn idlest_core() -> io::Result<(usize, u64)> {
    let allowed = sched_getaffinity(None)?;
    let before = core_times()?;
    thread::sleep(SAMPLE_TIME);
    let after = core_times()?;
    let idle = |(core, now): (&usize, &CoreTime)| {
        let before = before.get(core)?;
        let all = now.all.saturating_sub(before.all).max(1);
        Some((*core, now.idle.saturating_sub(before.idle) * 1000 / all))
    };
    let cores = after.iter().filter(|(core, _)| allowed.is_set(**core)).filter_map(idle);
    cores.max_by_key(|(core, idle)| (*idle, *core)).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "/proc/stat names none of the cores that this process may use",
        )
    })
}

/// Pins the calling thread to a core.
pub(super) fn pin_to_core(core: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(None, &only)?)
}

/// CPU time of the calling thread.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long a core has been in use, in ticks.
struct CoreTime {
    all: u64,
    idle: u64,
}

fn core_times() -> io::Result<BTreeMap<usize, CoreTime>> {
    Ok(read_core_times(&fs::read_to_string("/proc/stat")?))
}

fn read_core_times(stat: &str) -> BTreeMap<usize, CoreTime> {
    let core = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let core = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the rest is included in these.
        let ticks: Vec<u64> = fields.take(8).map_while(|ticks| ticks.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        Some((core, CoreTime { all: ticks.iter().sum(), idle }))
    };
    stat.lines().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_idle_ticks_are_read_per_core() {
        let stat = "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu1 1 0 0\nintr 5\n";
        let times = read_core_times(stat);
        assert_eq!(
            times.keys().collect::<Vec<_>>(),
            [&0],
            "the sum of all, and a line cut short, are no cores"
        );
        assert_eq!((times[&0].all, times[&0].idle), (72, 45));
    }
}
