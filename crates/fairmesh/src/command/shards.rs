//! `fairmesh shards`.

mod wait;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use fairmesh_model::{InstanceId, Role, ServiceName, ShardId, ShardKey, ShardMove};
use fairmesh_wire::{
    convert,
    handshake::Connection,
    v1::{MergeShardsRequest, MoveShardRequest, SplitShardRequest},
};
use serde_json::json;

use crate::{
    cli::{Reach, SeenAs},
    connect,
    failure::Failure,
    output::{self, Listing},
};

use super::{apply, get};

/// What to do with a shard map. A map is created with 'fairmesh apply'.
#[derive(Debug, Subcommand)]
pub(crate) enum ShardsCommand {
    /// Print the map of a service.
    Get(Of),
    /// Split one shard in two; the upper half gets a new id.
    Split(Split),
    /// Let a shard swallow the next one by key; both must be held alike.
    Merge(Merge),
    /// Move one copy of a shard from one instance to another, make before break.
    Move(Move),
    /// List the moves under way.
    Moves(Of),
}

/// A service.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The service, as tenant/service.
    service: ServiceName,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Arguments of `fairmesh shards split`.
#[derive(Debug, Args)]
pub(crate) struct Split {
    #[command(flatten)]
    of: Of,
    /// The shard's id.
    shard: u32,
    /// The first key of the upper half, decimal or 0x… [default: the middle].
    #[arg(long, value_name = "KEY")]
    at: Option<ShardKey>,
}

/// Arguments of `fairmesh shards merge`.
#[derive(Debug, Args)]
pub(crate) struct Merge {
    #[command(flatten)]
    of: Of,
    /// The shard's id.
    shard: u32,
}

/// Arguments of `fairmesh shards move`.
#[derive(Debug, Args)]
pub(crate) struct Move {
    #[command(flatten)]
    of: Of,
    /// The shard's id.
    shard: u32,
    /// Who gives the copy up.
    #[arg(long, value_name = "INSTANCE")]
    from: InstanceId,
    /// Who takes it.
    #[arg(long, value_name = "INSTANCE")]
    to: InstanceId,
    /// The role of the copy [default: the role in which it is held, if there is one only].
    #[arg(long)]
    role: Option<Role>,
    /// Wait until the move is done.
    #[arg(long)]
    wait: bool,
}

/// Carries the command out.
pub(crate) async fn run(command: ShardsCommand) -> Result<ExitCode, Failure> {
    match command {
        ShardsCommand::Get(of) => get_map(of).await,
        ShardsCommand::Split(args) => split(args).await,
        ShardsCommand::Merge(args) => merge(args).await,
        ShardsCommand::Move(args) => start_move(args).await,
        ShardsCommand::Moves(of) => moves(of).await,
    }
}

async fn get_map(of: Of) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&of.reach).await?;
    let listing = get::shards_of(&connection, &of.service).await?;
    listing.print(of.seen_as.format())?;
    Ok(ExitCode::SUCCESS)
}

async fn split(args: Split) -> Result<ExitCode, Failure> {
    let Split { of, shard, at } = args;
    let connection = connect::connect(&of.reach).await?;
    let request = SplitShardRequest {
        service: of.service.to_string(),
        shard,
        at: at.map(convert::shard_key_bytes).unwrap_or_default(),
    };
    let version = connection.registry().split_shard(request).await?.into_inner().version;
    say_version(&of, version)
}

async fn merge(args: Merge) -> Result<ExitCode, Failure> {
    let Merge { of, shard } = args;
    let connection = connect::connect(&of.reach).await?;
    let request = MergeShardsRequest { service: of.service.to_string(), shard };
    let version = connection.registry().merge_shards(request).await?.into_inner().version;
    say_version(&of, version)
}

fn say_version(of: &Of, version: u64) -> Result<ExitCode, Failure> {
    let item = json!({ "service": of.service.to_string(), "version": version });
    let text = format!("the map of {} is at version {version}\n", of.service);
    output::print_one(of.seen_as.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

async fn start_move(args: Move) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.of.reach).await?;
    let role = match &args.role {
        Some(role) => role.clone(),
        None => held_role(&connection, &args).await?,
    };
    let (service, shard) = (&args.of.service, ShardId(args.shard));
    let wish = ShardMove { shard, role, from: args.from.clone(), to: args.to.clone() };
    let request = MoveShardRequest { service: service.to_string(), r#move: Some(wish.clone().into()) };
    connection.registry().move_shard(request).await?;
    if args.wait {
        wait::until_moved(&connection, service, &wish).await?;
    }
    let item = json!({
        "service": service.to_string(),
        "shard": args.shard,
        "role": wish.role.to_string(),
        "from": wish.from.to_string(),
        "to": wish.to.to_string(),
        "done": args.wait,
    });
    let text = if args.wait {
        format!("shard {shard} of {service} has moved to {}\n", wish.to)
    } else {
        format!("shard {shard} of {service} moves to {}; see 'fairmesh shards moves {service}'\n", wish.to)
    };
    output::print_one(args.of.seen_as.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// The one role in which the instance holds the shard.
async fn held_role(connection: &Connection, args: &Move) -> Result<Role, Failure> {
    let service = &args.of.service;
    let map = apply::stored_map(connection, service).await?;
    let shards = map.map(|map| map.shards).unwrap_or_default();
    let held = shards.iter().filter(|shard| shard.id.0 == args.shard).flat_map(|shard| &shard.replicas);
    let roles: Vec<&Role> =
        held.filter(|replica| replica.instance == args.from).map(|replica| &replica.role).collect();
    match roles[..] {
        [role] => Ok(role.clone()),
        [] => Err(Failure::failed_with(
            format!("{} does not hold shard {} of {service}", args.from, args.shard),
            format!("see who does with 'fairmesh shards get {service}'"),
        )),
        _ => Err(Failure::refused(
            format!("{} holds shard {} in several roles", args.from, args.shard),
            "say which copy moves with --role",
        )),
    }
}

async fn moves(of: Of) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&of.reach).await?;
    let mut listing = Listing::new(get::MOVES_HEAD);
    get::add_moves(&connection, &of.service, &mut listing).await?;
    listing.print(of.seen_as.format())?;
    Ok(ExitCode::SUCCESS)
}
