//! `fairmesh shards`.

mod balance;
mod loads;
mod wait_for_move;

use std::{collections::BTreeSet, process::ExitCode};

use clap::{Args, Subcommand};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
};
use fairmesh_model::{InstanceId, Role, ServiceName, ShardId, ShardKey, ShardMove};
use fairmesh_wire::{
    convert,
    handshake::Connection,
    v1::{MergeShardsRequest, MoveShardRequest, SplitShardRequest},
};
use serde_json::json;

use super::records::{apply, get};

/// Commands on a shard map. A map is created with 'fairmesh apply'.
#[derive(Debug, Subcommand)]
pub enum ShardsCommand {
    /// Print the map of a service.
    Get(ServiceArgs),
    /// Split one shard in two; the upper half gets a new id.
    Split(Split),
    /// Merge a shard with the next one by key; both must have the same replicas.
    Merge(Merge),
    /// Move one replica of a shard from one instance to another, make before break.
    Move(Move),
    /// Add a replica of a shard.
    Add(Add),
    /// Drop a replica of a shard; callers leave it first.
    Drop(Drop),
    /// List the moves in progress.
    Moves(ServiceArgs),
    /// Show the load of the shards of each server.
    Loads(ServiceArgs),
    /// Move shards, and replicate hot ones, until no server is overloaded.
    Balance(balance::Balance),
}

/// Arguments of commands on one service.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Arguments of `fairmesh shards split`.
#[derive(Debug, Args)]
pub struct Split {
    #[command(flatten)]
    of: ServiceArgs,
    /// The shard's id.
    shard: u32,
    /// The first key of the upper half, decimal or 0x… [default: the middle].
    #[arg(long, value_name = "KEY")]
    at: Option<ShardKey>,
}

/// Arguments of `fairmesh shards merge`.
#[derive(Debug, Args)]
pub struct Merge {
    #[command(flatten)]
    of: ServiceArgs,
    /// The shard's id.
    shard: u32,
}

/// Arguments of `fairmesh shards move`.
#[derive(Debug, Args)]
pub struct Move {
    #[command(flatten)]
    of: ServiceArgs,
    /// The shard's id.
    shard: u32,
    /// The source instance.
    #[arg(long, value_name = "INSTANCE")]
    from: InstanceId,
    /// The target instance.
    #[arg(long, value_name = "INSTANCE")]
    to: InstanceId,
    /// The role of the replica [default: its role, if it has only one].
    #[arg(long)]
    role: Option<Role>,
    /// Wait until the move is done.
    #[arg(long)]
    wait: bool,
}

/// Arguments of `fairmesh shards add`.
#[derive(Debug, Args)]
pub struct Add {
    #[command(flatten)]
    of: ServiceArgs,
    /// The shard's id.
    shard: u32,
    /// The target instance.
    #[arg(long, value_name = "INSTANCE")]
    to: InstanceId,
    /// The role of the replica [default: the role of the shard's replicas, if they have only one].
    #[arg(long)]
    role: Option<Role>,
    /// Wait until callers use it.
    #[arg(long)]
    wait: bool,
}

/// Arguments of `fairmesh shards drop`.
#[derive(Debug, Args)]
pub struct Drop {
    #[command(flatten)]
    of: ServiceArgs,
    /// The shard's id.
    shard: u32,
    /// The instance to drop it from.
    #[arg(long, value_name = "INSTANCE")]
    from: InstanceId,
    /// The role of the replica [default: its role, if it has only one].
    #[arg(long)]
    role: Option<Role>,
    /// Wait until it is dropped.
    #[arg(long)]
    wait: bool,
}

/// Parameters of a move, for all commands that make one.
struct MoveArgs {
    of: ServiceArgs,
    shard: ShardId,
    from: Option<InstanceId>,
    to: Option<InstanceId>,
    role: Option<Role>,
    wait: bool,
}

