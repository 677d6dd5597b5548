//! Tokens for agents, and for programs that run without one.

use std::time::Duration;

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_model::{Label, Region, ServiceName, Tenant, spec};
use fairmesh_wire::v1::CreateTokenRequest;
use serde_json::json;

use fairmesh_console::output::timestamp;

/// Arguments of `fairmesh identity token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The name of the agent that may use the token: its --name, by default its host's.
    #[arg(required_unless_present = "service")]
    agent: Option<Label>,
    /// The service, as tenant/service, of a program that may use the token: one that runs without an agent.
    #[arg(long, value_name = "SERVICE", conflicts_with_all = ["agent", "tenants", "region"])]
    service: Option<ServiceName>,
    /// A tenant whose services the agent may vouch for; may be repeated [default: all].
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<Tenant>,
    /// The only region that the agent may check and report for [default: the region with which it joins].
    #[arg(long)]
    region: Option<Region>,
    /// How long the token can be used; from 1s to 168h.
    #[arg(long, value_parser = spec::read_duration, default_value = "1h")]
    ttl: Duration,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Creates a token, and prints it alone on standard output.
pub(super) async fn run(args: TokenArgs) -> Result<(), Failure> {
    if args.ttl.as_secs() == 0 {
        return Err(Failure::failed("a token with '--ttl 0s' would be over at once; give at least 1s"));
    }
    let connection = connect::connect(&args.target).await?;
    let request = CreateTokenRequest {
        agent: args.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        tenants: args.tenants.into_iter().map(String::from).collect(),
        ttl_seconds: args.ttl.as_secs(),
        region: args.region.map(String::from).unwrap_or_default(),
        service: args.service.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    let made = connection.authority().create_token(request).await;
    let made = made.map_err(|status| Failure::from_status(&status))?.into_inner();
    if args.output.is_table() {
        let until = timestamp(made.expires_at);
        match (&args.agent, &args.service) {
            (_, Some(service)) => output::say(format_args!(
                "for a program of {service} that runs without an agent, once, until {until}: start it with FAIRMESH_JOIN_TOKEN=… and \
                 FAIRMESH_IDENTITY_DIR=DIR"
            )),
            (agent, None) => output::say(format_args!(
                "for the agent {}, once, until {until}: start it with FAIRMESH_JOIN_TOKEN=… or --join-token-file FILE",
                agent.as_ref().map(Label::as_str).unwrap_or_default()
            )),
        }
    }
    let mut value = json!({ "token": made.token, "expires": timestamp(made.expires_at) });
    match (&args.agent, &args.service) {
        (_, Some(service)) => value["service"] = json!(service.to_string()),
        (agent, None) => value["agent"] = json!(agent),
    }
    output::print_one(args.output.format(), &value, &format!("{}\n", made.token))
}
