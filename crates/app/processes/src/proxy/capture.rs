//! `fairmesh proxy capture`: redirects connections of unmodified programs to a proxy.
//!
//! The proxy's own connections are excluded by its user or its cgroup, which every socket of a process has. A socket
//! mark would have to be set on each socket, and requires a capability (CAP_NET_ADMIN) that the proxy needs for nothing
//! else.

mod ip_routes;
mod nft_command;
mod nft_rules;
mod port_and_network_args;
mod user_and_cgroup_args;

pub(crate) use user_and_cgroup_args::uids;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{arguments::OutputArgs, failure::Failure, output, stop_signals};
use serde_json::{Value, json};

use self::{
    nft_rules::{Rules, TABLE},
    port_and_network_args::{Network, Ports},
};

/// Interval at which `--watch` checks whether the proxy listens.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of `fairmesh proxy capture`.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Stop capturing: remove the rules and routes of this command in this network namespace, and nothing else.
    #[arg(long, conflicts_with_all = ["port", "to", "from", "own", "uid", "cgroup", "except_uid", "except_cgroup", "loopback", "watch", "dry_run"])]
    undo: bool,
    /// The proxy's listener for captured connections (--listen capture:IP:PORT): one IPv4 address, one IPv6 address, or
    /// both.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7415", value_delimiter = ',')]
    at: Vec<SocketAddr>,
    /// Only connections to this port, or to ports FROM-TO; may be repeated [default: 80; with --to, every port].
    #[arg(long, value_name = "N[-N]", value_delimiter = ',')]
    port: Vec<Ports>,
    /// Only connections to these addresses; may be repeated.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    to: Vec<Network>,
    /// Connections from these addresses, of containers or other machines, routed through this one; may be repeated. The
    /// proxy's listener needs +transparent. Of this machine's own programs only the given ones are captured then.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    from: Vec<Network>,
    /// With --from: also connections of all of this machine's own programs.
    #[arg(long, requires = "from", conflicts_with_all = ["uid", "cgroup"])]
    own: bool,
    /// Only connections of this user's programs, by name or number; may be repeated.
    #[arg(long, value_name = "USER")]
    uid: Vec<String>,
    /// Only connections of programs in this cgroup (version 2) and in cgroups below it; may be repeated.
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Never connections of this user; may be repeated. The proxy's own user is found by its listener, and is always
    /// excluded unless cgroups separate it from the programs.
    #[arg(long, value_name = "USER")]
    except_uid: Vec<String>,
    /// Never connections of programs in this cgroup: that of the proxy, if it runs as the same user as the programs.
    #[arg(long, value_name = "PATH")]
    except_cgroup: Vec<String>,
    /// Also connections to addresses of this machine.
    #[arg(long)]
    loopback: bool,
    /// Run until SIGTERM, and capture only while the proxy listens: otherwise programs connect directly.
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Print the rules, for 'nft -f', and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Installs or removes the rules.
pub(crate) async fn run(args: CaptureArgs) -> Result<ExitCode, Failure> {
    if args.undo {
        let removed = remove()?;
        return print_removed(&args, removed);
    }
    if args.watch {
        return watch(&args).await;
    }
    let rules = rules(&args, user_and_cgroup_args::listener_uid(&args.at))?;
    if args.dry_run {
        let routes = ip_routes::steps(&rules.passing_families());
        let routes: String = routes.iter().map(|step| format!("# ip {step}\n")).collect();
        return print_state(&args, &state(&rules, false), &format!("{routes}{}", rules.script()));
    }
    load(&rules)?;
    print_state(&args, &state(&rules, true), &format!("{}\n", rules.words()))
}

fn print_state(args: &CaptureArgs, state: &Value, words: &str) -> Result<ExitCode, Failure> {
    output::print_one(args.output_args.format(), state, words).map(|()| ExitCode::SUCCESS)
}

fn print_removed(args: &CaptureArgs, removed: bool) -> Result<ExitCode, Failure> {
    let words = if removed { "nothing is captured any more\n" } else { "nothing was captured\n" };
    print_state(args, &json!({ "table": TABLE, "captured": false, "changed": removed }), words)
}

