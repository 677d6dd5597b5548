//! Samples the CPU utilization of this program for load reports.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Cpu, CpuTime};
use crate::layer::server_load::ServerLoad;

/// Sampling interval. A report covers the last two intervals: less would show the granularity of the kernel's
/// accounting, more would be outdated.
const INTERVAL: Duration = Duration::from_millis(500);

/// A task that samples this program's CPU usage until it is dropped.
#[derive(Debug)]
pub(crate) struct CpuSampler {
    _task: AbortOnDropHandle<()>,
}

impl CpuSampler {
    /// Starts sampling. Must be called within a tokio runtime.
    pub(crate) fn start(cpu: Cpu, load: Arc<ServerLoad>) -> Self {
        Self { _task: AbortOnDropHandle::new(tokio::spawn(measure(cpu, load))) }
    }
}

async fn measure(cpu: Cpu, load: Arc<ServerLoad>) {
    let mut readings: [Option<CpuTime>; 2] = [None; 2];
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let cpu = cpu.clone();
        // Reads kernel files, which rarely block.
        let Ok(now) = spawn_blocking(move || cpu.read()).await else { return };
        load.set_cpu(now.and_then(|now| share(&readings, now)));
        readings = [readings[1], now];
    }
}

/// Utilization of the limit since the oldest reading of the same epoch, in thousandths; `None` without such a reading.
fn share(readings: &[Option<CpuTime>], now: CpuTime) -> Option<u16> {
    let before = readings.iter().flatten().find(|before| before.epoch == now.epoch)?;
    let elapsed = now.at.duration_since(before.at).as_micros().max(1);
    let used = u128::from(now.used_us.saturating_sub(before.used_us));
    // CPU microseconds per elapsed microsecond are cores; the limit is in thousandths of a core.
    let share = used * 1_000_000 / (elapsed * u128::from(now.limit_millicores.max(1)));
    Some(u16::try_from(share).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn cpu_utilisation_is_relative_to_cpu_limit_and_elapsed_time() {
        let began = Instant::now();
        let reading = |ms: u64, used_us, limit_millicores| {
            let at = began + Duration::from_millis(ms);
            CpuTime { at, used_us, limit_millicores, epoch: 1 }
        };
        let before = reading(0, 5_000_000, 2000);
        let of = |now| share(&[None, Some(before)], now);
        assert_eq!(of(reading(1000, 6_000_000, 2000)), Some(500), "one core of two");
        assert_eq!(of(reading(500, 6_500_000, 2000)), Some(1500), "a burst above the quota");
        assert_eq!(of(reading(1000, 5_000_000, 2000)), Some(0));
        assert_eq!(of(reading(1, u64::MAX, 1)), Some(u16::MAX));
        assert_eq!(share(&[None, None], before), None);
    }

    #[test]
    fn cpu_counters_of_different_sources_are_not_compared() {
        let began = Instant::now();
        let reading = |ms: u64, used_us, epoch| {
            let at = began + Duration::from_millis(ms);
            Some(CpuTime { at, used_us, limit_millicores: 1000, epoch })
        };
        let now = reading(1000, 900_000, 2).unwrap();
        assert_eq!(share(&[reading(0, 100, 1), reading(500, 200, 1)], now), None);
        assert_eq!(share(&[reading(0, 100, 1), reading(500, 800_000, 2)], now), Some(200));
    }
}
