//! `fairmesh rib status`.

mod report;
mod walk;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output,
};

/// Arguments of `fairmesh rib status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// What a line is about.
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// How many lines to print, of those that are furthest behind; 0 prints all.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// What a line of the table is about.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum By {
    /// Everybody who watches: replicas, agents, and programs without one.
    #[default]
    Router,
    /// Everybody who serves: the control plane and replicas.
    Replica,
    /// All watchers of a region together.
    Region,
}

pub(super) async fn run(args: StatusArgs) -> Result<ExitCode, Failure> {
    let tree = walk::walk(connect::connect(&args.reach).await?).await?;
    let text = report::text(&tree, args.by, args.limit);
    output::print_one(args.seen_as.format(), &tree, &text)?;
    Ok(ExitCode::SUCCESS)
}
