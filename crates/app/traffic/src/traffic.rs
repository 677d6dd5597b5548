//! `fairmesh traffic`: the planner of region tables.

mod adjustments;
mod calls;
mod classes;
mod graph;
mod hold;
mod optimizer;
mod status;
mod what_if;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{RecordKind, Region, ServiceName};
use fairmesh_wire::{handshake::Connection, v1};

/// Subcommands of `fairmesh traffic`.
#[derive(Debug, Subcommand)]
pub enum TrafficCommand {
    /// Show loads, calls and tables of the services that are planned for, and why tables are kept as they are.
    Status(StatusArgs),
    /// Show the calls that programs report, by calling and called service, class and regions.
    Calls(CallsArgs),
    /// Draw which calls are made for which: services and classes, calls for each call, sizes and times.
    Graph(graph::GraphArgs),
    /// Propose routes with traffic classes: by paths that proxies see, and by what their requests cost.
    Classes(classes::ClassesArgs),
    /// Explain the latest changes of a service's tables, one by one.
    Explain(ExplainArgs),
    /// Predict what a change would lead to, by the optimizer's model, beside the present: other policies, regions, distances or prices, more
    /// demand, a lost region. Nothing is changed.
    WhatIf(what_if::WhatIfArgs),
    /// Keep a service's tables as they are, until 'resume'.
    Hold(HoldArgs),
    /// Let the planner change a service's tables again.
    Resume(HoldArgs),
}

/// Arguments of `fairmesh traffic status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this service, as tenant/service [default: all that are planned for].
    service: Option<ServiceName>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `fairmesh traffic explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    /// Only changes for the callers of this region.
    #[arg(long)]
    region: Option<Region>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `fairmesh traffic calls`.
#[derive(Debug, Args)]
pub struct CallsArgs {
    /// Calls to this service, as tenant/service; programs begin to report them, for a minute [default: all whose calls are reported at
    /// present].
    service: Option<ServiceName>,
    /// Only calls of this service, as tenant/service.
    #[arg(long, value_name = "SERVICE")]
    caller: Option<ServiceName>,
    /// Print the calls again every 2 s, until it is interrupted.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `fairmesh traffic hold` and `resume`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the subcommand.
pub async fn run(command: TrafficCommand) -> Result<ExitCode, Failure> {
    match command {
        TrafficCommand::Status(args) => status::status(args).await,
        TrafficCommand::Calls(args) => calls::calls(args).await,
        TrafficCommand::Graph(args) => graph::graph(args).await,
        TrafficCommand::Classes(args) => classes::classes(args).await,
        TrafficCommand::Explain(args) => status::explain(args).await,
        TrafficCommand::WhatIf(args) => return what_if::what_if(args).await,
        TrafficCommand::Hold(args) => hold::hold(args).await,
        TrafficCommand::Resume(args) => hold::resume(args).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the planner's state of one service, or of all.
async fn read(
    connection: &Connection,
    service: Option<&ServiceName>,
) -> Result<Vec<v1::ServiceTraffic>, Failure> {
    let service = service.map(ToString::to_string).unwrap_or_default();
    let request = v1::TrafficStatusRequest { service };
    let v1::TrafficStatusResponse { services, left_out, without_trace_context } =
        connection.traffic_planner().status(request).await?.into_inner();
    warn_of_left_out(left_out);
    without_trace_context.iter().for_each(optimizer::warn_of_missing_context);
    Ok(services)
}

fn warn_of_left_out(left_out: u32) {
    if left_out > 0 {
        output::warn(format!(
            "reports have no room for {left_out} paths of calls or groups of servers, and nothing is planned for the services that \
             these are of: plan fewer services, or put more replicas between agents and the control plane"
        ));
    }
}

/// Reason why nothing is planned for a service: it does not exist, or its policy does not request a planner.
async fn why_not_planned(connection: &Connection, service: &ServiceName) -> Failure {
    match View::read(connection, &Scope::Service(service.clone()), &[RecordKind::Service, RecordKind::Policy])
        .await
    {
        Ok(view) => view.service(service).err().unwrap_or_else(|| not_planned(service)),
        Err(failure) => failure,
    }
}

fn not_planned(service: &ServiceName) -> Failure {
    Failure::failed_with(
        format!("no planner plans for {service}"),
        "write 'traffic: {planner: rings}' or 'traffic: {planner: optimizer}' in its policy (see docs/regions-planner.md)",
    )
}
