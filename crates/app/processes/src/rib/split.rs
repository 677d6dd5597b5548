//! `fairmesh rib split`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_control::EtcdAddress;
use fairmesh_model::ServiceName;
use fairmesh_wire::v1::{SplitStoreRequest, split_store_progress::Event};
use indicatif::ProgressBar;
use serde::Serialize;

/// Arguments of `fairmesh rib split`.
#[derive(Debug, Args)]
pub struct SplitArgs {
    /// The target cluster and the root of its keys: an empty one, or an existing partition of the store. It is reached
    /// with the certificates and the login of the store.
    #[arg(long, value_name = "ADDRESS")]
    into: EtcdAddress,
    /// Services to move, separated by commas [default: half of the range of services with most bytes].
    #[arg(long, value_name = "SERVICE", value_delimiter = ',')]
    services: Vec<ServiceName>,
    /// Only report what would be moved.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Result of a move of services.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    from: u32,
    to: u32,
    services: u64,
    records: u64,
    bytes: u64,
    dry_run: bool,
    /// Number of records that were equal in both partitions before the move.
    verified: u64,
    /// Time for which writes to the source partition were paused, in milliseconds.
    held_ms: u64,
    /// Version of the partition map.
    version: u64,
}

pub(super) async fn run(args: SplitArgs) -> Result<ExitCode, Failure> {
    let request = SplitStoreRequest {
        into: args.into.to_string(),
        services: args.services.iter().map(ToString::to_string).collect(),
        dry_run: args.dry_run,
    };
    let connection = connect::connect(&args.target).await?;
    let mut events = connection.admin().split_store(request).await?.into_inner();
    let progress = ProgressBar::new_spinner();
    let mut moved = Moved { dry_run: args.dry_run, ..Moved::default() };
    while let Some(happened) = events.message().await? {
        moved.take(happened.event, &progress);
    }
    progress.finish_and_clear();
    output::print_one(args.output_args.format(), &moved, &moved.text())?;
    Ok(ExitCode::SUCCESS)
}

impl Moved {
    fn take(&mut self, event: Option<Event>, progress: &ProgressBar) {
        match event {
            Some(Event::Plan(plan)) => {
                (self.from, self.to) = (plan.from, plan.to);
                (self.services, self.records, self.bytes) = (plan.services, plan.records, plan.bytes);
            }
            Some(Event::Copied(records)) => {
                progress.set_message(format!("{records} of {} records copied", self.records));
            }
            Some(Event::Verified(records)) => {
                self.verified = records;
                progress.set_message(format!("{records} records verified"));
            }
            Some(Event::Moved(moved)) => {
                (self.version, self.held_ms) = (moved.version, moved.held_ms);
                progress.set_message("moved; cleaning up the source");
            }
            Some(Event::Done(_)) | None => {}
        }
        progress.tick();
    }

    fn text(&self) -> String {
        let Self { from, to, services, records, bytes, held_ms, .. } = self;
        let what = format!("{services} services with {records} records ({bytes} bytes)");
        match self.dry_run {
            true => format!("{what} would move from partition {from} to {to}\n"),
            false => format!(
                "{what} moved from partition {from} to {to}; writes to {from} were paused for {held_ms} ms\n"
            ),
        }
    }
}
