//! Revocations of identities.

use std::time::{Duration, SystemTime};

use clap::Args;
use fairmesh_console::{connect, failure::Failure, output, rib_reader};
use fairmesh_model::{
    Invalid, Prefix, Record, RecordKey, Revocation, Revocations, RevokedCertificates, SpiffeId, SpiffePath,
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{ApplyRequest, Condition, Op, condition::Kind},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::ChangeArgs;
use fairmesh_console::output::timestamp;

/// Revocations of certificates are removed after this time, when the certificates have expired: their lifetime plus
/// clock skew.
const KEPT: Duration = Duration::from_secs(25 * 3600);
/// Interval at which the clock is read while waiting for the next second.
const CLOCK_CHECK: Duration = Duration::from_millis(20);

/// Arguments of `fairmesh identity revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The identity: tenant/service, fairmesh/role/name, or with its trust domain.
    #[arg(value_parser = read_path)]
    id: SpiffePath,
    /// Revoke only the certificate with this serial number, in hexadecimal as logs and `openssl x509 -serial` have it.
    #[arg(long, value_parser = read_serial, value_name = "HEX", conflicts_with = "issued_before")]
    serial: Option<Serial>,
    /// Revoke only certificates that were issued before this time, as 2026-11-26T02:00:00Z, or now: then what was issued in this
    /// second too.
    #[arg(long, value_parser = read_time, value_name = "TIME")]
    issued_before: Option<u64>,
    /// Replace a record of revocations that cannot be read. Its revocations are lost: `fairmesh audit --key
    /// /g/identity/revocations` shows them.
    #[arg(long)]
    replace_unreadable: bool,
    #[command(flatten)]
    of: ChangeArgs,
}

/// Arguments of `fairmesh identity restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The identity whose revocations are all removed.
    #[arg(value_parser = read_path)]
    id: SpiffePath,
    #[command(flatten)]
    of: ChangeArgs,
}

/// A serial number without leading zeros.
#[derive(Clone, Debug)]
struct Serial(Vec<u8>);

/// Adds a revocation, which reaches every process within seconds.
pub(super) async fn revoke(args: RevokeArgs) -> Result<(), Failure> {
    let certificates = match (args.serial, args.issued_before) {
        (Some(Serial(serial)), _) => RevokedCertificates::Serial(serial),
        (None, Some(time)) => RevokedCertificates::IssuedBefore(time),
        (None, None) => RevokedCertificates::All,
    };
    if let RevokedCertificates::IssuedBefore(time) = certificates {
        wait_until(time).await;
    }
    let now = now();
    let revoked = Revocation { path: args.id, certificates, at: now };
    let connection = connect::connect(&args.of.target).await?;
    change(&connection, (&args.of.message, args.replace_unreadable), |all| {
        all.entries.retain(|one| {
            let is_over =
                one.certificates != RevokedCertificates::All && one.at.saturating_add(KEPT.as_secs()) < now;
            let is_same = one.path == revoked.path && one.certificates == revoked.certificates;
            !is_over && !is_same
        });
        all.entries.push(revoked.clone());
    })
    .await?;
    let text = format!(
        "{} of {} revoked: refused, and open connections closed, within 10 s; `fairmesh identity restore {}` undoes it\n",
        describe(&revoked.certificates),
        revoked.path,
        revoked.path
    );
    output::print_one(args.of.output.format(), &value(&revoked), &text)
}

/// Removes the revocations of an identity.
pub(super) async fn restore(args: RestoreArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.of.target).await?;
    let mut removed = 0;
    change(&connection, (&args.of.message, false), |all| {
        let before = all.entries.len();
        all.entries.retain(|one| one.path != args.id);
        removed = before - all.entries.len();
    })
    .await?;
    if removed == 0 {
        return Err(Failure::failed(format!(
            "{} is not revoked; `fairmesh identity list` shows what is",
            args.id
        )));
    }
    let item = json!({ "id": args.id.to_string(), "removed": removed });
    output::print_one(args.of.output.format(), &item, &format!("{} is accepted again\n", args.id))
}

