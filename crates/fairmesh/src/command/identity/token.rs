//! Tokens for agents.

use std::time::Duration;

use clap::Args;
use fairmesh_model::{Label, Region, Tenant, spec};
use fairmesh_wire::v1::CreateTokenRequest;
use serde_json::json;

use super::timestamp;
use crate::{
    cli::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};

/// Arguments of `fairmesh identity token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// The name of the agent that may use the token: its --name, by default its host's.
    agent: Label,
    /// A tenant whose services the agent may vouch for; may be repeated [default: all].
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<Tenant>,
    /// The region of the agent, which alone it may check and report for [default: the one that it joins with].
    #[arg(long)]
    region: Option<Region>,
    /// How long the token can be used; at most 168h.
    #[arg(long, value_parser = spec::read_duration, default_value = "1h")]
    ttl: Duration,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Makes a token, and prints it alone on standard output.
pub(super) async fn run(args: TokenArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let request = CreateTokenRequest {
        agent: args.agent.to_string(),
        tenants: args.tenants.into_iter().map(String::from).collect(),
        ttl_seconds: args.ttl.as_secs(),
        region: args.region.map(String::from).unwrap_or_default(),
    };
    let made = connection.authority().create_token(request).await;
    let made = made.map_err(|status| Failure::from_status(&status))?.into_inner();
    if args.output.is_table() {
        output::say(format_args!(
            "for the agent {}, once, until {}: start it with FAIRMESH_JOIN_TOKEN=… or --join-token-file FILE",
            args.agent,
            timestamp(made.expires_at)
        ));
    }
    let value = json!({ "token": made.token, "agent": args.agent, "expires": made.expires_at });
    output::print_one(args.output.format(), &value, &format!("{}\n", made.token))
}
