//! `fairmesh drain`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_model::{InstanceId, Invalid, ServiceName, spec::read_duration};
use fairmesh_wire::v1::{DrainRequest, InstanceRef};
use serde_json::json;

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output,
};

/// The exit code that says that callers were left behind.
const BEHIND: u8 = 4;

/// Arguments of `fairmesh drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    /// The instances to take out.
    #[arg(required = true)]
    instances: Vec<InstanceId>,
    /// How long to wait for callers to move, such as 30s.
    #[arg(long, default_value = "30s", value_parser = read_deadline, value_name = "DURATION")]
    deadline: Duration,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Reads a duration from a millisecond to a day.
fn read_deadline(text: &str) -> Result<Duration, Invalid> {
    let deadline = read_duration(text)?;
    if (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&deadline) {
        return Ok(deadline);
    }
    Err(Invalid::new("deadline", format!("'{text}' is out of range"), "write 1ms to 24h"))
}

/// Drains; the instances go on running, and finish what they have.
pub(crate) async fn run(args: DrainArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.reach).await?;
    let instance = |instance: &InstanceId| InstanceRef {
        service: args.service.to_string(),
        instance: instance.to_string(),
    };
    let request = DrainRequest {
        instances: args.instances.iter().map(instance).collect(),
        // At most a day, which fits.
        deadline_ms: u32::try_from(args.deadline.as_millis()).unwrap_or(u32::MAX),
    };
    let answer = connection.registry().drain(request).await?.into_inner();
    let text = if answer.callers_moved {
        "drained: every caller has moved\n".to_owned()
    } else {
        format!("draining, but these callers had not moved in time: {}\n", answer.behind.join(", "))
    };
    let item = json!({
        "revision": answer.revision.map(|revision| revision.number),
        "callersMoved": answer.callers_moved,
        "behind": answer.behind,
    });
    output::print_one(args.seen_as.format(), &item, &text)?;
    Ok(if answer.callers_moved { ExitCode::SUCCESS } else { ExitCode::from(BEHIND) })
}
