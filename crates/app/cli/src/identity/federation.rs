//! Trust domains that the mesh is federated with.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use clap::{Args, Subcommand};
use fairmesh_console::{
    connect,
    failure::Failure,
    output::{self, Listing},
    rib_reader,
};
use fairmesh_control::{WebUrl, fetch};
use fairmesh_identity::{CertificateInfo, MAX_BUNDLE_DOCUMENT, read_bundle_document};
use fairmesh_model::{
    BundleEndpoint, FederatedDomains, Invalid, JwtKey, Prefix, Record, RecordKey, TrustBundle, TrustDomain,
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition::Kind},
};
use serde_json::{Value, json};

use super::{ChangeArgs, ReadArgs};
use fairmesh_console::output::timestamp;

/// Subcommands of `fairmesh identity federation`.
#[derive(Debug, Subcommand)]
pub enum FederationCommand {
    /// List the trust domains whose certificates are verified beside those of the mesh.
    List(ReadArgs),
    /// Verify the certificates of another trust domain by these roots, instead of those before.
    Add(AddArgs),
    /// Verify no certificates of a trust domain any more, and close its connections.
    Remove(RemoveArgs),
}

/// Arguments of `fairmesh identity federation add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The other trust domain.
    domain: TrustDomain,
    /// The domain's roots: a file in PEM or with the JSON of a SPIFFE bundle endpoint (- reads standard input), or the
    /// https URL of a bundle endpoint, which control planes then poll.
    #[arg(long, value_name = "FILE|URL")]
    bundle: String,
    #[command(flatten)]
    of: ChangeArgs,
}

/// Arguments of `fairmesh identity federation remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The other trust domain.
    domain: TrustDomain,
    #[command(flatten)]
    of: ChangeArgs,
}

pub(super) async fn run(command: FederationCommand) -> Result<(), Failure> {
    match command {
        FederationCommand::List(args) => list(args).await,
        FederationCommand::Add(args) => add(args).await,
        FederationCommand::Remove(args) => remove(args).await,
    }
}

async fn list(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let (domains, _) = read(&connection).await?;
    let mut listing = Listing::new(&["DOMAIN", "ROOT SHA-256", "EXPIRES", "BUNDLE"]);
    listing.why_empty = Some("the trust domain is federated with no other".into());
    for bundle in &domains.bundles {
        let item = federated_value(&domains, bundle)?;
        let roots = bundle.roots.iter().map(|root| CertificateInfo::of(root).map_err(Failure::failed));
        let roots = roots.collect::<Result<Vec<_>, _>>()?;
        let digests: Vec<_> = roots.iter().map(|root| root.digest.clone()).collect();
        let ends = roots.iter().map(|root| root.expires_at).max().map(timestamp).unwrap_or_default();
        let served = url_of(&domains, &bundle.domain).unwrap_or_else(|| "given".into());
        listing.add(vec![bundle.domain.to_string(), digests.join(" "), ends, served], item);
    }
    listing.print(args.output.format())
}

/// URL of the roots of a domain, without its query, which may contain a key.
fn url_of(domains: &FederatedDomains, domain: &TrustDomain) -> Option<String> {
    let endpoint = domains.endpoints.iter().find(|one| one.domain == *domain)?;
    Some(endpoint.url.parse::<WebUrl>().map_or_else(|_| "unreadable".into(), |url| url.to_string()))
}

async fn add(args: AddArgs) -> Result<(), Failure> {
    let endpoint = endpoint(&args)?;
    let document = match &endpoint {
        Some((url, _)) => fetch(url, None, MAX_BUNDLE_DOCUMENT).await.map_err(Failure::failed)?.to_vec(),
        None => document(Path::new(&args.bundle))?,
    };
    let bundle = read_bundle_document(args.domain, &document).map_err(Failure::failed)?;
    let connection = connect::connect(&args.of.target).await?;
    refuse_own(&connection, &bundle).await?;
    let added = bundle.clone();
    change(&connection, &args.of.message, |all| {
        all.bundles.retain(|one| one.domain != added.domain);
        all.bundles.push(added);
        all.endpoints.retain(|one| one.domain != bundle.domain);
        all.endpoints.extend(endpoint.map(|(_, endpoint)| endpoint));
        Ok(())
    })
    .await?;
    let text = format!(
        "{} is federated: servers accept callers of it that a policy names by their whole id, as spiffe://{}/TENANT/SERVICE\n",
        bundle.domain, bundle.domain
    );
    output::print_one(args.of.output.format(), &value(&bundle)?, &text)
}

