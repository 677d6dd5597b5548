//! `bench/run react`: from a spike of load to new region tables in every router.
//!
//! Control plane and the agents of two regions are processes as they are released. The servers of both regions and the
//! routers, each a mesh of its own, are in this process, so that one clock times the spike and its effect. Every service
//! has one spike, so that none starts while the planner still returns the calls of the one before.

mod services;

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use fairmesh_calls::{Mesh, ServiceHandle};
use fairmesh_model::arith::mix64;
use fairmesh_wire::v1;
use http::Request;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    mesh_processes::{ControlPlane, start_agent},
    report::Report,
};
use services::{Service, declare, name};

/// Services, and so spikes; with `--quick` fewer.
const SPIKES: usize = 21;
const QUICK_SPIKES: usize = 7;
/// Programs that call every service: as many as the demo has, and more.
const ROUTERS: usize = 12;
/// How long the planner may take to hear both regions, and a table to reach the routers.
const HEARD: Duration = Duration::from_secs(60);
const EFFECT: Duration = Duration::from_secs(30);
/// How often routers are asked for their table.
const POLL: Duration = Duration::from_millis(5);
/// Goal: SLATE needs just under 3 s.
const SPIKE_TO_RULES_MS: f64 = 2000.0;

/// Where callers are, and where the excess goes.
const REGIONS: [&str; 2] = ["eu", "us"];

/// Measures; `quick` ends within a minute.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let found = runtime.block_on(measure(dir.path(), if quick { QUICK_SPIKES } else { SPIKES }))?;
    Ok(report(found))
}

/// What the spikes came to: milliseconds until the first and the last router had a new table, and failed calls.
#[derive(Default)]
struct Found {
    first: Vec<f64>,
    last: Vec<f64>,
    failed: u64,
    calls: u64,
}

async fn measure(dir: &Path, spikes: usize) -> Result<Found, String> {
    let control = ControlPlane::start(dir).await?;
    declare(&control, spikes).await?;
    let (_here, here) = start_agent(dir, &control, REGIONS[0], "here.sock").await?;
    let (_there, there) = start_agent(dir, &control, REGIONS[1], "there.sock").await?;
    let mut meshes = Vec::with_capacity(ROUTERS);
    for number in 0..ROUTERS {
        let mesh = Mesh::builder().agent(here.clone()).client_id(format!("react/{number}"));
        meshes.push(mesh.connect().await.map_err(|e| e.to_string())?);
    }
    let mut tasks = JoinSet::new();
    let mut services = Vec::new();
    for number in 0..spikes {
        let service = Arc::new(Service::start(number, [&here, &there]).await.map_err(|e| e.to_string())?);
        let handles = handles(&meshes, number)?;
        tasks.spawn(Arc::clone(&service).call_steadily(handles.clone()));
        tasks.spawn(Arc::clone(&service).report_load());
        services.push((service, handles));
    }
    is_planned(&control, spikes).await?;
    let mut found = Found::default();
    for (number, (service, handles)) in services.iter().enumerate() {
        // Not in step with the seconds of reports and plans.
        sleep(Duration::from_millis(mix64(number as u64) % 1000)).await;
        let (first, last) = spike(service, handles).await?;
        eprintln!("{}: first router after {first:.0} ms, last {last:.0} ms", name(number));
        found.first.push(first);
        found.last.push(last);
    }
    tasks.shutdown().await;
    for (service, _) in &services {
        let (calls, failed) = service.counts();
        found.calls += calls;
        found.failed += failed;
    }
    Ok(found)
}

fn handles(meshes: &[Mesh], number: usize) -> Result<Vec<ServiceHandle>, String> {
    meshes.iter().map(|mesh| mesh.service(name(number).as_str()).map_err(|e| e.to_string())).collect()
}

/// Waits until the planner has made a few plans for every service.
async fn is_planned(control: &ControlPlane, services: usize) -> Result<(), String> {
    let until = Instant::now() + HEARD;
    loop {
        let request = v1::TrafficStatusRequest { service: String::new() };
        let status = control.connection.traffic_planner().status(request).await;
        let status = status.map_err(|status| status.message().to_owned())?.into_inner().services;
        let planned = status.iter().filter(|one| one.refusal.is_empty() && one.planned_rounds >= 5).count();
        if planned == services {
            return Ok(());
        }
        if Instant::now() > until {
            let refusals: Vec<_> = status.into_iter().map(|one| one.refusal).collect();
            return Err(format!("{planned} of {services} services are planned for: {refusals:?}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Doubles the load, and asks every router until each divides its calls; back to the load before afterwards.
async fn spike(service: &Service, handles: &[ServiceHandle]) -> Result<(f64, f64), String> {
    let began = Instant::now();
    service.set_spike(true);
    let mut times = vec![None; handles.len()];
    while times.contains(&None) {
        if began.elapsed() > EFFECT {
            return Err(format!("no table has reached all routers {EFFECT:?} after a spike"));
        }
        for (handle, time) in handles.iter().zip(&mut times) {
            if time.is_none() && divides(handle).await? {
                *time = Some(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        sleep(POLL).await;
    }
    service.set_spike(false);
    let times: Vec<f64> = times.into_iter().flatten().collect();
    Ok((times.iter().copied().fold(f64::MAX, f64::min), times.iter().copied().fold(0.0, f64::max)))
}

/// Whether calls go to the other region by the table that this router follows.
async fn divides(handle: &ServiceHandle) -> Result<bool, String> {
    let explained = handle.explain(&Request::get("/").body(()).map_err(|e| e.to_string())?, 0).await;
    let steps = explained.map_err(|fault| fault.to_string())?.decisions;
    let mut steps = steps.iter().flat_map(|decision| &decision.explanation.steps);
    let share = format!("{} ", REGIONS[1]);
    Ok(steps.any(|step| step.title == "table" && step.detail.contains(&share)))
}

fn report(found: Found) -> Report {
    let mut report = Report::new("react");
    let Found { mut first, mut last, failed, calls } = found;
    first.sort_by(f64::total_cmp);
    last.sort_by(f64::total_cmp);
    let spread = |times: &[f64]| {
        let (least, most) = (times.first().copied(), times.last().copied());
        format!("{:.0} to {:.0}", least.unwrap_or_default(), most.unwrap_or_default())
    };
    let median = |times: &[f64]| times.get(times.len() / 2).copied().unwrap_or_default();
    let note = format!(
        "ms from twice the load to new tables in all of {ROUTERS} routers, the median of {} spikes; {}",
        last.len(),
        spread(&last)
    );
    report.figure("spike_to_rules_ms", median(&last), Some(SPIKE_TO_RULES_MS), note);
    let note = format!("ms to the first router; {}", spread(&first));
    report.figure("spike_to_first_ms", median(&first), None, note);
    report.figure("failed", failed as f64, Some(0.0), format!("of {calls} calls"));
    report
}
