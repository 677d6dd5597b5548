//! Security gaps in the records of the mesh.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_console::{
    failure::Failure,
    view_reader::{ReadView, Scope, ServiceView, View, every_kind},
};
use fairmesh_identity::CertificateInfo;
use fairmesh_model::{
    AuthorizationMode, DefaultAuthorization, Invalid, MtlsMode, ServiceName, TrustBundle,
    access::{AccessRole, RoleBinding, Subject},
};
use fairmesh_wire::{handshake::Connection, v1};

use super::new_root_trust;
use crate::findings_report::{Level, Report, listed};

/// Minimum remaining lifetime of a root before its replacement should begin: a rotation of the root takes a day and
/// must be planned.
const ROTATE_BEFORE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Minimum remaining lifetime of the intermediate; a control plane with the root key replaces it a day earlier by
/// itself.
const RENEW_BEFORE: Duration = Duration::from_secs(59 * 24 * 3600);

/// Checks the authority and all records. Returns the roots of the trust domain, if there is one.
pub(super) async fn check(
    connection: &Connection,
    report: &mut Report,
) -> Result<Option<TrustBundle>, Failure> {
    let view = View::read_silently(connection, &Scope::All, &every_kind()).await?;
    report.add_unreadable(&view);
    let bundle = authority(connection, report).await?;
    if bundle.is_some() {
        transport(connection, &view, report).await?;
    }
    authorization(&view, report);
    for (name, binding) in &View::roles(connection).await?.roles {
        role(name.as_str(), &binding.value, report);
    }
    Ok(bundle)
}

/// Checks the trust domain and its certificates, if there is one.
async fn authority(connection: &Connection, report: &mut Report) -> Result<Option<TrustBundle>, Failure> {
    let described = connection.authority().describe_authority(v1::DescribeAuthorityRequest {}).await;
    let described = described.map_err(|status| Failure::from_status(&status))?.into_inner();
    let Some(bundle) = described.bundle else {
        report.add(
            "trustDomain",
            Level::Error,
            "the mesh has no trust domain: calls are plaintext, and no process proves an identity",
            "start the control planes with --trust-domain NAME (docs/security.md)",
        );
        return Ok(None);
    };
    let bundle = TrustBundle::try_from(bundle).map_err(|error: Invalid| Failure::failed(error))?;
    report.ok("trustDomain", format!("the trust domain is {}", bundle.domain));
    new_root_trust::check(connection, &bundle, report).await?;
    for root in &bundle.roots {
        let info = CertificateInfo::of(root).map_err(Failure::failed)?;
        expiry(("root.expires", "a root", ROTATE_BEFORE), &info, "fairmesh identity rotate --root", report);
    }
    if !described.issuer.is_empty() {
        let info = CertificateInfo::of(&described.issuer).map_err(Failure::failed)?;
        let named = ("issuer.expires", "the key that signs certificates", RENEW_BEFORE);
        expiry(named, &info, "fairmesh identity rotate", report);
    }
    if described.root_key_present {
        report.add(
            "root.key",
            Level::Note,
            "the key of the root is on the machine of the control plane",
            "move ca/root.key of its data directory to a safe place; it is needed to rotate only",
        );
    }
    if described.open_tokens > 0 {
        report.add(
            "tokens",
            Level::Note,
            format!("{} join tokens wait for an agent", described.open_tokens),
            "they end by themselves; use each at once, and pass it over a protected way",
        );
    }
    Ok(Some(bundle))
}

