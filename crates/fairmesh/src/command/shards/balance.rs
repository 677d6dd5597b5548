//! `fairmesh shards balance`: what the control plane proposes, carried out move by move.
//!
//! The loop is here, not in the control plane: an operator sees it, stops it between two moves and starts it where an
//! outside shard manager would run, by the same calls. Each move is a wish that the control plane carries out whole even
//! when this program is gone.

use std::{pin::Pin, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_model::{Role, ShardMove};
use fairmesh_registry::Terms;
use fairmesh_wire::{
    handshake::Connection,
    v1::{MoveShardRequest, ProposeMovesRequest, ProposeMovesResponse, propose_moves_response::Server},
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{Of, wait};
use crate::{
    connect,
    failure::Failure,
    output,
    signals::{self, Shutdown},
};

/// How long to wait between two plans.
const AGAIN: Duration = Duration::from_secs(30);

/// Arguments of `fairmesh shards balance`.
#[derive(Debug, Args)]
pub(crate) struct Balance {
    #[command(flatten)]
    of: Of,
    /// Only say what would be done.
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// The most moves of one plan, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = Terms::MOVES, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_moves: u32,
    /// The most moves that begin within a minute, 1 to 600.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=600))]
    rate: u32,
    /// Overloaded is who has more than this percentage of its fair share, 101 to 1000; it is brought down half the way.
    #[arg(long, value_name = "PERCENT", default_value_t = Terms::THRESHOLD, value_parser = clap::value_parser!(u32).range(101..=1000))]
    threshold: u32,
    /// A role of which copies may be added where one shard is too hot for any server, and extra ones dropped again; may be
    /// repeated.
    #[arg(long, value_name = "ROLE")]
    replicate: Vec<Role>,
    /// Go on, with a new plan every 30 s, until it is stopped.
    #[arg(long)]
    watch: bool,
}

/// A plan and how much of it is done.
struct Round {
    moves: Vec<ShardMove>,
    servers: Vec<Server>,
    notes: Vec<String>,
    done: usize,
}

/// Told to stop, or not yet.
struct Stop {
    signal: Pin<Box<Shutdown>>,
    heard: bool,
}

/// Carries the command out. A watch says what fails and goes on: what is not known or not there yet may be soon.
pub(super) async fn run(args: Balance) -> Result<ExitCode, Failure> {
    let signal: Pin<Box<Shutdown>> = Box::pin(signals::shutdown()?);
    let mut stop = Stop { signal, heard: false };
    loop {
        let ended = once(&args, &mut stop).await;
        if !args.watch {
            return ended.map(|()| ExitCode::SUCCESS);
        }
        if let Err(failure) = ended {
            failure.report();
        }
        if !stop.sleeps(Instant::now() + AGAIN).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Makes one plan and carries it out.
async fn once(args: &Balance, stop: &mut Stop) -> Result<(), Failure> {
    let connection = connect::connect(&args.of.reach).await?;
    let mut round = Round::of(propose(&connection, args).await?)?;
    let ended = match args.dry_run {
        true => Ok(()),
        false => round.carry_out(&connection, args, stop).await,
    };
    // A watch is silent where there was nothing to do.
    if !args.watch || !round.moves.is_empty() {
        output::print_one(args.of.seen_as.format(), &round.json(args), &round.text(args))?;
    }
    ended
}

async fn propose(connection: &Connection, args: &Balance) -> Result<ProposeMovesResponse, Failure> {
    let request = ProposeMovesRequest {
        service: args.of.service.to_string(),
        threshold: args.threshold,
        max_moves: args.max_moves,
        replicate: args.replicate.iter().map(ToString::to_string).collect(),
    };
    Ok(connection.registry().propose_moves(request).await?.into_inner())
}

impl Stop {
    /// Sleeps; `false` when it was woken in order to stop.
    async fn sleeps(&mut self, until: Instant) -> bool {
        if !self.heard {
            tokio::select! {
                () = sleep_until(until) => {}
                () = &mut self.signal => self.heard = true,
            }
        }
        !self.heard
    }
}

impl Round {
    fn of(plan: ProposeMovesResponse) -> Result<Self, Failure> {
        let moves = plan.moves.into_iter().map(ShardMove::try_from).collect::<Result<_, _>>()?;
        Ok(Self { moves, servers: plan.servers, notes: plan.notes, done: 0 })
    }

    /// Move after move, until one fails or it is stopped; one that was begun is waited for.
    async fn carry_out(
        &mut self,
        connection: &Connection,
        args: &Balance,
        stop: &mut Stop,
    ) -> Result<(), Failure> {
        let pause = Duration::from_secs(60) / args.rate;
        let all = self.moves.len();
        for (number, wish) in (1..).zip(self.moves.clone()) {
            let began = Instant::now();
            eprintln!("{number} of {all}: {wish}");
            carry_out(connection, args, &wish, stop).await?;
            self.done += 1;
            eprintln!("{number} of {all}: done in {:.1} s", began.elapsed().as_secs_f64());
            if stop.heard || (self.done < all && !stop.sleeps(began + pause).await) {
                break;
            }
        }
        Ok(())
    }

    fn text(&self, args: &Balance) -> String {
        let mut text = output::table(&HEAD, &self.servers.iter().map(row).collect::<Vec<_>>());
        let variation = |load: fn(&Server) -> u64| variation(&self.servers, load);
        text += &format!(
            "coefficient of variation {:.2} -> {:.2}\n",
            variation(|server| server.before),
            variation(|server| server.after)
        );
        for (number, wish) in (1..).zip(&self.moves) {
            let done = if number <= self.done { " (done)" } else { "" };
            text += &format!("{number}. {wish}{done}\n");
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text + &match (self.moves.len(), args.dry_run) {
            (0, _) => format!("nothing to move: nobody who can be helped is above {} %\n", args.threshold),
            (moves, true) => format!("{moves} moves; nothing was done\n"),
            (moves, false) => format!("{} of {moves} moves done\n", self.done),
        }
    }

    fn json(&self, args: &Balance) -> serde_json::Value {
        let moves = self.moves.iter().enumerate().map(|(i, wish)| {
            let ShardMove { shard, role, from, to } = wish;
            json!({ "shard": shard.0, "role": role, "from": from, "to": to, "done": i < self.done })
        });
        let servers = self.servers.iter().map(|server| {
            let Server { instance, region, before, after, fair } = server;
            json!({ "instance": instance, "region": region, "before": before, "after": after, "fair": fair })
        });
        json!({
            "service": args.of.service.to_string(),
            "dryRun": args.dry_run,
            "moves": moves.collect::<Vec<_>>(),
            "servers": servers.collect::<Vec<_>>(),
            "notes": self.notes,
            "done": self.done,
        })
    }
}

/// Wishes one move and waits for its end, also when told to stop meanwhile; told twice, it leaves the rest to the control
/// plane.
async fn carry_out(
    connection: &Connection,
    args: &Balance,
    wish: &ShardMove,
    stop: &mut Stop,
) -> Result<(), Failure> {
    let service = &args.of.service;
    let request = MoveShardRequest { service: service.to_string(), r#move: Some(wish.clone().into()) };
    connection.registry().move_shard(request).await?;
    let moved = wait::until_moved(connection, service, wish);
    tokio::pin!(moved);
    if !stop.heard {
        tokio::select! {
            moved = &mut moved => return moved,
            () = &mut stop.signal => stop.heard = true,
        }
        eprintln!("stopping once this move is done; the control plane finishes it in any case");
    }
    let again = signals::shutdown()?;
    tokio::select! {
        moved = moved => moved,
        () = again => Err(Failure::failed_with(
            format!("not waiting for {wish}"),
            format!("see how far it is with 'fairmesh shards moves {service}'"),
        )),
    }
}

const HEAD: [&str; 7] = ["INSTANCE", "REGION", "LOAD", "SHARE", "", "LOAD AFTER", "SHARE AFTER"];

/// Loads as calls under way, and as a percentage of the fair share.
fn row(server: &Server) -> Vec<String> {
    let Server { instance, region, before, after, fair } = server;
    let load = |work: u64| format!("{:.3}", work as f64 / 1e6);
    let share = |work: u64| format!("{} %", work.saturating_mul(100) / (*fair).max(1));
    let row = [instance.clone(), region.clone(), load(*before), share(*before)];
    let after = ["->".to_owned(), load(*after), share(*after)];
    row.into_iter().chain(after).collect()
}

/// Standard deviation by mean of the loads, each by its fair share (ServiceRouter §4.3.1).
fn variation(servers: &[Server], load: fn(&Server) -> u64) -> f64 {
    let shares: Vec<f64> =
        servers.iter().map(|server| load(server) as f64 / server.fair.max(1) as f64).collect();
    let count = shares.len().max(1) as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}