fn state(rules: &Rules, captured: bool) -> Value {
    json!({
        "table": TABLE,
        "captured": captured,
        "at": rules.at,
        "from": rules.from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "exceptUids": rules.except_uids,
        "exceptCgroups": rules.except_cgroups.iter().map(|cgroup| &cgroup.path).collect::<Vec<_>>(),
        "rules": rules.script(),
        "routes": ip_routes::steps(&rules.passing_families()),
    })
}

/// Replaces the rules of an earlier command, and the routes that the rules need. Routes come first: marked packets
/// would be dropped without them, whereas routes without marks have no effect.
fn load(rules: &Rules) -> Result<(), Failure> {
    let families = rules.passing_families();
    let loaded = ip_routes::add(&families).and_then(|()| nft_command::load(&rules.script()));
    if let Err(failure) = loaded {
        // Rules of an earlier command may exist and need their routes.
        if !nft_command::has_table()? {
            ip_routes::keep(&[])?;
        }
        return Err(failure);
    }
    ip_routes::keep(&families).map(drop)
}

/// Removes rules and routes; returns whether there were any.
fn remove() -> Result<bool, Failure> {
    let (rules, routes) = (nft_command::remove(), ip_routes::keep(&[]));
    Ok(rules? | routes?)
}

/// Stops capturing, and returns whether anything was captured. A proxy that stops has already closed its listener,
/// but still has requests in flight.
fn pause() -> Result<bool, Failure> {
    let captured = nft_command::has_table()?;
    if captured {
        nft_command::load(&nft_rules::rest())?;
    }
    Ok(captured)
}

/// Captures while the proxy listens. Nothing is captured after it returns.
async fn watch(args: &CaptureArgs) -> Result<ExitCode, Failure> {
    let shutdown = stop_signals::shutdown()?;
    // Invalid arguments are reported before rules of an earlier command are changed.
    if let Some(proxy) = user_and_cgroup_args::listener_uid(&args.at) {
        rules(args, Some(proxy))?;
    }
    let watched = follow(args, shutdown).await;
    // The error that ended `follow` matters more than an error of the removal.
    let removed = remove();
    watched?;
    print_removed(args, removed?)
}

/// Starts and stops capturing, until `shutdown` or an error.
async fn follow(args: &CaptureArgs, shutdown: impl Future<Output = ()>) -> Result<(), Failure> {
    tokio::pin!(shutdown);
    // Unknown at first: an earlier command may have been killed.
    let mut captured = None;
    loop {
        let listens = user_and_cgroup_args::listener_uid(&args.at);
        if captured != Some(listens) {
            match listens {
                Some(_) => {
                    let rules = rules(args, listens)?;
                    load(&rules)?;
                    print_state(args, &state(&rules, true), &format!("{}\n", rules.words()))?;
                }
                None => {
                    let state = json!({ "table": TABLE, "captured": false, "changed": pause()? });
                    print_state(args, &state, "the proxy does not listen; programs connect directly\n")?;
                }
            }
            captured = Some(listens);
        }
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Returns the rules for these arguments. `proxy` is the user who runs the proxy.
fn rules(args: &CaptureArgs, proxy: Option<u32>) -> Result<Rules, Failure> {
    let mut rules = Rules {
        at: nft_rules::listener_addresses(&args.at)?,
        ports: port_and_network_args::merged(&args.port),
        to: args.to.iter().copied().collect(),
        from: args.from.iter().copied().collect(),
        own: args.own,
        uids: user_and_cgroup_args::uids(&args.uid)?,
        cgroups: user_and_cgroup_args::cgroups(&args.cgroup)?,
        except_uids: user_and_cgroup_args::uids(&args.except_uid)?,
        except_cgroups: user_and_cgroup_args::cgroups(&args.except_cgroup)?,
        loopback: args.loopback,
    };
    rules.reach()?;
    rules.except(proxy)?;
    Ok(rules)
}
