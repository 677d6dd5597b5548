//! Keeps up how busy this program's CPU is, for the reports that its answers carry.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Cpu, cpu::CpuTime, load::Load};

/// How often the counters are read. What is reported covers the last two periods: shorter ones would report the grain of
/// the kernel's accounting, longer ones what was true when callers last changed their minds.
const PERIOD: Duration = Duration::from_millis(500);

/// A task that reads this program's CPU until it is dropped.
#[derive(Debug)]
pub(super) struct CpuMeter {
    _task: AbortOnDropHandle<()>,
}

impl CpuMeter {
    /// Starts to measure. Must be called within a tokio runtime.
    pub(super) fn start(cpu: Cpu, load: Arc<Load>) -> Self {
        Self { _task: AbortOnDropHandle::new(tokio::spawn(measure(cpu, load))) }
    }
}

async fn measure(cpu: Cpu, load: Arc<Load>) {
    let mut readings: [Option<CpuTime>; 2] = [None; 2];
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let cpu = cpu.clone();
        // Files of the kernel, though they seldom make anybody wait.
        let Ok(now) = spawn_blocking(move || cpu.read()).await else { return };
        load.set_cpu(now.and_then(|now| share(&readings, now)));
        readings = [readings[1], now];
    }
}

/// The share of the limit that was used since the first reading of the same epoch, in thousandths; `None` without one.
fn share(readings: &[Option<CpuTime>], now: CpuTime) -> Option<u16> {
    let before = readings.iter().flatten().find(|before| before.epoch == now.epoch)?;
    let elapsed = now.at.duration_since(before.at).as_micros().max(1);
    let used = u128::from(now.used_us.saturating_sub(before.used_us));
    // Microseconds of CPU in a microsecond are cores; the limit is in thousandths of one.
    let share = used * 1_000_000 / (elapsed * u128::from(now.limit_millicores.max(1)));
    Some(u16::try_from(share).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_share_is_of_the_limit_and_of_the_time_between() {
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
    fn nothing_is_made_of_counters_of_two_kinds() {
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
