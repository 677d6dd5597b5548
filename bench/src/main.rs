//! Benchmarks of Fairmesh: one command each, which measures candidate and peer side by side in one run, prints a table
//! and writes one JSON object.
//!
//! They are one program and not `cargo bench` targets, since they start processes, alternate between candidates and
//! judge ratios; a harness that times closures would measure the noise of a shared machine.

mod balance;
mod call_reports;
mod kernel;
mod library;
mod load;
mod mesh_processes;
mod meter;
mod pick;
mod planner;
mod proxy;
mod ratio;
mod react;
mod remote;
mod report;
mod rib;
mod role_process;
mod roles;
mod routers;
mod shards;
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
    /// Deciding and finishing one call: time and allocations, by size of fleet.
    Pick(Common),
    /// One call by name against one with the address written down: CPU and latency, HTTP/1.1 and gRPC.
    Library(Common),
    /// How evenly servers are used, simulated and real ones, against least pending.
    Balance(balance::BalanceArgs),
    /// From a write to its delivery at all subscribers: a tree of replicas against etcd.
    Rib(rib::RibArgs),
    /// A round of the planner over a thousand services, by what has changed: time and memory.
    Planner(Common),
    /// Plans of whole call graphs: time by size, beside SLATE's, and the gap to the optimum.
    Te(Common),
    /// Simulated applications under the optimizer: latency and egress beside Waterfall, servers for the loss of a region.
    TeApp(Common),
    /// A request through the proxy: CPU, throughput and latency beside Envoy, HAProxy and nginx.
    Proxy(proxy::ProxyArgs),
    /// A request of a program in a cgroup, sent by the kernel: CPU and latency beside the sidecar and no mesh.
    Kernel(kernel::KernelArgs),
    /// From a spike of load to new region tables in every router.
    React(Common),
    /// Rare calls to another region, with a connection each and through a shared proxy.
    Remote(Common),
    /// Reports of calls, which planned services ask for: CPU with them over that without.
    CallReports(Common),
    /// A shared proxy that follows up to 50,000 services: memory of each, first calls, from apply to effect.
    Routers(routers::RoutersArgs),
    /// A map of 1.5 million shards at twenty programs of one machine: memory, bytes of a move, look-ups.
    Shards(Common),
    /// Mutual TLS: CPU of calls and handshakes beside a hand-written stack and Envoy, and a key server that is far away.
    Tls(Common),
    /// Call through a proxy over every protocol, for profile-guided optimisation (scripts/release.sh).
    #[command(hide = true)]
    PgoWorkload(proxy::Ours),
    /// One process of a benchmark.
    #[command(hide = true)]
    Role(roles::RoleArgs),
}

/// What every benchmark takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Fewer and shorter rounds: under a minute.
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
        Bench::TeApp(common) => te_app::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Library(common) => library::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::CallReports(common) => {
            call_reports::run(common.quick).and_then(|report| finish(&report, &common))
        }
        Bench::Rib(args) => rib::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Proxy(args) => proxy::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Kernel(args) => kernel::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::React(common) => react::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Remote(common) => remote::run(common.quick).and_then(|report| finish(&report, &common)),
        Bench::Routers(args) => routers::run(&args).and_then(|report| finish(&report, &args.common)),
        Bench::Shards(common) => shards::run(common.quick).and_then(|report| finish(&report, &common)),
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
