//! `fairmesh shards balance`: executes the control plane's plan move by move.
//!
//! The loop runs here rather than in the control plane: an operator sees it, can stop it between two moves, and can run
//! it in place of an external shard manager, with the same calls. Each move is a request that the control plane
//! completes even if this program has ended.

use std::{pin::Pin, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{
    connect,
    failure::Failure,
    output,
    stop_signals::{self, Shutdown},
};
use fairmesh_model::{Role, ShardMove};
use fairmesh_registry::PlanOptions;
use fairmesh_wire::{
    handshake::Connection,
    v1::{MoveShardRequest, ProposeMovesRequest, ProposeMovesResponse, propose_moves_response::Server},
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{ServiceArgs, wait_for_move};

/// Interval between two plans.
const PLAN_INTERVAL: Duration = Duration::from_secs(30);

/// Arguments of `fairmesh shards balance`.
#[derive(Debug, Args)]
pub struct Balance {
    #[command(flatten)]
    of: ServiceArgs,
    /// Only print the plan.
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// Maximum number of moves of one plan, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = PlanOptions::DEFAULT_MOVES, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_moves: u32,
    /// Maximum number of moves started per minute, 1 to 600.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=600))]
    rate: u32,
    /// A server above this percentage of its fair share is overloaded, 101 to 1000; its load is reduced to halfway.
    #[arg(long, value_name = "PERCENT", default_value_t = PlanOptions::DEFAULT_THRESHOLD, value_parser = clap::value_parser!(u32).range(101..=1000))]
    threshold: u32,
    /// A role whose replicas may be added where one shard is too hot for any server, and dropped again; may be
    /// repeated.
    #[arg(long, value_name = "ROLE")]
    replicate: Vec<Role>,
    /// Continue with a new plan every 30 s, until stopped.
    #[arg(long)]
    watch: bool,
}

/// A plan and its progress.
struct BalanceRound {
    moves: Vec<ShardMove>,
    servers: Vec<Server>,
    notes: Vec<String>,
    done: usize,
}

/// The stop signal.
struct StopSignal {
    signal: Pin<Box<Shutdown>>,
    heard: bool,
}

/// Runs the command. With `--watch` it prints errors and continues, since missing data may arrive.
pub(super) async fn run(args: Balance) -> Result<ExitCode, Failure> {
    let signal: Pin<Box<Shutdown>> = Box::pin(stop_signals::shutdown()?);
    let mut stop = StopSignal { signal, heard: false };
    loop {
        let ended = once(&args, &mut stop).await;
        if !args.watch {
            return ended.map(|()| ExitCode::SUCCESS);
        }
        if let Err(failure) = ended {
            failure.report();
        }
        if !stop.sleep_unless_stopped(Instant::now() + PLAN_INTERVAL).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Requests one plan and executes it.
async fn once(args: &Balance, stop: &mut StopSignal) -> Result<(), Failure> {
    let connection = connect::connect(&args.of.target).await?;
    let mut round = BalanceRound::of(propose(&connection, args).await?)?;
    let ended = match args.dry_run {
        true => Ok(()),
        false => round.execute(&connection, args, stop).await,
    };
    // With `--watch` an empty plan prints nothing.
    if !args.watch || !round.moves.is_empty() {
        output::print_one(args.of.output_args.format(), &round.json(args), &round.text(args))?;
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

impl StopSignal {
    /// Sleeps until `until`; returns false if stopped meanwhile.
    async fn sleep_unless_stopped(&mut self, until: Instant) -> bool {
        if !self.heard {
            tokio::select! {
                () = sleep_until(until) => {}
                () = &mut self.signal => self.heard = true,
            }
        }
        !self.heard
    }
}

impl BalanceRound {
    fn of(plan: ProposeMovesResponse) -> Result<Self, Failure> {
        let moves = plan.moves.into_iter().map(ShardMove::try_from).collect::<Result<_, _>>()?;
        Ok(Self { moves, servers: plan.servers, notes: plan.notes, done: 0 })
    }

    /// Executes move after move, until one fails or the program is stopped; a started move is still awaited.
    async fn execute(
        &mut self,
        connection: &Connection,
        args: &Balance,
        stop: &mut StopSignal,
    ) -> Result<(), Failure> {
        let pause = Duration::from_secs(60) / args.rate;
        let all = self.moves.len();
        for (number, move_request) in (1..).zip(self.moves.clone()) {
            let began = Instant::now();
            output::note(format!("{number} of {all}: {move_request}"));
            execute(connection, args, &move_request, stop).await?;
            self.done += 1;
            output::note(format!("{number} of {all}: done in {:.1} s", began.elapsed().as_secs_f64()));
            if stop.heard || (self.done < all && !stop.sleep_unless_stopped(began + pause).await) {
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
        for (number, move_request) in (1..).zip(&self.moves) {
            let done = if number <= self.done { " (done)" } else { "" };
            text += &format!("{number}. {move_request}{done}\n");
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text + &match (self.moves.len(), args.dry_run) {
            (0, _) => {
                format!("nothing to move: no server that moves can relieve is above {} %\n", args.threshold)
            }
            (moves, true) => format!("{moves} moves; nothing was done\n"),
            (moves, false) => format!("{} of {moves} moves done\n", self.done),
        }
    }

    fn json(&self, args: &Balance) -> serde_json::Value {
        let moves = self.moves.iter().enumerate().map(|(i, move_request)| {
            let ShardMove { shard, role, from, to } = move_request;
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

/// Requests one move and waits for its end, even if stopped meanwhile. A second stop leaves the rest to the control
/// plane.
async fn execute(
    connection: &Connection,
    args: &Balance,
    move_request: &ShardMove,
    stop: &mut StopSignal,
) -> Result<(), Failure> {
    let service = &args.of.service;
    let request =
        MoveShardRequest { service: service.to_string(), r#move: Some(move_request.clone().into()) };
    connection.registry().move_shard(request).await?;
    let moved = wait_for_move::wait_until_moved(connection, service, move_request);
    tokio::pin!(moved);
    if !stop.heard {
        tokio::select! {
            moved = &mut moved => return moved,
            () = &mut stop.signal => stop.heard = true,
        }
        output::note("stopping after this move; the control plane completes it in any case");
    }
    let again = stop_signals::shutdown()?;
    tokio::select! {
        moved = moved => moved,
        () = again => Err(Failure::failed_with(
            format!("not waiting for {move_request}"),
            format!("see how far it is with 'fairmesh shards moves {service}'"),
        )),
    }
}

const HEAD: [&str; 7] = ["INSTANCE", "REGION", "LOAD", "SHARE", "", "LOAD AFTER", "SHARE AFTER"];

/// Loads as average calls in flight, and as a percentage of the fair share.
fn row(server: &Server) -> Vec<String> {
    let Server { instance, region, before, after, fair } = server;
    let load = |work: u64| format!("{:.3}", work as f64 / 1e6);
    let share = |work: u64| format!("{} %", work.saturating_mul(100) / (*fair).max(1));
    let row = [instance.clone(), region.clone(), load(*before), share(*before)];
    let after = ["->".to_owned(), load(*after), share(*after)];
    row.into_iter().chain(after).collect()
}

/// Coefficient of variation of the loads, each relative to its fair share (ServiceRouter §4.3.1).
fn variation(servers: &[Server], load: fn(&Server) -> u64) -> f64 {
    let shares: Vec<f64> =
        servers.iter().map(|server| load(server) as f64 / server.fair.max(1) as f64).collect();
    let count = shares.len().max(1) as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}
