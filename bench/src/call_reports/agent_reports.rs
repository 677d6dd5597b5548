//! The CPU of an agent that adds up the counts of many programs.

use std::time::Duration;

use fairmesh_wire::{
    handshake::{self, Connection},
    v1,
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::mesh_processes::{ControlPlane, start_agent};

/// Programs of the machine, and pairs of services of each: no two programs have a pair in common.
const PROGRAMS: u32 = 100;
const PAIRS: u32 = 50;
/// Interval at which a program reports while nobody looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Calls of a pair in each report.
const CALLS: u64 = 50;

/// Share of a core that the agent uses, in percent, over a number of reports of each program.
pub(super) async fn cpu_percent(rounds: u64) -> Result<f64, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let control = ControlPlane::start(dir.path()).await?;
    let service = |number| json!({ "kind": "Service", "name": format!("bench/service-{number}") });
    control.apply(&(0..PAIRS).map(service).collect::<Vec<_>>()).await?;
    let (agent, at) = start_agent(dir.path(), &control, "bench", "agent.sock").await?;
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        let connected = handshake::connect(&Default::default(), &at, "bench").await;
        programs.push(connected.map_err(|e| e.to_string())?);
    }
    // The first report of a program makes its pairs known.
    report_all(&programs, 1).await?;
    let (began, before) = (Instant::now(), agent.cpu_ns());
    for number in 2..rounds + 2 {
        report_all(&programs, number).await?;
    }
    Ok((agent.cpu_ns() - before) as f64 / began.elapsed().as_nanos() as f64 * 100.0)
}

/// Has each program report once, spread over the interval.
async fn report_all(programs: &[Connection], number: u64) -> Result<(), String> {
    let mut ticks = interval(INTERVAL / PROGRAMS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for (program, connection) in (1..).zip(programs) {
        ticks.tick().await;
        let reported = connection.signals().report(report(program, number)).await;
        reported.map_err(|status| format!("the agent refuses a report: {}", status.message()))?;
    }
    Ok(())
}

fn report(program: u64, number: u64) -> v1::ReportSignalsRequest {
    let row = |pair| v1::CountedCalls {
        caller: format!("bench/caller-{program}"),
        service: format!("bench/service-{pair}"),
        from: "bench".into(),
        to: "bench".into(),
        calls: CALLS,
        time_us: CALLS * 900,
        request_bytes: CALLS * 600,
        response_bytes: CALLS * 600,
        responses: vec![0, CALLS],
        latency: vec![0, 0, 0, CALLS / 2, CALLS / 2],
        ..v1::CountedCalls::default()
    };
    let interval = v1::CountedInterval {
        span_ms: INTERVAL.as_millis() as u32,
        calls: (0..PAIRS).map(row).collect(),
        ..v1::CountedInterval::default()
    };
    let counts = v1::CountReport { reporter: program, number, intervals: vec![interval], left_out: 0 };
    v1::ReportSignalsRequest { counts: Some(counts), ..v1::ReportSignalsRequest::default() }
}
