//! `fairmesh rib status`.

mod report;
mod tree_walk;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_wire::handshake::Connection;

/// Arguments of `fairmesh rib status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Grouping of lines.
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Number of lines to print, furthest behind first; 0 prints all.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Grouping of the table.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum By {
    /// Every watcher: replicas, agents, and programs without an agent.
    #[default]
    Router,
    /// Every server: the control plane and replicas.
    Replica,
    /// The watchers of each region.
    Region,
}

/// Returns the agents and replicas that follow this control plane, directly or through any number of layers, as kind,
/// name and release.
pub async fn followers(
    connection: Connection,
) -> Result<Vec<(&'static str, String, Option<String>)>, Failure> {
    let tree = tree_walk::walk(connection).await?;
    let known = tree.watchers.into_iter().filter(|watcher| watcher.kind != "program");
    Ok(known.map(|watcher| (watcher.kind, watcher.name, watcher.version)).collect())
}

pub(super) async fn run(args: StatusArgs) -> Result<ExitCode, Failure> {
    let tree = tree_walk::walk(connect::connect(&args.target).await?).await?;
    let text = report::text(&tree, args.by, args.limit);
    output::print_one(args.output_args.format(), &tree, &text)?;
    Ok(ExitCode::SUCCESS)
}
