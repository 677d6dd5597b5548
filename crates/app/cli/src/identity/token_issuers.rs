//! Issuers of end-user tokens that servers verify.

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
use fairmesh_control::{MAX_JWKS_DOCUMENT, WebUrl, fetch};
use fairmesh_model::{Invalid, Prefix, Record, RecordKey, TokenIssuer, TokenIssuers};
use fairmesh_tokens::{JwksError, KeySet};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition::Kind},
};
use serde_json::{Value, json};

use super::{ChangeArgs, ReadArgs};

/// Subcommands of `fairmesh identity token-issuers`.
#[derive(Debug, Subcommand)]
pub enum TokenIssuersCommand {
    /// List the issuers whose tokens of end users services may accept.
    List(ReadArgs),
    /// Verify tokens of an issuer by these keys, instead of those before.
    Add(AddArgs),
    /// Verify no tokens of an issuer any more.
    Remove(RemoveArgs),
}

/// Arguments of `fairmesh identity token-issuers add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The issuer, exactly as its tokens have it in 'iss'.
    issuer: String,
    /// Its public keys: a file with a JWKS (- reads standard input), or the https URL of one, which control planes fetch again every minute.
    #[arg(long, value_name = "FILE|URL")]
    jwks: String,
    #[command(flatten)]
    of: ChangeArgs,
}

/// Arguments of `fairmesh identity token-issuers remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The issuer.
    issuer: String,
    #[command(flatten)]
    of: ChangeArgs,
}

pub(super) async fn run(command: TokenIssuersCommand) -> Result<(), Failure> {
    match command {
        TokenIssuersCommand::List(args) => list(args).await,
        TokenIssuersCommand::Add(args) => add(args).await,
        TokenIssuersCommand::Remove(args) => remove(args).await,
    }
}

async fn list(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let (all, _) = read(&connection).await?;
    let mut listing = Listing::new(&["ISSUER", "KEYS", "JWKS"]);
    listing.why_empty = Some("servers verify no tokens of end users".into());
    for one in &all.issuers {
        let served = url_of(one).unwrap_or_else(|| "given".into());
        listing.add(vec![one.issuer.clone(), keys_of(one).to_string(), served], value(one));
    }
    listing.print(args.output.format())
}

async fn add(args: AddArgs) -> Result<(), Failure> {
    let url = match args.jwks.contains("://") {
        true => Some(args.jwks.parse::<WebUrl>().map_err(|e: Invalid| Failure::failed(e.within("jwks")))?),
        false => None,
    };
    let document = match &url {
        Some(url) => fetch(url, None, MAX_JWKS_DOCUMENT).await.map_err(Failure::failed)?.to_vec(),
        None => document(Path::new(&args.jwks))?,
    };
    let unusable = |problem: JwksError| Failure::failed(format!("the JWKS {problem}"));
    let keys = KeySet::reduce(&document).map_err(unusable)?;
    if KeySet::parse(&keys).is_ok_and(|keys| keys.is_empty()) {
        return Err(unusable(JwksError::NoKey));
    }
    let added = TokenIssuer { issuer: args.issuer, url: url.map(|_| args.jwks), keys };
    let connection = connect::connect(&args.of.target).await?;
    change(&connection, &args.of.message, |all| {
        all.issuers.retain(|one| one.issuer != added.issuer);
        all.issuers.push(added.clone());
        Ok(())
    })
    .await?;
    let text = format!(
        "services may accept tokens of {}: name it in 'tokens' of their 'kind: Authorization'\n",
        added.issuer
    );
    output::print_one(args.of.output.format(), &value(&added), &text)
}

async fn remove(args: RemoveArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.of.target).await?;
    let issuer = args.issuer;
    change(&connection, &args.of.message, |all| {
        let before = all.issuers.len();
        all.issuers.retain(|one| one.issuer != issuer);
        let missing = format!(
            "{issuer} is no issuer of tokens; `fairmesh identity token-issuers list` shows which are"
        );
        if all.issuers.len() == before { Err(Failure::failed(missing)) } else { Ok(()) }
    })
    .await?;
    let text = format!("tokens of {issuer} are refused\n");
    output::print_one(args.of.output.format(), &json!({ "issuer": issuer }), &text)
}

fn document(path: &Path) -> Result<Vec<u8>, Failure> {
    // One byte more than the limit, so that a longer document is noticed.
    let most = MAX_JWKS_DOCUMENT as u64 + 1;
    let mut document = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(most).read_to_end(&mut document),
        false => File::open(path).and_then(|file| file.take(most).read_to_end(&mut document)),
    };
    let read = read.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    match read > MAX_JWKS_DOCUMENT {
        true => Err(Failure::failed(format!("{} has more than {MAX_JWKS_DOCUMENT} bytes", path.display()))),
        false => Ok(document),
    }
}

/// URL of the keys of an issuer, without its query, which may contain a secret.
fn url_of(issuer: &TokenIssuer) -> Option<String> {
    let url = issuer.url.as_ref()?;
    Some(url.parse::<WebUrl>().map_or_else(|_| "unreadable".into(), |url| url.to_string()))
}

fn keys_of(issuer: &TokenIssuer) -> usize {
    KeySet::parse(&issuer.keys).map_or(0, |keys| keys.len())
}

/// An issuer as JSON, with the number of its keys.
pub(crate) fn value(issuer: &TokenIssuer) -> Value {
    json!({ "issuer": issuer.issuer, "keys": keys_of(issuer), "url": url_of(issuer) })
}

/// Reads the record, and the condition that it is unchanged when written.
async fn read(connection: &Connection) -> Result<(TokenIssuers, Kind), Failure> {
    let key = RecordKey::TokenIssuers;
    let mut found = (TokenIssuers::default(), Kind::Absent(true));
    for stored in rib_reader::read(connection, &[Prefix::from(&key)]).await? {
        if let Record::TokenIssuers(issuers) = record_encoding::decode(&key, &stored.value)? {
            found = (issuers, Kind::Revision(stored.revision));
        }
    }
    Ok(found)
}

/// Changes the record, unless another change comes first.
async fn change(
    connection: &Connection,
    message: &str,
    edit: impl FnOnce(&mut TokenIssuers) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut all, unchanged) = read(connection).await?;
    edit(&mut all)?;
    all.validate()?;
    let op = Op {
        key: RecordKey::TokenIssuers.to_string(),
        value: Some(record_encoding::encode(&all.into())),
        condition: Some(Condition { kind: Some(unchanged) }),
    };
    let request = ApplyRequest { ops: vec![op], dry_run: false, message: message.to_owned() };
    connection.admin().apply(request).await?;
    Ok(())
}
