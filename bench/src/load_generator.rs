//! Load generators, the same for both sides: closed loop (as fast as possible) and open loop (fixed rate).

use std::{future::Future, time::Duration};

use hdrhistogram::Histogram;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use crate::process_usage;

/// Maximum number of concurrent calls in an open loop. After a stall of the machine overdue calls wait, and their wait
/// counts as latency. Without a limit each would open a connection, until the process has no file descriptors left.
const MOST_UNDER_WAY: usize = 512;

/// A checked call: the response must be the payload of the request.
pub(crate) trait Call: Clone + Send + Sync + 'static {
    /// Makes the call.
    fn call(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Result of a closed-loop run.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Run {
    /// Calls with a response.
    pub calls: u64,
    /// Wall-clock duration of the run, in nanoseconds.
    pub wall_ns: u64,
    /// User and system time of this process.
    pub cpu_ns: u64,
}

/// Histogram of call latencies: pairs of nanoseconds and number of calls.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Latencies(pub Vec<(u64, u64)>);

/// Closed loop: `tasks` callers, each of which calls again as soon as it has the response.
pub(crate) async fn closed<C: Call>(call: &C, tasks: usize, length: Duration) -> Result<Run, String> {
    let (start, cpu) = (Instant::now(), process_usage::own_cpu());
    let until = start + length;
    let mut callers: JoinSet<Result<u64, String>> = JoinSet::new();
    for _ in 0..tasks {
        let call = call.clone();
        callers.spawn(async move {
            let mut calls = 0;
            while Instant::now() < until {
                call.call().await?;
                calls += 1;
            }
            Ok(calls)
        });
    }
    let mut calls = 0;
    while let Some(made) = callers.join_next().await {
        calls += made.map_err(|e| e.to_string())??;
    }
    let cpu_ns = nanoseconds(process_usage::own_cpu() - cpu);
    Ok(Run { calls, wall_ns: nanoseconds(start.elapsed()), cpu_ns })
}

/// Open loop: `rate` calls per second. Latency is measured from the time at which a call is due, so that a stall cannot
/// hide.
pub(crate) async fn open<C: Call>(call: &C, rate: u64, length: Duration) -> Result<Latencies, String> {
    let start = Instant::now();
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
        // The timer has millisecond resolution: calls due within one millisecond start together, on both sides alike.
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
    let counted = all.iter_recorded().map(|seen| (seen.value_iterated_to(), seen.count_at_value()));
    Ok(Latencies(counted.collect()))
}

/// Lets each caller call independently, in turns that are spread evenly, at `rate` calls per second in total. Only
/// whole turns are made.
pub(crate) async fn paced<C: Call>(callers: &[C], rate: u64, length: Duration) -> Result<Run, String> {
    let (start, cpu) = (Instant::now(), process_usage::own_cpu());
    let count = callers.len() as u64;
    let turn = Duration::from_nanos(count * 1_000_000_000 / rate.max(1));
    let turns = (nanoseconds(length) / nanoseconds(turn).max(1)).max(1);
    let mut running: JoinSet<Result<(), String>> = JoinSet::new();
    for (at, call) in callers.iter().cloned().enumerate() {
        let first = start + Duration::from_nanos(at as u64 * 1_000_000_000 / rate.max(1));
        running.spawn(async move {
            let mut due = first;
            for _ in 0..turns {
                tokio::time::sleep_until(due).await;
                call.call().await?;
                due += turn;
            }
            Ok(())
        });
    }
    while let Some(made) = running.join_next().await {
        made.map_err(|e| e.to_string())??;
    }
    let cpu_ns = nanoseconds(process_usage::own_cpu() - cpu);
    Ok(Run { calls: turns * count, wall_ns: nanoseconds(start.elapsed()), cpu_ns })
}

/// Summary of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Calls with a response.
    pub(crate) calls: u64,
    /// 50th percentile.
    pub(crate) p50: u64,
    /// 99th percentile.
    pub(crate) p99: u64,
}

impl Seen {
    /// Summarises the latencies of one run.
    pub(crate) fn of(run: &Latencies) -> Self {
        let mut all = histogram();
        for &(latency, count) in &run.0 {
            all.saturating_record_n(latency, count);
        }
        Self { calls: all.len(), p50: all.value_at_quantile(0.5), p99: all.value_at_quantile(0.99) }
    }
}

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    // Proof: 1 µs to one minute with three digits are valid bounds.
    #[allow(clippy::unwrap_used)]
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).unwrap()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
