//! The command line: commands and their arguments. The crates `processes`, `demo` and `cli` implement the commands.

pub(crate) mod completion;
mod config_file;
mod option_aliases;
#[cfg(test)]
mod reference_check;

use std::error::Error as _;

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use fairmesh_cli::{
    audit, calibrate, call, check, dev, drain, explain, identity, records, security, shards, sim, version,
    wait,
};
use fairmesh_console::{failure::Failure, output};
use fairmesh_model::Invalid;
use fairmesh_processes::{
    agent, control, dns, gateway, kernel, keyserver, lookaside, node, proxy, register, rib,
};
use fairmesh_traffic::{cost, imbalance, probe, tap, trace, traffic};

use crate::man;

/// A service mesh: programs call services by name, and every call goes straight to the right server.
#[derive(Debug, Parser)]
#[command(name = "fairmesh", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the arguments. For help, the version and errors of clap itself, clap prints the text and ends the
    /// process.
    pub(crate) fn read() -> Result<Self, Failure> {
        let arguments: Vec<_> = std::env::args_os().collect();
        output::select_messages(arguments.iter().filter_map(|argument| argument.to_str()));
        let mut command = command();
        let arguments = config_file::expand(&command, arguments)?;
        for (old, new) in option_aliases::old_names(&command, &arguments) {
            output::warn(format!(
                "the option --{old} is --{new} now; the next release does not know --{old}"
            ));
        }
        let parsed =
            command.try_get_matches_from_mut(arguments).and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| refused(&error).or_else(|| usage(&error)).unwrap_or_else(|| error.exit()))
    }
}

/// The tree of commands, for the parser, completion and manual pages.
pub(crate) fn command() -> clap::Command {
    config_file::add_option(Cli::command())
}

/// Returns the failure for an argument that one of our types rejects, so that it is reported like every other error;
/// clap would join problem and hint.
fn refused(error: &clap::Error) -> Option<Failure> {
    if let Some(failure) = file_without_option(error) {
        return Some(failure);
    }
    let invalid = error.source()?.downcast_ref::<Invalid>()?;
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let argument = text(ContextKind::InvalidArg);
    Some(Failure::refused(format!("{argument}: {}", invalid.problem), invalid.hint.as_str()))
}

/// Returns the failure for a usage error, if messages are printed as JSON; `None` if clap prints the error, or help.
fn usage(error: &clap::Error) -> Option<Failure> {
    if !output::has_json_messages() || !error.use_stderr() {
        return None;
    }
    let text = error.to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    Some(Failure::refused(message.trim_start_matches("error: ").trim(), rest.trim()))
}