/// Runs the command.
pub async fn run(command: ShardsCommand) -> Result<ExitCode, Failure> {
    match command {
        ShardsCommand::Get(of) => get_map(of).await,
        ShardsCommand::Split(args) => split(args).await,
        ShardsCommand::Merge(args) => merge(args).await,
        ShardsCommand::Move(Move { of, shard, from, to, role, wait }) => {
            let (from, to) = (Some(from), Some(to));
            start_move(MoveArgs { of, shard: ShardId(shard), from, to, role, wait }).await
        }
        ShardsCommand::Add(Add { of, shard, to, role, wait }) => {
            start_move(MoveArgs { of, shard: ShardId(shard), from: None, to: Some(to), role, wait }).await
        }
        ShardsCommand::Drop(Drop { of, shard, from, role, wait }) => {
            start_move(MoveArgs { of, shard: ShardId(shard), from: Some(from), to: None, role, wait }).await
        }
        ShardsCommand::Moves(of) => moves(of).await,
        ShardsCommand::Loads(of) => loads::run(of).await,
        ShardsCommand::Balance(args) => balance::run(args).await,
    }
}

async fn get_map(of: ServiceArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&of.target).await?;
    let listing = get::shards_of(&connection, &of.service).await?;
    listing.print(of.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

async fn split(args: Split) -> Result<ExitCode, Failure> {
    let Split { of, shard, at } = args;
    let connection = connect::connect_as_operator(&of.target).await?;
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
    let connection = connect::connect_as_operator(&of.target).await?;
    let request = MergeShardsRequest { service: of.service.to_string(), shard };
    let version = connection.registry().merge_shards(request).await?.into_inner().version;
    say_version(&of, version)
}

fn say_version(of: &ServiceArgs, version: u64) -> Result<ExitCode, Failure> {
    let item = json!({ "service": of.service.to_string(), "version": version });
    let text = format!("the map of {} is at version {version}\n", of.service);
    output::print_one(of.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

async fn start_move(args: MoveArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect_as_operator(&args.of.target).await?;
    let role = match &args.role {
        Some(role) => role.clone(),
        None => replica_role(&connection, &args).await?,
    };
    let service = &args.of.service;
    let move_request = ShardMove { shard: args.shard, role, from: args.from.clone(), to: args.to.clone() };
    let request =
        MoveShardRequest { service: service.to_string(), r#move: Some(move_request.clone().into()) };
    connection.registry().move_shard(request).await?;
    if args.wait {
        wait_for_move::wait_until_moved(&connection, service, &move_request).await?;
    }
    let item = json!({
        "service": service.to_string(),
        "shard": move_request.shard.0,
        "role": move_request.role,
        "from": move_request.from,
        "to": move_request.to,
        "done": args.wait,
    });
    let done = if args.wait { "done" } else { "wished" };
    let mut text = format!("{service}: {move_request} is {done}");
    if !args.wait {
        text += &format!("; see 'fairmesh shards moves {service}'");
    }
    text.push('\n');
    output::print_one(args.of.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the role in which the source instance has the shard, if there is only one; without a source instance, the
/// only role in which any instance has it.
async fn replica_role(connection: &Connection, args: &MoveArgs) -> Result<Role, Failure> {
    let service = &args.of.service;
    let Some(map) = apply::stored_map(connection, service).await? else {
        return Err(Failure::failed_with(
            format!("{service} has no shard map"),
            "only sharded services have shards; see 'fairmesh get services'",
        ));
    };
    let shards = map.shards;
    if !shards.iter().any(|shard| shard.id == args.shard) {
        return Err(Failure::failed_with(
            format!("{service} has no shard {}", args.shard),
            format!("list its shards with 'fairmesh shards get {service}'"),
        ));
    }
    let held = shards.iter().filter(|shard| shard.id == args.shard).flat_map(|shard| &shard.replicas);
    let held = held.filter(|replica| args.from.as_ref().is_none_or(|from| replica.instance == *from));
    let roles: BTreeSet<&Role> = held.map(|replica| &replica.role).collect();
    match (roles.first(), &args.from) {
        (Some(role), _) if roles.len() == 1 => Ok((*role).clone()),
        (None, Some(from)) => Err(Failure::failed_with(
            format!("{from} has no replica of shard {} of {service}", args.shard),
            format!("list its replicas with 'fairmesh shards get {service}'"),
        )),
        (None, None) => Err(Failure::failed_with(
            format!("shard {} of {service} has no replica", args.shard),
            "give the role of its first replica with --role",
        )),
        _ => Err(Failure::refused(
            format!("shard {} has replicas in several roles", args.shard),
            "give the role with --role",
        )),
    }
}

async fn moves(of: ServiceArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&of.target).await?;
    let mut listing = Listing::new(get::MOVES_HEAD);
    get::add_moves(&connection, &of.service, &mut listing).await?;
    listing.print(of.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}
