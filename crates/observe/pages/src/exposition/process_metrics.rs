//! Metrics of the operating system's process, named as in Prometheus client libraries.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    sync::{OnceLock, atomic::AtomicU64},
};

use prometheus_client::{
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// Fields of `/proc/self/stat` after the program's name, which is in parentheses and may contain spaces
/// (proc_pid_stat(5)).
const THREADS: usize = 17;
const START_TICKS: usize = 19;

/// Registers the metrics that can be read. If a file of `/proc` is missing, its metrics are left out.
pub(crate) fn register(process: &mut Registry) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let help = "CPU time of the process in user and system mode";
    process.register_with_unit("cpu", help, Unit::Seconds, ConstCounter::new(seconds));
    if let Some((size, resident)) = memory() {
        let help = "Virtual memory of the process";
        process.register_with_unit("virtual_memory", help, Unit::Bytes, ConstGauge::new(size));
        let help = "Resident memory of the process";
        process.register_with_unit("resident_memory", help, Unit::Bytes, ConstGauge::new(resident));
    }
    if let Some(open) = open_descriptors() {
        process.register("open_fds", "Open file descriptors", ConstGauge::new(open));
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    process.register("max_fds", "Maximum of open file descriptors", ConstGauge::new(limit));
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(threads) = field(&stat, THREADS) {
        process.register("threads", "Threads of the process", ConstGauge::new(threads));
    }
    if let Some(start) = start_time(&stat) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(start);
        process.register_with_unit(
            "start_time",
            "When the process began, in Unix time",
            Unit::Seconds,
            gauge,
        );
    }
}

/// Returns the resident memory of this process, in bytes.
pub fn resident_memory() -> Option<u64> {
    memory().map(|(_, resident)| resident)
}

/// Returns the virtual and the resident memory, in bytes.
fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').map_while(|word| word.parse::<u64>().ok());
    let page = page_size() as u64;
    Some((pages.next()? * page, pages.next()? * page))
}

/// Returns the number of open descriptors. Since Linux 6.2 it is the size of `/proc/self/fd`; where that size is
/// zero, the entries are counted.
fn open_descriptors() -> Option<u64> {
    let folder = "/proc/self/fd";
    match fs::metadata(folder).ok()?.size() {
        // Subtracts the descriptor that is open for the count.
        0 => Some((fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1)),
        size => Some(size),
    }
}

fn field(stat: &str, number: usize) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(number)?.parse().ok()
}

/// Returns the start time, in seconds since the Unix epoch. The boot time is read only once: it moves when the clock
/// is set, but the start of the process does not.
fn start_time(stat: &str) -> Option<f64> {
    static BOOT: OnceLock<Option<u64>> = OnceLock::new();
    let read_boot = || {
        let text = fs::read_to_string("/proc/stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok())
    };
    let boot = (*BOOT.get_or_init(read_boot))?;
    Some(boot as f64 + field(stat, START_TICKS)? as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_fields_are_parsed_after_name_with_parentheses() {
        let stat = format!("7 (a) b (c) S {}", (1..=30).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        // The state is the field before the first number.
        assert_eq!((field(&stat, THREADS), field(&stat, START_TICKS)), (Some(17), Some(19)));
    }
}
