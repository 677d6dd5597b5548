//! Retirement of trusted roots.

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_identity::sha256;
use fairmesh_wire::v1::{DescribeAuthorityRequest, DescribeAuthorityResponse, RetireRootRequest};

use super::{certificate_authority::shown, revoke::hexadecimal};

/// Minimum number of digits to name a root.
const MIN_DIGITS: usize = 8;

/// Arguments of `fairmesh identity retire`.
#[derive(Debug, Args)]
pub struct RetireArgs {
    /// The SHA-256 of the root, as `fairmesh identity show` has it, or at least its first 8 digits.
    #[arg(value_name = "SHA-256", value_parser = read_digits)]
    root: String,
    /// Only say whether the root can be retired.
    #[arg(long)]
    dry_run: bool,
    /// Retire the root even though its certificates may be in use: processes with such a certificate are refused until
    /// they join again.
    #[arg(long)]
    force: bool,
    /// Why, for the log of writes.
    #[arg(long, default_value = "")]
    message: String,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn read_digits(text: &str) -> Result<String, String> {
    match text.len() >= MIN_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => {
            Err(format!("give at least the first {MIN_DIGITS} hexadecimal digits of the root's SHA-256"))
        }
    }
}

/// Retires a root, and prints the resulting authority.
pub(super) async fn run(args: RetireArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let described = connection.authority().describe_authority(DescribeAuthorityRequest {}).await;
    let described = described.map_err(|status| Failure::from_status(&status))?.into_inner();
    let root = find(&described, &args.root)?;
    let request = RetireRootRequest {
        sha256: root.to_vec().into(),
        dry_run: args.dry_run,
        force: args.force,
        message: args.message,
    };
    let retired = connection.authority().retire_root(request).await;
    let retired = retired.map_err(|status| Failure::from_status(&status))?.into_inner();
    let digest = hexadecimal(&root);
    let (mut value, shown) = shown(retired)?;
    let said = match args.dry_run {
        true => format!("the root {digest} would be retired, which leaves\n\n"),
        false => format!(
            "the root {digest} is retired: agents trust it no longer within 10 s, programs once they have renewed, within 8 hours; those with \
             certificates beneath it do until they have joined again\n\n"
        ),
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert("root".into(), digest.into());
        fields.insert("dryRun".into(), args.dry_run.into());
    }
    output::print_one(args.output.format(), &value, &format!("{said}{shown}"))
}

/// The digest of the root that begins with these digits.
fn find(described: &DescribeAuthorityResponse, digits: &str) -> Result<[u8; 32], Failure> {
    let roots = described.bundle.as_ref().map(|bundle| &bundle.roots[..]).unwrap_or_default();
    let begins = |digest: &[u8; 32]| hexadecimal(digest).starts_with(digits);
    let retired = described.bundle.as_ref().map(|bundle| &bundle.retired[..]).unwrap_or_default();
    let mut retired = retired.iter().filter_map(|digest| <[u8; 32]>::try_from(&digest[..]).ok());
    let mut found = roots.iter().map(|root| sha256(root)).filter(begins);
    match (found.next(), found.next()) {
        (Some(digest), None) => Ok(digest),
        (None, _) if retired.any(|root| begins(&root)) => {
            Err(Failure::failed(format!("the root whose SHA-256 begins with {digits} is retired already")))
        }
        (None, _) => Err(Failure::failed_with(
            format!("no root of the trust domain has a SHA-256 that begins with {digits}"),
            "see 'fairmesh identity show'",
        )),
        (Some(_), Some(_)) => Err(Failure::failed_with(
            format!("several roots have a SHA-256 that begins with {digits}"),
            "give more digits",
        )),
    }
}
