//! Benchmarks of Fairmesh. Each command measures candidate and peer side by side in one run, prints a table and writes
//! one JSON object.
//!
//! This is one program rather than `cargo bench` targets, because the benchmarks start processes, alternate between
//! candidates and judge ratios. A harness that times closures would measure the noise of a shared machine.

mod balance;
mod call_reports;
mod cross_region_calls;
mod gateway;
mod kernel;
mod library;
mod load_generator;
mod mesh_processes;
mod paired_ratio;
mod pick;
mod planner;
mod process_usage;
mod proxy;
mod report;
mod rib;
mod role_process;
mod roles;
mod routers;
mod shards;
mod spike_reaction;
mod te;
mod te_app;
mod tls;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use report::Report;

/// Measures Fairmesh against its goals.
#[derive(Debug, Parser)]
#[command(name = "fairmesh-bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Cost of deciding and finishing one call: time and allocations by fleet size.
    Pick(Common),
    /// A call by service name against a hard-coded address: CPU and latency, HTTP/1.1 and gRPC.
    Library(Common),
    /// Utilisation of simulated and real servers against least pending.
    Balance(balance::BalanceArgs),
    /// From a write to its delivery at all subscribers: a tree of replicas against etcd.
    Rib(rib::RibArgs),
    /// A planner round over a thousand services: time and memory, by what has changed.
    Planner(Common),
    /// Plans of whole call graphs: time by size against SLATE, and the gap to the optimum.
    Te(Common),
    /// Applications under the optimizer against Waterfall, simulated or as processes: latency, egress, and servers for
    /// the loss of a region.
    TeApp(te_app::TeAppArgs),
    /// A request through the proxy against Envoy, HAProxy and nginx: CPU, throughput and latency.
    Proxy(proxy::ProxyArgs),
    /// A request sent by the kernel against the sidecar and no mesh: CPU and latency.
    Kernel(kernel::KernelArgs),
    /// Time from a load spike to new region tables in every router.
    React(Common),
    /// Rare calls to another region: a connection each against a shared proxy.
    Remote(Common),
    /// CPU of call reports, which services with a planner request.
    CallReports(Common),
    /// A shared proxy that follows up to 50,000 services: memory per service, first calls, time from apply to effect.
    Routers(routers::RoutersArgs),
    /// A map of 1.5 million shards and twenty programs on one machine: memory, bytes per move, look-ups.
    Shards(Common),
    /// Mutual TLS against a hand-written stack and Envoy: CPU of calls and handshakes, and a remote key server.
    Tls(Common),
    /// A gateway and two nodes against an Envoy sidecar for each of thirty pods: CPU, latency, memory by route.
    Gateway(Common),
    /// Call through a proxy with every protocol, for profile-guided optimisation (scripts/release.sh).
    #[command(hide = true)]
    PgoWorkload(proxy::Ours),
    /// Run one process of a benchmark.
    #[command(hide = true)]
    Role(roles::RoleArgs),
}

/// Options of every benchmark.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Fewer and shorter rounds: ends within a minute.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().bench {
        Bench::Pick(common) => pick::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Planner(common) => planner::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Te(common) => te::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::TeApp(args) => te_app::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Library(common) => library::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::CallReports(common) => {
            call_reports::run(common.quick).and_then(|report| finish(&report, &common))
        }
        Bench::Rib(args) => rib::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Proxy(args) => proxy::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Kernel(args) => kernel::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::React(common) => spike_reaction::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Remote(common) => {
            cross_region_calls::run(common.quick).and_then(|report| finish(&report, &common))
        }
        Bench::Routers(args) => routers::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Shards(common) => shards::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Gateway(common) => gateway::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Tls(common) => tls::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Balance(args) => balance::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::PgoWorkload(ours) => proxy::run_pgo_workload(&ours),
        Bench::Role(args) => roles::run_role(args).map_err(|error| error as Box<dyn std::error::Error>),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fairmesh-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the table and writes the JSON object.
fn finish(report: &Report, common: &Common) -> Result<(), Box<dyn std::error::Error>> {
    println!("{report}");
    if let Some(path) = &common.json {
        report.write_json(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    report.complete().map_err(Into::into)
}
