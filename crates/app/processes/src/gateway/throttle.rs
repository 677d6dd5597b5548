//! `fairmesh gateway throttle`: an operator limits the new connections of a service.

use clap::Args;
use fairmesh_console::{failure::Failure, output};
use fairmesh_model::{ConnectionLimit, Placement};
use serde_json::json;

use super::placements::{ChangeArgs, now_ms};

/// Arguments of `fairmesh gateway throttle`.
#[derive(Debug, Args)]
pub(super) struct ThrottleArgs {
    /// New connections a second to its virtual address, at each replica; further ones are closed. It stays until `--off`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "off")]
    connections: Option<u32>,
    /// End the limit, whoever set it.
    #[arg(long, conflicts_with = "connections")]
    off: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Writes the limit into the placement of the service.
pub(super) async fn run(args: ThrottleArgs) -> Result<(), Failure> {
    let change = &args.change;
    let placements = change.read().await?;
    let placed = placements.placed(&change.service)?;
    if args.off && placed.connection_limit.is_none() {
        let hint = "`fairmesh gateway status` shows the limits in force";
        return Err(Failure::refused(format!("{} has no limit of connections", change.service), hint));
    }
    let limit = args.connections.map(|per_second| ConnectionLimit {
        per_second,
        reason: change.reason(),
        at_ms: now_ms(),
        is_automatic: false,
        first_per_second: per_second,
    });
    change.write(&placements, Placement { connection_limit: limit, ..placed }).await?;
    let (service, is) = (&change.service, change.verb());
    let text = match args.connections {
        Some(limit) => format!(
            "{service} {is} limited to {limit} new connections a second at each replica; `fairmesh gateway throttle {service} --off` ends that\n"
        ),
        None => format!("{service} {is} without a limit of new connections\n"),
    };
    let item = json!({
        "service": service.to_string(),
        "connectionsPerSecond": args.connections,
        "dryRun": change.dry_run,
    });
    output::print_one(change.output.format(), &item, &text)
}
