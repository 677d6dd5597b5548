//! Keeps up how busy this program's CPU is, for the reports that its answers carry.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
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
    pub(super) fn start(load: Arc<Load>) -> Self {
        Self { _task: AbortOnDropHandle::new(tokio::spawn(measure(load))) }
    }
}

async fn measure(load: Arc<Load>) {
    let mut cpu = Cpu::of_this_program();
    let mut readings: [Option<(Instant, CpuTime)>; 2] = [None; 2];
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Files of the kernel, though they seldom make anybody wait.
        let Ok((back, time)) = spawn_blocking(move || {
            let time = cpu.read();
            (cpu, time)
        })
        .await
        else {
            return;
        };
        cpu = back;
        let now = time.map(|time| (Instant::now(), time));
        if time.is_none_or(|time| time.begins_anew) {
            readings = [None; 2];
        }
        load.set_cpu(share(readings.iter().flatten().next(), now.as_ref()));
        readings = [readings[1], now];
    }
}

/// The share of the limit that was used between two readings, in thousandths; `None` where one is missing.
fn share(before: Option<&(Instant, CpuTime)>, now: Option<&(Instant, CpuTime)>) -> Option<u16> {
    let ((began, before), (at, now)) = (before?, now?);
    let elapsed = at.duration_since(*began).as_micros().max(1);
    let used = u128::from(now.used_us.saturating_sub(before.used_us));
    // Microseconds of CPU in a microsecond are cores; the limit is in thousandths of one.
    let share = used * 1_000_000 / (elapsed * u128::from(now.limit_millicores.max(1)));
    Some(u16::try_from(share).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_limit_and_of_the_time_between() {
        let began = Instant::now();
        let reading = |ms: u64, used_us, limit_millicores| {
            let time = CpuTime { used_us, limit_millicores, begins_anew: false };
            (began + Duration::from_millis(ms), time)
        };
        let before = reading(0, 5_000_000, 2000);
        let of = |now| share(Some(&before), Some(&now));
        assert_eq!(of(reading(1000, 6_000_000, 2000)), Some(500), "one core of two");
        assert_eq!(of(reading(500, 6_500_000, 2000)), Some(1500), "a burst above the quota");
        assert_eq!(of(reading(1000, 5_000_000, 2000)), Some(0));
        assert_eq!(of(reading(1, u64::MAX, 1)), Some(u16::MAX));
        assert_eq!(share(None, Some(&before)), None);
    }
}