/// Refuses the mesh's own domain, and its own roots under another name: they vouch for no id of another domain.
async fn refuse_own(connection: &Connection, bundle: &TrustBundle) -> Result<(), Failure> {
    let own = rib_reader::trust_bundle(connection).await?.ok_or_else(|| {
        Failure::failed("the mesh has no trust domain; start a control plane with --trust-domain NAME")
    })?;
    let domain = &own.domain;
    if *domain == bundle.domain {
        return Err(Failure::failed_with(
            format!("{domain} is the trust domain of the mesh itself"),
            "give the name of the other one",
        ));
    }
    if bundle.roots.iter().any(|root| own.roots.contains(root)) {
        return Err(Failure::failed_with(
            format!("the bundle has a root of {domain}, the trust domain of the mesh itself"),
            format!("give the bundle of {}, such as ca/bundle.pem of a control plane there", bundle.domain),
        ));
    }
    Ok(())
}

async fn remove(args: RemoveArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.of.target).await?;
    let domain = args.domain;
    change(&connection, &args.of.message, |all| {
        let before = all.bundles.len();
        all.bundles.retain(|one| one.domain != domain);
        all.endpoints.retain(|one| one.domain != domain);
        let missing = format!("{domain} is not federated; `fairmesh identity federation list` shows what is");
        if all.bundles.len() == before { Err(Failure::failed(missing)) } else { Ok(()) }
    })
    .await?;
    let text = format!("{domain} is refused, and its connections are closed, within 10 s\n");
    output::print_one(args.of.output.format(), &json!({ "domain": domain.to_string() }), &text)
}

/// Bundle endpoint of the roots, if a URL was given.
fn endpoint(args: &AddArgs) -> Result<Option<(WebUrl, BundleEndpoint)>, Failure> {
    if !args.bundle.contains("://") {
        return Ok(None);
    }
    let url = args.bundle.parse().map_err(|error: Invalid| Failure::failed(error.within("bundle")))?;
    Ok(Some((url, BundleEndpoint { domain: args.domain.clone(), url: args.bundle.clone() })))
}

fn document(path: &Path) -> Result<Vec<u8>, Failure> {
    // One byte more than the limit, so that a longer document is noticed.
    let most = MAX_BUNDLE_DOCUMENT as u64 + 1;
    let mut document = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(most).read_to_end(&mut document),
        false => File::open(path).and_then(|file| file.take(most).read_to_end(&mut document)),
    };
    read.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    Ok(document)
}

/// The bundle of a domain as JSON, with its URL.
pub(crate) fn federated_value(domains: &FederatedDomains, bundle: &TrustBundle) -> Result<Value, Failure> {
    let mut value = value(bundle)?;
    if let (Some(fields), Some(url)) = (value.as_object_mut(), url_of(domains, &bundle.domain)) {
        fields.insert("url".into(), url.into());
    }
    Ok(value)
}

/// A bundle as JSON.
pub(crate) fn value(bundle: &TrustBundle) -> Result<Value, Failure> {
    let root = |root: &Vec<u8>| {
        let info = CertificateInfo::of(root).map_err(Failure::failed)?;
        Ok(json!({ "sha256": info.digest, "expires": timestamp(info.expires_at) }))
    };
    let roots: Vec<Value> = bundle.roots.iter().map(root).collect::<Result<_, Failure>>()?;
    Ok(json!({ "domain": bundle.domain.to_string(), "roots": roots, "jwtKeys": jwt_keys(bundle) }))
}

/// The keys that verify JWT-SVIDs of a domain, with their ends where they are known.
pub(super) fn jwt_keys(bundle: &TrustBundle) -> Vec<Value> {
    let key = |key: &JwtKey| {
        let jwk: Value = serde_json::from_slice(&key.jwk).unwrap_or_default();
        json!({ "kid": jwk["kid"], "expires": key.expires_at.map(timestamp) })
    };
    bundle.jwt_keys.iter().map(key).collect()
}

/// Reads the record, and the condition that it is unchanged when written.
async fn read(connection: &Connection) -> Result<(FederatedDomains, Kind), Failure> {
    let key = RecordKey::FederatedDomains;
    let mut found = (FederatedDomains::default(), Kind::Absent(true));
    for stored in rib_reader::read(connection, &[Prefix::from(&key)]).await? {
        if let Record::FederatedDomains(domains) = record_encoding::decode(&key, &stored.value)? {
            found = (domains, Kind::Revision(stored.revision));
        }
    }
    Ok(found)
}

/// Changes the record, unless another change comes first.
async fn change(
    connection: &Connection,
    message: &str,
    edit: impl FnOnce(&mut FederatedDomains) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut all, unchanged) = read(connection).await?;
    edit(&mut all)?;
    all.validate()?;
    let op = Op {
        key: RecordKey::FederatedDomains.to_string(),
        value: Some(record_encoding::encode(&Record::FederatedDomains(all))),
        condition: Some(Condition { kind: Some(unchanged) }),
    };
    let request = ApplyRequest { ops: vec![op], dry_run: false, message: message.to_owned() };
    connection.admin().apply(request).await?;
    Ok(())
}
