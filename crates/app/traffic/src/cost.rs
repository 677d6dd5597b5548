//! `fairmesh cost`: what the traffic of services costs, and whose calls a service works for.

mod cpu_attribution;
mod egress;

use std::{process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    failure::Failure,
};
use fairmesh_model::{CpuBy, ServiceName, Tenant, spec::read_duration};

/// Arguments of `fairmesh cost`.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// The cost of bytes between regions, by the prices of the topology.
    #[arg(long)]
    egress: bool,
    /// Only calls from and to this service, as tenant/service [default: all]; with --by caller or origin, the service
    /// whose CPU is attributed.
    #[arg(conflicts_with = "tenant")]
    service: Option<ServiceName>,
    /// Only calls from and to services of this tenant.
    #[arg(long, requires = "egress")]
    tenant: Option<Tenant>,
    /// What to sum up [default: pair]. Caller and origin attribute the service's CPU to the calls that were in flight
    /// while it was used.
    #[arg(long, value_enum)]
    by: Option<By>,
    /// The time up to now that is added up, at most 1h.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = window)]
    window: Duration,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The times that call reports cover: control planes keep them for an hour.
fn window(text: &str) -> Result<Duration, String> {
    let window = read_duration(text).map_err(|problem| problem.to_string())?;
    match (Duration::from_secs(10)..=Duration::from_secs(3_600)).contains(&window) {
        true => Ok(window),
        false => Err("write a duration from 10s to 1h".to_owned()),
    }
}

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Bytes of calls of a service to another, between two regions and their zones.
    Pair,
    /// Bytes of calls to a service.
    Service,
    /// Bytes of calls between two regions.
    Region,
    /// CPU by the calling service.
    Caller,
    /// CPU by the first service of the chain of calls.
    Origin,
}

/// Prints the egress cost, or the attribution of CPU.
pub async fn run(args: CostArgs) -> Result<ExitCode, Failure> {
    let by = match (args.by, args.egress) {
        (Some(By::Caller), false) => CpuBy::Caller,
        (Some(By::Origin), false) => CpuBy::Origin,
        (Some(By::Caller | By::Origin), true) => {
            return Err(Failure::refused(
                "bytes between regions are not divided by caller or origin",
                "leave --egress out, or write --by pair",
            ));
        }
        (None | Some(By::Pair), true) => return egress::run(&args, egress::By::Pair).await,
        (Some(By::Service), true) => return egress::run(&args, egress::By::Service).await,
        (Some(By::Region), true) => return egress::run(&args, egress::By::Region).await,
        (_, false) => {
            return Err(Failure::refused(
                "it is not said which cost is meant",
                "write --egress, or SERVICE --by caller",
            ));
        }
    };
    let Some(service) = &args.service else {
        return Err(Failure::refused("CPU is divided of one service", "write SERVICE --by caller"));
    };
    cpu_attribution::run(&args, service, by).await
}

/// Returns the part of the window for which the control plane has history.
fn known_window(args: &CostArgs, history_ms: u64) -> Duration {
    args.window.min(Duration::from_secs(3_600)).min(Duration::from_millis(history_ms))
}
