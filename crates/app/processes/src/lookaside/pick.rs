//! `fairmesh lookaside pick`: the request of a caller in any language.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::OutputArgs,
    connect::transport_to,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_model::{Role, ServiceName, ShardKey};
use fairmesh_wire::{
    lookaside::v1::{PickRequest, PickResponse, lookaside_client::LookasideClient},
    transport::{Address, connect_channel},
};
use serde_json::json;

/// Arguments of `fairmesh lookaside pick`.
#[derive(Debug, Args)]
pub(super) struct PickArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    /// The key of the calls, decimal or 0x…
    #[arg(long, allow_negative_numbers = true)]
    key: Option<ShardKey>,
    /// The required role of the replica.
    #[arg(long)]
    role: Option<Role>,
    /// Number of distinct endpoints.
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N")]
    endpoints: u32,
    /// The lookaside: host:port or unix:/path.
    #[arg(long, env = "FAIRMESH_LOOKASIDE", default_value = "127.0.0.1:7420", value_name = "ADDRESS")]
    at: Address,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn run(args: PickArgs) -> Result<ExitCode, Failure> {
    let channel = connect_channel(&transport_to(&args.at).await, &args.at).await.map_err(|_| {
        let hint =
            "start it with 'fairmesh lookaside', or give another with --at ADDRESS or FAIRMESH_LOOKASIDE";
        Failure::failed_with(format!("cannot reach a lookaside at {}", args.at), hint)
    })?;
    let request = PickRequest {
        service: args.service.to_string(),
        key: args.key.map(|key| key.0.to_be_bytes().to_vec().into()).unwrap_or_default(),
        role: args.role.map(|role| role.to_string()).unwrap_or_default(),
        endpoints: args.endpoints,
        avoid: Vec::new(),
    };
    let answer = LookasideClient::new(channel).pick(request).await;
    let answer = answer.map_err(|status| Failure::failed(status.message()))?.into_inner();
    let listing = listing(&answer);
    listing.print(args.output_args.format())?;
    if args.output_args.is_table() {
        output::write_bytes(words(&answer).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn listing(answer: &PickResponse) -> Listing {
    let mut listing = Listing::new(&["INSTANCE", "ADDRESS", "REGION", "POWER", "LEASE"]);
    for lease in &answer.leases {
        let region = lease.location.as_ref().map(|location| location.region.clone()).unwrap_or_default();
        let row = [
            &lease.instance,
            &lease.address,
            &region,
            &lease.power.to_string(),
            &format!("{:016x}", lease.id),
        ];
        let item = json!({
            "service": answer.service,
            "instance": lease.instance,
            "address": lease.address,
            "region": region,
            "power": lease.power,
            // 64-bit numbers are not safe in JSON.
            "lease": format!("{:016x}", lease.id),
            "ttlMs": answer.ttl_ms,
            "calls": answer.calls,
            "revision": answer.revision,
            "firstKey": key(&answer.first_key),
            "lastKey": key(&answer.last_key),
        });
        listing.add(row.map(Clone::clone).into(), item);
    }
    listing
}

/// Describes what all leases in a response have in common.
fn words(answer: &PickResponse) -> String {
    let PickResponse { service, ttl_ms, calls, revision, .. } = answer;
    let (first, last) = (key(&answer.first_key), key(&answer.last_key));
    let keys = if (first.as_str(), last.as_str()) == ("0", MAX_KEY) {
        "every key".into()
    } else {
        format!("keys {first} to {last}")
    };
    format!("good for {ttl_ms} ms and {calls} calls each, for {keys}; {service} as of revision {revision}\n")
}

/// The greatest key.
const MAX_KEY: &str = "340282366920938463463374607431768211455";

fn key(bytes: &[u8]) -> String {
    <[u8; 16]>::try_from(bytes).map(|key| ShardKey(u128::from_be_bytes(key)).to_string()).unwrap_or_default()
}
