//! `fairmesh top`: services, or pairs of caller and service, by rate, failures, latency, waste and egress.
//!
//! The control plane has the counts of the last hour. This crate groups them and shows them in a terminal, as one table
//! (`--once`) or as JSON. The display is a function of a `Screen`, which keys and snapshots change, so tests need no
//! terminal.
//!
//! Rows are grouped here rather than by the control plane, so that sorting, filtering and drilling down need no
//! request. Rejected: one request per view, where two views would show different points in time.

mod arguments;
mod columns;
mod groups;
mod key_bindings;
mod plain_output;
mod screen_drawing;
mod screen_state;
mod snapshot;
mod snapshot_source;
mod terminal;

use std::{io::IsTerminal as _, process::ExitCode};

pub use arguments::TopArgs;
use fairmesh_console::failure::Failure;
use snapshot_source::Source;

/// Shows calls until the user quits. Prints one table if standard output is no terminal.
///
/// # Errors
/// When the control plane is unreachable or refuses the request.
pub async fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    let mut source = Source::connect(&args).await?;
    let snapshot = source.read().await?;
    if args.once || !args.output.is_table() || !std::io::stdout().is_terminal() {
        plain_output::print(&args, &snapshot)?;
    } else {
        terminal::run(&args, source, snapshot).await?;
    }
    Ok(ExitCode::SUCCESS)
}
