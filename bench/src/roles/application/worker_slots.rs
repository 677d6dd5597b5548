//! The worker slots of a pool: calls share them in turns, as cores are shared among threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

/// Longest time for which a call holds a slot while others wait. In turns, light calls wait less than heavy ones, as on
/// cores; timers have a resolution of a millisecond.
const TURN: Duration = Duration::from_millis(10);

/// The slots.
#[derive(Debug)]
pub(super) struct WorkerSlots {
    free: Semaphore,
    /// Speed of a slot relative to a core: below 1 where a pool has a fraction of a core.
    speed: f64,
    millicores: u32,
    busy_us: Arc<AtomicU64>,
}

impl WorkerSlots {
    /// A slot for each core.
    pub(super) fn of(cores: f64) -> Self {
        let slots = cores.ceil().max(1.0);
        Self {
            free: Semaphore::new(slots as usize),
            speed: cores / slots,
            millicores: (cores * 1_000.0) as u32,
            busy_us: Arc::default(),
        }
    }

    /// Capacity in thousandths of a core.
    pub(super) fn millicores(&self) -> u32 {
        self.millicores
    }

    /// The work done so far, in microseconds of a core.
    pub(super) fn busy_us(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.busy_us)
    }

    /// Works for this time of a core. Waits for a slot before each turn; calls that wait are served in order.
    pub(super) async fn work(&self, work: Duration) {
        let mut left = work.div_f64(self.speed);
        while !left.is_zero() {
            // Fails only after the semaphore is closed, which it never is.
            let Ok(_slot) = self.free.acquire().await else { return };
            let began = Instant::now();
            sleep(left.min(TURN)).await;
            let took = began.elapsed();
            self.busy_us.fetch_add((took.as_secs_f64() * self.speed * 1e6) as u64, Relaxed);
            left = left.saturating_sub(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn worker_slots_share_turns_and_count_work() {
        let slots = WorkerSlots::of(1.0);
        let began = Instant::now();
        let timed = async |ms| {
            slots.work(Duration::from_millis(ms)).await;
            began.elapsed().as_millis()
        };
        let (heavy, light) = tokio::join!(timed(100), timed(10));
        assert!((20..25).contains(&light), "a light call waits for one turn of a heavy one: {light} ms");
        assert!((110..120).contains(&heavy), "{heavy} ms");
        let busy = slots.busy_us().load(Relaxed);
        assert!((110_000..120_000).contains(&busy), "{busy}");
    }

    #[tokio::test(start_paused = true)]
    async fn fraction_of_core_is_slower_slot() {
        let (slots, began) = (WorkerSlots::of(0.5), Instant::now());
        slots.work(Duration::from_millis(10)).await;
        let (took, busy) = (began.elapsed().as_millis(), slots.busy_us().load(Relaxed));
        assert!((20..25).contains(&took) && (10_000..13_000).contains(&busy), "{took} ms, {busy} µs");
        assert_eq!(slots.millicores(), 500);
    }
}
