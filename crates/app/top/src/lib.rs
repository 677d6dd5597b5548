//! `fairmesh top`: services, or pairs of caller and service, by rate, failures, latency, waste and egress.
//!
//! The control plane has the counts of the last hour; this crate groups them, and shows them in a terminal, as one table
//! (`--once`) or as JSON. What is shown is a function of a `Screen`, which keys and snapshots change: tests
//! need no terminal.
//!
//! The rows are grouped here and not by the control plane, so that sorting, filtering and drilling down ask for nothing. The
//! rejected option, one request for each view, would show two views of different moments.

mod arguments;
mod columns;
mod groups;
mod keys;
mod listing;
mod render;
mod screen;
mod session;
mod snapshot;
mod source;

use std::{io::IsTerminal as _, process::ExitCode};

pub use arguments::TopArgs;
use fairmesh_console::failure::Failure;
use source::Source;

/// Shows calls until the user ends it; prints one table where standard output is no terminal.
///
/// # Errors
/// When the control plane is not reached, or refuses.
pub async fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    let mut source = Source::connect(&args).await?;
    let snapshot = source.read().await?;
    if args.once || !args.output.is_table() || !std::io::stdout().is_terminal() {
        listing::print(&args, &snapshot)?;
    } else {
        session::run(&args, source, snapshot).await?;
    }
    Ok(ExitCode::SUCCESS)
}
