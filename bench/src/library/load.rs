//! The two kinds of load, the same for both sides: as fast as it goes, and at a fixed rate.

use std::{future::Future, time::Duration};

use hdrhistogram::Histogram;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::meter;

/// Calls under way at a time in an open loop. After a stall of the machine what is overdue waits here, and its time counts,
/// rather than open a connection a call until the process has no file descriptors left.
const MOST_UNDER_WAY: usize = 512;

/// One call, checked: the answer must be the payload that was sent.
pub(crate) trait Call: Clone + Send + Sync + 'static {
    /// Makes it.
    fn call(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// What a run saw. Latencies are in nanoseconds.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Run {
    /// Calls that were answered.
    pub calls: u64,
    /// How long they took together, on the wall clock.
    pub wall_ns: u64,
    /// User and system time of this process.
    pub cpu_ns: u64,
    /// Half of the calls were faster.
    pub p50_ns: u64,
    /// All but one in a hundred were faster.
    pub p99_ns: u64,
}

/// `tasks` callers, each of which calls again as soon as it was answered.
pub(crate) async fn closed<C: Call>(call: &C, tasks: usize, length: Duration) -> Result<Run, String> {
    let (start, cpu) = (Instant::now(), meter::own_cpu());
    let until = start + length;
    let mut callers = JoinSet::new();
    for _ in 0..tasks {
        let call = call.clone();
        callers.spawn(async move {
            let mut seen = histogram();
            while Instant::now() < until {
                let begun = Instant::now();
                call.call().await?;
                seen.saturating_record(nanoseconds(begun.elapsed()));
            }
            Ok(seen)
        });
    }
    gather(callers, start, cpu).await
}

/// `rate` calls a second, each begun when it is due and measured from then, so that a stall cannot hide.
pub(crate) async fn open<C: Call>(call: &C, rate: u64, length: Duration) -> Result<Run, String> {
    let (start, cpu) = (Instant::now(), meter::own_cpu());
    let mut callers: JoinSet<Result<u64, String>> = JoinSet::new();
    let mut all = histogram();
    let mut take = |seen: Result<Result<u64, String>, JoinError>| {
        let latency = seen.map_err(|e| e.to_string())??;
        all.saturating_record(latency);
        Ok::<_, String>(())
    };
    let calls = rate * nanoseconds(length) / 1_000_000_000;
    for number in 0..calls {
        let due = start + Duration::from_nanos(number * 1_000_000_000 / rate.max(1));
        // The timer's grain is a millisecond: calls due within it begin together, on both sides alike.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        if callers.len() == MOST_UNDER_WAY
            && let Some(seen) = callers.join_next().await
        {
            take(seen)?;
        }
        let call = call.clone();
        callers.spawn(async move {
            call.call().await?;
            Ok(nanoseconds(due.elapsed()))
        });
    }
    while let Some(seen) = callers.join_next().await {
        take(seen)?;
    }
    Ok(summary(&all, start, cpu))
}

async fn gather(
    mut callers: JoinSet<Result<Histogram<u64>, String>>,
    start: Instant,
    cpu: Duration,
) -> Result<Run, String> {
    let mut all = histogram();
    while let Some(seen) = callers.join_next().await {
        let seen = seen.map_err(|e| e.to_string())??;
        all.add(seen).map_err(|e| e.to_string())?;
    }
    Ok(summary(&all, start, cpu))
}

fn summary(all: &Histogram<u64>, start: Instant, cpu: Duration) -> Run {
    Run {
        calls: all.len(),
        wall_ns: nanoseconds(start.elapsed()),
        cpu_ns: nanoseconds(meter::own_cpu() - cpu),
        p50_ns: all.value_at_quantile(0.5),
        p99_ns: all.value_at_quantile(0.99),
    }
}

fn histogram() -> Histogram<u64> {
    // Proof: 1 µs to a minute with three digits are valid bounds.
    #[allow(clippy::unwrap_used)]
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).unwrap()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
