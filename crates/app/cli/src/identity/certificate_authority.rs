//! The certificate authority.

use clap::Args;
use fairmesh_console::{
    arguments::{Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_identity::CertificateInfo;
use fairmesh_model::{Invalid, TrustBundle};
use fairmesh_wire::v1::{DescribeAuthorityRequest, DescribeAuthorityResponse, RotateAuthorityRequest};
use serde_json::{Value, json};

use super::{ReadArgs, federation::jwt_keys, revoke::hexadecimal};
use fairmesh_console::output::timestamp;

/// Arguments of `fairmesh identity rotate`.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// Begin a new root too. Both are trusted from then on; rotate again once all programs have renewed, after 8 hours, to
    /// sign with the new one.
    #[arg(long)]
    root: bool,
    /// Sign with a new root even though programs that have not renewed their certificates since it began do not trust it,
    /// and withdraw the keys before for JWT-SVIDs.
    #[arg(long, conflicts_with = "root")]
    force: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Prints the authority.
pub(super) async fn show(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let described = connection.authority().describe_authority(DescribeAuthorityRequest {}).await;
    let described = described.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(described, args.output.format())
}

/// Rotates the intermediate, or begins a root, and prints the authority.
pub(super) async fn rotate(args: RotateArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let request = RotateAuthorityRequest { root: args.root, force: args.force };
    let described = connection.authority().rotate_authority(request).await;
    let described = described.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(described, args.output.format())
}

fn print(described: DescribeAuthorityResponse, format: Format) -> Result<(), Failure> {
    let (value, text) = shown(described)?;
    output::print_one(format, &value, &text)
}

/// An authority as JSON and as text.
pub(super) fn shown(described: DescribeAuthorityResponse) -> Result<(Value, String), Failure> {
    let Some(bundle) = described.bundle else {
        let text = "the mesh has no trust domain; start a control plane with --trust-domain NAME\n";
        return Ok((json!({ "domain": null }), text.to_owned()));
    };
    let invalid = |error: Invalid| Failure::failed(error);
    let bundle = TrustBundle::try_from(bundle).map_err(invalid)?;
    let mut rows = Vec::new();
    let mut roots = Vec::new();
    for root in &bundle.roots {
        let info = CertificateInfo::of(root).map_err(Failure::failed)?;
        rows.push(vec!["root".to_owned(), info.digest.clone(), timestamp(info.expires_at)]);
        roots.push(json!({ "sha256": info.digest, "expires": timestamp(info.expires_at) }));
    }
    let retired: Vec<String> = bundle.retired.iter().map(|digest| hexadecimal(digest)).collect();
    rows.extend(retired.iter().map(|digest| vec!["retired root".to_owned(), digest.clone(), String::new()]));
    let mut issuer = Value::Null;
    if !described.issuer.is_empty() {
        let info = CertificateInfo::of(&described.issuer).map_err(Failure::failed)?;
        rows.push(vec!["intermediate".to_owned(), info.digest.clone(), timestamp(info.expires_at)]);
        issuer = json!({ "sha256": info.digest, "expires": timestamp(info.expires_at) });
    }
    let jwt_keys = jwt_keys(&bundle);
    rows.extend(jwt_keys.iter().map(|key| {
        let text = |field: &str| key[field].as_str().unwrap_or_default().to_owned();
        vec!["JWT key".to_owned(), text("kid"), text("expires")]
    }));
    let value = json!({
        "domain": bundle.domain,
        "roots": roots,
        "jwtKeys": jwt_keys,
        "retired": retired,
        "issuer": issuer,
        "rootKeyPresent": described.root_key_present,
        "openTokens": described.open_tokens,
    });
    let key = if described.root_key_present { "on this control plane's machine" } else { "elsewhere" };
    let text = format!(
        "trust domain {}\nroot key     {key}\nopen tokens  {}\n\n{}",
        bundle.domain,
        described.open_tokens,
        output::table(&["KEY", "SHA-256 OR ID", "EXPIRES"], &rows)
    );
    Ok((value, text))
}