/// The failure for a YAML file given without `-f` to a command that requires `-f`.
fn file_without_option(error: &clap::Error) -> Option<Failure> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let is_yaml = [".yaml", ".yml"].iter().any(|end| argument.ends_with(end)) || argument == "-";
    is_yaml.then(|| {
        Failure::refused(
            format!("unexpected argument '{argument}'"),
            format!("give files with -f {argument}"),
        )
    })
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, or refused by the other side; 2 wrong usage or invalid input, \
    nothing was changed; 3 'diff' or 'rib verify' found differences, or 'lint' warned; 4 'drain' ended before every caller had moved.";

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the control plane: the routing information base, the registry and the admin API.
    Control(control::ControlArgs),
    /// Run this machine's agent: the copy of the routing information that local programs read.
    Agent(agent::AgentArgs),
    /// Run a proxy for programs that cannot link the library: they call services by host name.
    Proxy(Box<proxy::ProxyArgs>),
    /// Run a DNS server beside a proxy: cart.shop.mesh is the address at which programs reach the service shop/cart.
    Dns(dns::DnsArgs),
    /// Have the kernel send requests of unmodified programs, by eBPF.
    #[command(subcommand)]
    Kernel(kernel::KernelCommand),
    /// Run a lookaside: it picks endpoints over gRPC for programs on machines without an agent.
    Lookaside(lookaside::LookasideArgs),
    /// Run a key server: it signs TLS handshakes of proxies with private keys that never leave it.
    Keyserver(keyserver::KeyserverArgs),
    /// Run a replica of a gateway that routes for many tenants.
    Gateway(Box<gateway::GatewayCommandArgs>),
    /// Run the part of a gateway on a tenant's node: it captures the connections of pods and forwards them.
    Node(Box<node::NodeArgs>),
    /// Run replicas of the routing information base, move it from one store to another, and show its state.
    #[command(subcommand)]
    Rib(rib::RibCommand),
    /// Run control plane, agent and proxy in one process, to develop with.
    Dev(dev::DevArgs),
    /// Run a small shop on this machine, inject failures under load, and report the calls.
    Demo(fairmesh_demo::DemoArgs),
    /// Run a program, or observe a running one, and keep it registered.
    Register(register::RegisterArgs),

    /// Write services, policies, topology, hosts and shard maps from YAML.
    Apply(records::apply::ApplyArgs),
    /// Show what YAML would change; exits 3 when it would change something.
    Diff(records::diff::DiffArgs),
    /// Find what is wrong with YAML files, without a control plane; exits 3 when there is a warning.
    Lint(records::lint::LintArgs),
    /// List records.
    Get(records::get::GetArgs),
    /// Find what is wrong with the mesh, as seen from this machine, and say what to do; exits 1 if something is.
    Check(check::CheckArgs),
    /// Wait until processes and services are ready.
    Wait(wait::WaitArgs),
    /// Show all details of one record.
    Describe(records::describe::DescribeArgs),
    /// List the changes of configuration: declarations, policies, workloads, topology, hosts, authorization.
    History(records::history::HistoryArgs),
    /// Restore an earlier value of configuration.
    Rollback(records::rollback::RollbackArgs),
    /// Delete configuration; its history stays.
    Delete(records::delete::DeleteArgs),
    /// Take instances out of service, and wait until every caller has moved.
    Drain(drain::DrainArgs),
    /// Put drained instances that still run back into service.
    Undrain(drain::UndrainArgs),
    /// Show and change shard maps.
    #[command(subcommand)]
    Shards(shards::ShardsCommand),
    /// Explain, step by step, how a request is routed.
    Explain(explain::ExplainArgs),
    /// Show who wrote what, and verify that the log was not changed.
    Audit(audit::AuditArgs),
    /// Show the trust domain, let agents join it, and rotate its keys.
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// Find what is not protected.
    #[command(subcommand)]
    Security(security::SecurityCommand),
    /// Show what the planner of region tables knows and decides, and hold it.
    #[command(subcommand)]
    Traffic(traffic::TrafficCommand),
    /// Report the cores wasted by uneven load, with their causes.
    Imbalance(imbalance::ImbalanceArgs),
    /// Show the network between zones, as agents that probe each other see it.
    Probe(probe::ProbeArgs),
    /// Show what the traffic of services costs, and whose calls use their CPU.
    Cost(cost::CostArgs),
    /// Show the slowest and the failed traces of the last hour, or one of them with its attempts.
    Trace(trace::TraceArgs),
    /// Show who calls whom, how well and at what cost, in the terminal.
    Top(fairmesh_top::TopArgs),
    /// Call a service by name through the library.
    Call(call::CallArgs),
    /// Print requests of a service as proxies complete them.
    Tap(tap::TapArgs),
    /// Measure the speed of this machine, and propose its host type.
    Calibrate(calibrate::CalibrateArgs),

    /// Simulate fleets with the routing code of production.
    #[command(subcommand)]
    Sim(sim::SimCommand),

    /// Print the JSON Schema of the documents that 'apply' reads, for editors.
    Schema,
    /// Print the completion script of a shell. It completes the names of services too.
    Completions {
        /// The shell.
        #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
        shell: String,
    },
    /// Write the manual pages of all commands into a folder.
    Man(man::ManArgs),
    /// Print the version of this binary, and of the processes that it reaches.
    Version(version::VersionArgs),
}

