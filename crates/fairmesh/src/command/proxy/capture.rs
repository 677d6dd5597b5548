//! `fairmesh proxy capture`: connections of programs that know nothing of a proxy are redirected to one.
//!
//! The proxy's own connections are told apart by its user or its cgroup, as every socket of a process has these. A mark would
//! have to be set on each socket by whoever opens it, and takes a right (CAP_NET_ADMIN) that the proxy needs for nothing else.

mod nft;
mod places;
mod route;
mod rules;
mod who;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use self::{
    places::{Net, Ports},
    rules::{Rules, TABLE},
};
use crate::{cli::SeenAs, failure::Failure, output, signals};

/// How often `--watch` looks whether the proxy listens.
const LOOK: Duration = Duration::from_millis(200);

/// Arguments of `fairmesh proxy capture`.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Stop capturing: remove what this command set up in this network namespace, and nothing else.
    #[arg(long, conflicts_with_all = ["port", "to", "from", "own", "uid", "cgroup", "except_uid", "except_cgroup", "loopback", "watch", "dry_run"])]
    undo: bool,
    /// Where the proxy listens for what is captured (--listen capture:IP:PORT): one address of IPv4, one of IPv6, or both.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7415", value_delimiter = ',')]
    at: Vec<SocketAddr>,
    /// Only connections to this port, or to ports FROM-TO; may be repeated [default: 80; with --to, every port].
    #[arg(long, value_name = "N[-N]", value_delimiter = ',')]
    port: Vec<Ports>,
    /// Only connections to these addresses; may be repeated.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    to: Vec<Net>,
    /// Connections from these addresses, of containers or other machines, that pass through this one, which routes for them; may be
    /// repeated. The proxy's listener needs +transparent. Of this machine's own programs, then only those that are named are captured.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    from: Vec<Net>,
    /// With --from: also connections of all of this machine's own programs.
    #[arg(long, requires = "from", conflicts_with_all = ["uid", "cgroup"])]
    own: bool,
    /// Only connections of this user's programs, by name or number; may be repeated.
    #[arg(long, value_name = "USER")]
    uid: Vec<String>,
    /// Only connections of programs in this cgroup (version 2), and of those in cgroups within; may be repeated.
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Never connections of this user; may be repeated. The proxy's own user is found by its listener, and is always excepted
    /// unless cgroups tell it from the programs.
    #[arg(long, value_name = "USER")]
    except_uid: Vec<String>,
    /// Never connections of programs in this cgroup: that of the proxy, where it runs as the same user as the programs.
    #[arg(long, value_name = "PATH")]
    except_cgroup: Vec<String>,
    /// Also connections to addresses of this machine.
    #[arg(long)]
    loopback: bool,
    /// Stay until SIGTERM, and capture only while the proxy listens: while it does not, programs connect directly.
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Print the rules, for 'nft -f', and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    seen_as: SeenAs,
}

/// Sets up, or undoes.
pub(crate) async fn run(args: CaptureArgs) -> Result<ExitCode, Failure> {
    if args.undo {
        let removed = remove()?;
        return tell_removed(&args, removed);
    }
    if args.watch {
        return watch(&args).await;
    }
    let rules = rules(&args, who::listens(&args.at))?;
    if args.dry_run {
        let routes = route::steps(&rules.passing_families());
        let routes: String = routes.iter().map(|step| format!("# ip {step}\n")).collect();
        return tell(&args, &state(&rules, false), &format!("{routes}{}", rules.script()));
    }
    load(&rules)?;
    tell(&args, &state(&rules, true), &format!("{}\n", rules.words()))
}

fn tell(args: &CaptureArgs, state: &Value, words: &str) -> Result<ExitCode, Failure> {
    output::print_one(args.seen_as.format(), state, words).map(|()| ExitCode::SUCCESS)
}

fn tell_removed(args: &CaptureArgs, removed: bool) -> Result<ExitCode, Failure> {
    let words = if removed { "nothing is captured any more\n" } else { "nothing was captured\n" };
    tell(args, &json!({ "table": TABLE, "captured": false, "changed": removed }), words)
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
        "routes": route::steps(&rules.passing_families()),
    })
}

/// Puts rules, and the routes that they need, in the place of earlier ones. Routes come first: without them what is marked would go
/// nowhere, and without marks they are nothing to anybody.
fn load(rules: &Rules) -> Result<(), Failure> {
    let families = rules.passing_families();
    let loaded = route::add(&families).and_then(|()| nft::load(&rules.script()));
    if let Err(failure) = loaded {
        // Earlier rules may be there, which need theirs.
        if !nft::has_table()? {
            route::keep(&[])?;
        }
        return Err(failure);
    }
    route::keep(&families).map(drop)
}

/// Removes all of it; whether there was any.
fn remove() -> Result<bool, Failure> {
    let (rules, routes) = (nft::remove(), route::keep(&[]));
    Ok(rules? | routes?)
}

/// Captures no more; whether anything was. A proxy that stops listens no longer, and has yet to end what is under way.
fn pause() -> Result<bool, Failure> {
    let captured = nft::has_table()?;
    if captured {
        nft::load(&rules::rest())?;
    }
    Ok(captured)
}

/// Captures whenever the proxy listens, and not when it does not. Nothing is captured when it ends, however it does.
async fn watch(args: &CaptureArgs) -> Result<ExitCode, Failure> {
    let shutdown = signals::shutdown()?;
    // A mistake in what was given is told before an earlier command's rules are touched.
    if let Some(proxy) = who::listens(&args.at) {
        rules(args, Some(proxy))?;
    }
    let watched = follow(args, shutdown).await;
    // Why it ended says more than that there was nothing to remove it with.
    let removed = remove();
    watched?;
    tell_removed(args, removed?)
}

/// Captures and stops capturing, until `shutdown` or an error.
async fn follow(args: &CaptureArgs, shutdown: impl Future<Output = ()>) -> Result<(), Failure> {
    tokio::pin!(shutdown);
    // Not known at first: an earlier one may have been killed.
    let mut captured = None;
    loop {
        let listens = who::listens(&args.at);
        if captured != Some(listens) {
            match listens {
                Some(_) => {
                    let rules = rules(args, listens)?;
                    load(&rules)?;
                    tell(args, &state(&rules, true), &format!("{}\n", rules.words()))?;
                }
                None => {
                    let state = json!({ "table": TABLE, "captured": false, "changed": pause()? });
                    tell(args, &state, "the proxy does not listen; programs connect directly\n")?;
                }
            }
            captured = Some(listens);
        }
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// What to capture, given as whom the proxy listens.
fn rules(args: &CaptureArgs, proxy: Option<u32>) -> Result<Rules, Failure> {
    let mut rules = Rules {
        at: rules::places(&args.at)?,
        ports: places::merged(&args.port),
        to: args.to.iter().copied().collect(),
        from: args.from.iter().copied().collect(),
        own: args.own,
        uids: who::uids(&args.uid)?,
        cgroups: who::cgroups(&args.cgroup)?,
        except_uids: who::uids(&args.except_uid)?,
        except_cgroups: who::cgroups(&args.except_cgroup)?,
        loopback: args.loopback,
    };
    rules.reach()?;
    rules.except(proxy)?;
    Ok(rules)
}
