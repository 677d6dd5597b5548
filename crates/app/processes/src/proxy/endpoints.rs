//! `fairmesh proxy endpoints`: the endpoints of a service as one proxy sees them.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::OutputArgs,
    failure::Failure,
    output::Listing,
    view_reader::{age_of, instant},
};
use fairmesh_model::{ServiceName, spec::write_duration};
use serde_json::Value;

use super::admin_page::{AdminArgs, page};

/// Arguments of `fairmesh proxy endpoints`.
#[derive(Debug, Args)]
pub(super) struct EndpointsArgs {
    /// A service that was called through the proxy, as tenant/service.
    service: ServiceName,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn run(args: EndpointsArgs) -> Result<ExitCode, Failure> {
    let rows = page(args.admin.address, &format!("/services/{}/endpoints", args.service)).await?;
    let mut listing =
        Listing::new(&["INSTANCE", "ADDRESS", "REGION", "STATE", "SINCE", "IN FLIGHT", "USED", "WHY"]);
    for row in rows.as_array().into_iter().flatten() {
        listing.add(cells(row), row.clone());
    }
    listing.why_empty = Some(format!("the proxy knows no endpoints of {}", args.service));
    listing.print(args.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

fn cells(row: &Value) -> Vec<String> {
    let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let ago = row["ejectedSeconds"].as_f64().map(Duration::from_secs_f64);
    let since = match (ago, row["unhealthySinceMs"].as_u64()) {
        (Some(ago), _) => instant(now_ms().saturating_sub(ago.as_millis() as u64)),
        (None, Some(since)) => instant(since),
        (None, None) => String::new(),
    };
    let returns = row["returnsInSeconds"].as_f64().map(|seconds| {
        let seconds = Duration::from_secs(seconds.ceil() as u64);
        format!("; next attempt in {}", write_duration(seconds))
    });
    let used = match (row["nearest"].as_bool(), row["inSubset"].as_bool()) {
        (Some(true), _) => "nearest",
        (_, Some(true)) => "by key, or when nearer ones fail",
        _ => "not in its subset",
    };
    vec![
        text("instance"),
        text("address"),
        text("region"),
        text("state"),
        since,
        format!("{}", row["inFlight"]),
        used.to_owned(),
        text("reason") + &returns.unwrap_or_default(),
    ]
}

/// The wall clock, in milliseconds since 1970.
fn now_ms() -> u64 {
    u64::try_from(age_of(0).as_millis()).unwrap_or(u64::MAX)
}