impl Command {
    /// Whether the command runs best in a single-threaded process.
    pub(crate) fn runs_on_one_thread(&self) -> bool {
        matches!(self, Self::Proxy(args) if args.runs_on_one_thread())
    }

    /// Whether the command is a process that has many connections from the mesh and forwards no requests.
    pub(crate) fn serves_many_peers(&self) -> bool {
        use rib::RibCommand;
        matches!(
            self,
            Self::Control(_)
                | Self::Agent(_)
                | Self::Dns(_)
                | Self::Lookaside(_)
                | Self::Keyserver(_)
                | Self::Rib(RibCommand::Replica(_))
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    #[test]
    fn command_tree_is_valid() {
        super::command().debug_assert();
    }

    /// Collects all visible commands below `command`, with their full names.
    fn walk(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
        for below in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
            let name = format!("{name}{} ", below.get_name());
            walk(below, &name, found);
            found.push((name.trim().to_owned(), below.clone()));
        }
    }

    fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
        command.get_arguments().find(|argument| argument.get_long() == Some(name))
    }

    /// Commands without `--format`: processes, and commands whose output another program writes or reads.
    const WITHOUT_FORMAT: &[&str] = &[
        "control",
        "agent",
        "proxy",
        "dns",
        "lookaside",
        "keyserver",
        "gateway",
        "node",
        "rib replica",
        "dev",
        "register",
        "kernel",
        "kernel run",
        "call",
        "wait",
        "completions",
        "schema",
        "man",
        "rib",
        "rib export",
        "shards",
        "identity",
        "identity federation",
        "identity token-issuers",
        "security",
        "traffic",
        "sim",
        "traffic hold",
        "traffic resume",
        "kernel detach",
    ];

    #[test]
    fn all_commands_share_output_options() {
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        walk(&super::command(), "", &mut found);
        for (name, command) in &found {
            let (json, output) = (option(command, "json"), option(command, "output"));
            let is_flag = json.is_some_and(|json| !json.get_action().takes_values());
            let forms: Vec<_> = output.into_iter().flat_map(Arg::get_possible_values).collect();
            let has = |form: &str| forms.iter().any(|value| value.get_name() == form);
            let complete = is_flag
                && output.is_some_and(|output| output.get_short() == Some('o'))
                && ["table", "json", "yaml"].iter().all(|form| has(form));
            let without = json.is_none() && output.is_none() && WITHOUT_FORMAT.contains(&name.as_str());
            if !complete && !without {
                wrong.push(name);
            }
        }
        assert!(wrong.is_empty(), "these print something, and lack --json or -o, or have others: {wrong:?}");
    }

    #[test]
    fn option_has_same_meaning_in_all_commands() {
        let mut found = Vec::new();
        walk(&super::command(), "", &mut found);
        // Options, and their environment variables.
        let common = [("control", "FAIRMESH_CONTROL"), ("agent", "FAIRMESH_AGENT")];
        for (command_name, command) in &found {
            for argument in command.get_arguments().filter_map(Arg::get_long) {
                assert!(
                    argument.chars().all(|c| c.is_ascii_lowercase() || c == '-'),
                    "{command_name} --{argument}"
                );
            }
            for (name, variable) in common {
                let Some(argument) =
                    option(command, name).filter(|argument| argument.get_action().takes_values())
                else {
                    continue;
                };
                // In some of these commands, `--agent` names the identities of agents instead of an address.
                let named = argument.get_env().map(|env| env.to_string_lossy().into_owned());
                assert!(
                    named.as_deref() == Some(variable) || WITHOUT_FORMAT.contains(&command_name.as_str()),
                    "{command_name} --{name}: {named:?}"
                );
            }
        }
    }
}
