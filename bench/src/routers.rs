//! `bench/run routers`: a shared proxy that follows many services, each with a policy of two routes and one endpoint.
//!
//! Control plane, agent and proxy are processes as released. The endpoints of all services are a few sockets of this
//! process. They close a connection after each response, so that the proxy's memory is that of followed services rather
//! than connections.

mod calls;
mod mesh;

use std::{error::Error, path::Path, time::Duration};

use tokio::time::{Instant, sleep};

use clap::Args;

use crate::{Common, report::Report};
use calls::{Caller, Endpoints};
use mesh::Mesh;

/// Numbers of followed services; `--quick` leaves out the last.
const SIZES: [usize; 3] = [100, 5_000, 50_000];
/// Number of services whose first calls are made one after the other. The first calls of the rest are made all at once,
/// after memory has been read, because that many connections leave some memory behind.
const ONE_BY_ONE: usize = 1_000;
/// Maximum number of first calls at once.
const AT_ONCE: usize = 5_000;
const AT_ONCE_QUICK: usize = 100;
/// Concurrent first calls of the rest.
const IN_FLIGHT: usize = 32;
/// Number of policy changes whose time to effect is measured.
const CHANGES: usize = 100;
const CHANGES_QUICK: usize = 10;
/// Background calls per second during the changes.
const LOAD: u64 = 1_000;
/// Time until memory has settled after the first calls.
const REST: Duration = Duration::from_secs(3);

/// Goals.
const KB_PER_SERVICE: f64 = 8.0;
const FIRST_CALL_P50_MS: f64 = 1.0;
const APPLY_TO_EFFECT_MS: f64 = 20.0;

/// Options of `routers`.
#[derive(Debug, Args)]
pub(crate) struct RoutersArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Measure only this number of services [default: 100, 5,000 and, without --quick, 50,000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    services: Option<u32>,
}

/// What is measured of one number of services.
#[derive(Clone, Copy)]
struct Extent {
    services: usize,
    at_once: usize,
    changes: usize,
}

/// Results for one number of services.
struct Results {
    services: usize,
    /// Number of calls without a response from an endpoint.
    failed: usize,
    /// Memory per service of the proxy and of the agent, in KB.
    proxy_kb: f64,
    agent_kb: f64,
    /// Latency of first calls made one after the other, in milliseconds: p50 and p99.
    one_by_one: [f64; 2],
    at_once: [f64; 2],
    /// Number of first calls made at once, and total duration in milliseconds.
    together: (usize, f64),
    /// Time from `apply` to effect in milliseconds: p50 and p99.
    effect: [f64; 2],
}

/// Runs the benchmark.
pub(crate) fn run(args: &RoutersArgs) -> Result<Report, Box<dyn Error>> {
    calls::raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let sizes = match args.services {
        Some(services) => vec![services as usize],
        None if args.common.quick => SIZES[..2].to_vec(),
        None => SIZES.to_vec(),
    };
    let mut report = Report::new("routers");
    let mut last = None;
    let (at_once, changes) =
        if args.common.quick { (AT_ONCE_QUICK, CHANGES_QUICK) } else { (AT_ONCE, CHANGES) };
    for services in sizes {
        let dir = tempfile::tempdir()?;
        let extent = Extent { services, at_once: at_once.min(services), changes };
        let found = runtime.block_on(measure(dir.path(), extent))?;
        tell(&mut report, &found);
        last = Some(found);
    }
    if let Some(found) = last {
        let note =
            format!("KB of the proxy for each of {} services of two routes and one endpoint", found.services);
        report.figure("kb_per_service", found.proxy_kb, Some(KB_PER_SERVICE), note);
        let note = "ms, a first call after the other, the connection to the endpoint included";
        report.figure("first_call_p50_ms", found.one_by_one[0], Some(FIRST_CALL_P50_MS), note);
        let note =
            format!("ms from apply to the first call that sees it, under {LOAD} calls a second, the middle");
        report.figure("apply_to_effect_ms", found.effect[0], Some(APPLY_TO_EFFECT_MS), note);
    }
    Ok(report)
}

async fn measure(dir: &Path, extent: Extent) -> Result<Results, String> {
    let Extent { services, at_once, changes } = extent;
    let further = services..services + at_once;
    let endpoints = Endpoints::start().await.map_err(|e| format!("cannot listen: {e}"))?;
    let mesh = Mesh::start(dir).await?;
    let began = Instant::now();
    mesh.declare(further.end, &endpoints).await?;
    eprintln!("{services} services: declared in {:.1} s", began.elapsed().as_secs_f64());
    // One more service is called before, so that one-time allocations are not counted.
    let caller = Caller::new(mesh.proxy());
    mesh.declare_one(further.end, &endpoints).await?;
    caller.first(further.end).await?;
    sleep(REST).await;
    let (proxy, agent) = mesh.resident();

    let some = services.min(ONE_BY_ONE);
    let one_by_one = caller.one_by_one(0..some).await;
    let others = caller.in_flight(some..services, IN_FLIGHT).await;
    let again = caller.in_flight(0..services, IN_FLIGHT).await;
    sleep(REST).await;
    let grown = mesh.resident();
    let (together, began) = (further.len(), Instant::now());
    let at_once = caller.in_flight(further, together).await;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let kb = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1024.0 / services as f64;
    let effect = mesh.changes(services, changes, LOAD).await?;
    for why in [&one_by_one, &at_once, &others, &again].into_iter().filter_map(|calls| calls.why.as_ref()) {
        eprintln!("a call failed: {why}");
    }
    Ok(Results {
        services,
        failed: [&one_by_one, &at_once, &others, &again].iter().map(|calls| calls.failed).sum(),
        proxy_kb: kb(proxy, grown.0),
        agent_kb: kb(agent, grown.1),
        one_by_one: one_by_one.quantiles(),
        at_once: at_once.quantiles(),
        together: (together, took),
        effect: effect.quantiles(),
    })
}

fn tell(report: &mut Report, found: &Results) {
    let Results { services, failed, proxy_kb, agent_kb, .. } = *found;
    let note = "calls that no endpoint answered, of two to each service";
    report.figure(format!("failed_{services}"), failed as f64, Some(0.0), note);
    let note = format!("KB of the proxy for each service; of the agent {agent_kb:.1}");
    report.figure(format!("kb_{services}"), proxy_kb, None, note);
    let note = |[_, p99]: [f64; 2]| format!("ms; P99 {p99:.1}");
    report.figure(format!("first_call_{services}"), found.one_by_one[0], None, note(found.one_by_one));
    let (together, took) = found.together;
    let at_once = format!("{}; {together} first calls at once, all in {took:.0} ms", note(found.at_once));
    report.figure(format!("at_once_{services}"), found.at_once[0], None, at_once);
    report.figure(format!("effect_{services}"), found.effect[0], None, note(found.effect));
}