fn expiry(
    (check, what, soon): (&'static str, &str, Duration),
    info: &CertificateInfo,
    remedy: &str,
    report: &mut Report,
) {
    #[allow(clippy::disallowed_methods, reason = "certificates end by the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_secs(info.expires_at).checked_sub(now);
    let days = left.map(|left| left.as_secs() / (24 * 3600));
    let (level, message) = match (left, days) {
        (Some(left), Some(days)) if left > soon => {
            return report.ok(check, format!("{what} is valid for {days} days"));
        }
        (_, Some(days)) => (Level::Warning, format!("{what} ends in {days} days")),
        (_, None) => (Level::Error, format!("{what} has expired")),
    };
    report.add(check, level, message, format!("run '{remedy}'"));
}

/// Checks for plaintext endpoints and callers.
async fn transport(connection: &Connection, view: &View, report: &mut Report) -> Result<(), Failure> {
    let plain = |one: &ServiceView| one.endpoints.iter().filter(|endpoint| !endpoint.value.mtls).count();
    let plain: BTreeSet<String> = view
        .services
        .iter()
        .filter(|(_, one)| plain(one) > 0)
        .map(|(name, one)| format!("{name} ({} of {})", plain(one), one.endpoints.len()))
        .collect();
    match plain.is_empty() {
        true => report.ok("mtls.endpoints", "all endpoints speak mutual TLS"),
        false => report.add(
            "mtls.endpoints",
            Level::Warning,
            format!("endpoints speak plaintext, which callers use only with 'mtls: permissive': {}", listed(&plain)),
            "start their servers again, 'fairmesh register' without --plaintext; endpoints of YAML files stay plaintext",
        ),
    }
    let is_permissive = |one: &ServiceView| one.effective_policy().mtls == MtlsMode::Permissive;
    for name in view.services.iter().filter(|(_, one)| is_permissive(one)).map(|(name, _)| name) {
        permissive(connection, name, report).await?;
    }
    Ok(())
}

/// Reports a service that accepts plaintext in addition to mutual TLS.
async fn permissive(connection: &Connection, name: &ServiceName, report: &mut Report) -> Result<(), Failure> {
    let request = v1::ReadPlaintextCallersRequest { service: name.to_string() };
    let servers = connection.registry().read_plaintext_callers(request).await?.into_inner().servers;
    let callers: BTreeSet<String> =
        servers.into_iter().flat_map(|server| server.callers).map(|caller| caller.address).collect();
    let (message, remedy) = match callers.is_empty() {
        true => (
            format!("{name} accepts plaintext, which no caller has used for five minutes"),
            format!("write 'mtls: strict' into the policy of {name}"),
        ),
        false => (
            format!("{name} accepts plaintext, from {}", listed(&callers)),
            format!(
                "give these callers an identity ('fairmesh identity plaintext {name}'), then write 'mtls: strict'"
            ),
        ),
    };
    report.add("mtls.permissive", Level::Warning, message, remedy);
    Ok(())
}

/// Checks who may call services.
fn authorization(view: &View, report: &mut Report) {
    let open = |one: &ServiceView| one.service.is_some() && one.effective_policy().authorization.is_none();
    let open: BTreeSet<String> =
        view.services.iter().filter(|(_, one)| open(one)).map(|(name, _)| name.to_string()).collect();
    match view.authorization.unwrap_or_default() {
        DefaultAuthorization::Deny => {
            report.ok("authorization", "calls that no rule allows are refused");
        }
        _ if open.is_empty() => report.ok("authorization", "all services have rules"),
        default => report.add(
            "authorization",
            Level::Warning,
            format!("everyone in the mesh may call services without rules: {}", listed(&open)),
            match default {
                DefaultAuthorization::Audit => {
                    "once nothing is audited any more, apply 'kind: Authorization' with 'default: deny'"
                }
                _ => "write rules, and apply 'kind: Authorization' with 'default: audit', then 'deny'",
            },
        ),
    }
    let audits = |one: &ServiceView| {
        one.effective_policy().authorization.is_some_and(|rules| rules.mode == AuthorizationMode::Audit)
    };
    let audited: BTreeSet<String> =
        view.services.iter().filter(|(_, one)| audits(one)).map(|(name, _)| name.to_string()).collect();
    if !audited.is_empty() {
        report.add(
            "authorization.audit",
            Level::Warning,
            format!("calls that the rules do not allow are made nevertheless: {}", listed(&audited)),
            "remove 'mode: audit' from these policies",
        );
    }
}

/// Reports a role that is bound to too many callers.
fn role(name: &str, binding: &RoleBinding, report: &mut Report) {
    let writes = binding.role != AccessRole::Viewer;
    for subject in &binding.subjects {
        let who = match subject {
            Subject::Anonymous => "everyone who reaches a port of the control plane",
            Subject::Caller(callers) if callers.as_str() == "*" => "everyone with an identity of the mesh",
            _ => continue,
        };
        let level = if writes { Level::Error } else { Level::Warning };
        let message = format!("the binding {name} gives {who} the role {}", binding.role.as_str());
        report.add(
            "roles",
            level,
            message,
            format!("name its subjects: 'fairmesh get roles {name} -o yaml'"),
        );
    }
}
