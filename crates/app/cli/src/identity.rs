//! `fairmesh identity`: the trust domain, its agents and its keys.

mod agents;
mod certificate_authority;
mod federation;
mod plaintext;
mod retire_root;
mod revoke;
mod token;
mod token_issuers;
mod whoami;

use std::process::ExitCode;

use clap::Subcommand;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    failure::Failure,
};

pub(crate) use federation::{federated_value, value as bundle_value};
pub(crate) use revoke::{describe as describe_revoked, describe_of as describe_revocations_of};
pub(crate) use token_issuers::value as token_issuer_value;

/// Subcommands of `fairmesh identity`.
#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// List the agents that joined the trust domain, the programs without one that are connected, and the identities that are revoked.
    List(ReadArgs),
    /// Show the trust domain: its roots, and the key that signs certificates.
    Show(ReadArgs),
    /// Show who you are to the control plane: your identity, the user and the groups of your token, and your roles.
    Whoami(ReadArgs),
    /// List the callers that reach services in plaintext, as permissive policies allow.
    Plaintext(plaintext::PlaintextArgs),
    /// Make a token with which one agent, or a program that runs without one, joins, once: on the control plane's machine, as its user.
    Token(token::TokenArgs),
    /// Replace the key that signs certificates: on the control plane's machine, as its user.
    Rotate(certificate_authority::RotateArgs),
    /// Trust a root no longer that was replaced by `rotate --root`: on the control plane's machine, as its user.
    Retire(retire_root::RetireArgs),
    /// Refuse the certificates of an identity from now on, and close its connections.
    Revoke(revoke::RevokeArgs),
    /// Accept an identity again that was revoked.
    Restore(revoke::RestoreArgs),
    /// Other trust domains, whose callers and servers may be named in policies and services.
    #[command(subcommand)]
    Federation(federation::FederationCommand),
    /// Identity providers, whose tokens of end users services may accept and name in rules.
    #[command(subcommand)]
    TokenIssuers(token_issuers::TokenIssuersCommand),
}

/// Arguments of a command that reads.
#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of a command that changes a record.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Why, for the log of writes.
    #[arg(long, default_value = "")]
    message: String,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the subcommand.
pub async fn run(command: IdentityCommand) -> Result<ExitCode, Failure> {
    match command {
        IdentityCommand::List(args) => agents::list(args).await,
        IdentityCommand::Show(args) => certificate_authority::show(args).await,
        IdentityCommand::Whoami(args) => whoami::run(args).await,
        IdentityCommand::Plaintext(args) => plaintext::run(args).await,
        IdentityCommand::Token(args) => token::run(args).await,
        IdentityCommand::Rotate(args) => certificate_authority::rotate(args).await,
        IdentityCommand::Retire(args) => retire_root::run(args).await,
        IdentityCommand::Revoke(args) => revoke::revoke(args).await,
        IdentityCommand::Restore(args) => revoke::restore(args).await,
        IdentityCommand::Federation(command) => federation::run(command).await,
        IdentityCommand::TokenIssuers(command) => token_issuers::run(command).await,
    }?;
    Ok(ExitCode::SUCCESS)
}