/// Changes the record, unless another change comes first. A record that cannot be read is only replaced on request.
async fn change(
    connection: &Connection,
    (message, replaces_unreadable): (&str, bool),
    edit: impl FnOnce(&mut Revocations),
) -> Result<(), Failure> {
    let key = RecordKey::Revocations;
    let (mut all, mut unchanged) = (Revocations::default(), Kind::Absent(true));
    for stored in rib_reader::read(connection, &[Prefix::from(&key)]).await? {
        unchanged = Kind::Revision(stored.revision);
        match record_encoding::decode(&key, &stored.value) {
            Ok(Record::Revocations(found)) => all = found,
            Err(invalid) if !replaces_unreadable => return Err(unreadable(&invalid)),
            Ok(_) | Err(_) => {}
        }
    }
    edit(&mut all);
    all.validate()?;
    let op = Op {
        key: key.to_string(),
        value: Some(record_encoding::encode(&Record::Revocations(all))),
        condition: Some(Condition { kind: Some(unchanged) }),
    };
    let request = ApplyRequest { ops: vec![op], dry_run: false, message: message.to_owned() };
    connection.admin().apply(request).await?;
    Ok(())
}

fn unreadable(invalid: &Invalid) -> Failure {
    Failure::failed_with(
        format!("the record of revocations cannot be read: {}", invalid.problem),
        "use a command of the release that wrote it; or replace it with 'fairmesh identity revoke ID --replace-unreadable', which \
         loses its revocations ('fairmesh audit --key /g/identity/revocations' shows them)",
    )
}

/// The revoked certificates as text.
pub(crate) fn describe(certificates: &RevokedCertificates) -> String {
    match certificates {
        RevokedCertificates::All => "all certificates".into(),
        RevokedCertificates::Serial(serial) => format!("the certificate {}", hexadecimal(serial)),
        RevokedCertificates::IssuedBefore(time) => format!("certificates issued before {}", timestamp(*time)),
    }
}

/// The revoked certificates of an identity as text; `None` if there are none.
pub(crate) fn describe_of(revocations: &Revocations, path: &SpiffePath) -> Option<String> {
    let of_path = revocations.entries.iter().filter(|one| one.path == *path);
    let described: Vec<_> = of_path.map(|one| describe(&one.certificates)).collect();
    (!described.is_empty()).then(|| described.join(", "))
}

/// A revocation as JSON.
pub(super) fn value(one: &Revocation) -> Value {
    let (serial, before) = match &one.certificates {
        RevokedCertificates::All => (None, None),
        RevokedCertificates::Serial(serial) => (Some(hexadecimal(serial)), None),
        RevokedCertificates::IssuedBefore(time) => (None, Some(timestamp(*time))),
    };
    let revoked = timestamp(one.at);
    json!({ "id": one.path.to_string(), "serial": serial, "issuedBefore": before, "revoked": revoked })
}

/// Formats bytes as hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_path(text: &str) -> Result<SpiffePath, String> {
    match text.starts_with("spiffe://") {
        true => text.parse::<SpiffeId>().map(|id| id.path),
        false => text.parse(),
    }
    .map_err(|error| error.to_string())
}

fn read_serial(text: &str) -> Result<Serial, String> {
    let wrong = || "write the number in hexadecimal, such as 0a1b2c".to_owned();
    let digits: String = text.chars().filter(|one| *one != ':').collect();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(wrong());
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
    let bytes: Result<Vec<u8>, _> = (0..digits.len()).step_by(2).map(byte).collect();
    let bytes: Vec<u8> = bytes.map_err(|_| wrong())?.into_iter().skip_while(|byte| *byte == 0).collect();
    if bytes.is_empty() { Err(wrong()) } else { Ok(Serial(bytes)) }
}

fn read_time(text: &str) -> Result<u64, String> {
    let now = now();
    if text == "now" {
        // Certificates record the second in which they were issued, and this second has not ended.
        return Ok(now + 1);
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "write a time such as 2026-11-26T02:00:00Z, or now".to_owned())?;
    match u64::try_from(time.as_second()) {
        Ok(time) if (1..=now).contains(&time) => Ok(time),
        _ => Err("write a time that has passed: renewed certificates have to be accepted".into()),
    }
}

/// Waits until a second has begun (at most the next one), so that replacements of revoked certificates are issued in
/// it.
async fn wait_until(second: u64) {
    while now() < second {
        sleep(CLOCK_CHECK).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "a date for people and records, which no test moves")]
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
