//! Actions of a route. Ranges are checked when the whole policy is validated.

use std::time::Duration;

use fairmesh_model::{
    Abort, Actions, Delay, HeaderEdits, Invalid, KeySource, Mirror, PathRewrite, RateLimit, Redirect,
    Rewrite, Role, Scope, ServiceName, Share,
};

use super::micros;
use crate::v1::{self, key_source::Source, path_rewrite::To};

/// Returns `None` if there are no actions.
pub(super) fn write(actions: Actions) -> Option<v1::Actions> {
    if actions == Actions::default() {
        return None;
    }
    let time = |time: Option<Duration>| time.map_or(0, micros);
    let abort =
        |abort: Abort| v1::Abort { share_millionths: abort.share.millionths(), status: abort.status.into() };
    let delay =
        |delay: Delay| v1::Delay { share_millionths: delay.share.millionths(), time_us: micros(delay.time) };
    let mirror = |mirror: Mirror| v1::Mirror {
        service: mirror.service.into(),
        share_millionths: mirror.share.millionths(),
    };
    Some(v1::Actions {
        limit: actions.limit.map(write_limit),
        redirect: actions.redirect.map(write_redirect),
        abort: actions.abort.map(abort),
        delay: actions.delay.map(delay),
        host: actions.rewrite.host.unwrap_or_default(),
        path: actions.rewrite.path.map(write_path),
        request_headers: write_edits(actions.request_headers),
        response_headers: write_edits(actions.response_headers),
        attempt_timeout_us: time(actions.attempt_timeout),
        server_timeout_us: time(actions.server_timeout),
        hedge_after_us: time(actions.hedge_after),
        mirror: actions.mirror.map(mirror),
        split_key: actions.split_key.into_iter().map(Into::into).collect(),
        role: actions.role.map(String::from).unwrap_or_default(),
        retry_on: actions.retry_on.into_iter().map(u32::from).collect(),
        redistributes_empty: actions.redistributes_empty,
    })
}

pub(super) fn read(message: v1::Actions) -> Result<Actions, Invalid> {
    let time = |us: u64| (us > 0).then(|| Duration::from_micros(us));
    let path = |path: Option<v1::PathRewrite>| path.map(read_path).transpose();
    let abort = |abort: v1::Abort| {
        Ok::<_, Invalid>(Abort { share: share(abort.share_millionths)?, status: to_u16(abort.status) })
    };
    let delay = |delay: v1::Delay| {
        let time = Duration::from_micros(delay.time_us);
        Ok::<_, Invalid>(Delay { share: share(delay.share_millionths)?, time })
    };
    let mirror = |mirror: v1::Mirror| {
        let service = ServiceName::new(mirror.service).map_err(|e| e.within("service"))?;
        Ok::<_, Invalid>(Mirror { service, share: share(mirror.share_millionths)? })
    };
    let at = |field: &'static str| move |e: Invalid| e.within(field);
    Ok(Actions {
        limit: message.limit.map(read_limit),
        redirect: message.redirect.map(read_redirect).transpose().map_err(at("redirect"))?,
        abort: message.abort.map(abort).transpose().map_err(at("abort"))?,
        delay: message.delay.map(delay).transpose().map_err(at("delay"))?,
        rewrite: Rewrite { host: text(message.host), path: path(message.path).map_err(at("path"))? },
        request_headers: message.request_headers.map(read_edits).unwrap_or_default(),
        response_headers: message.response_headers.map(read_edits).unwrap_or_default(),
        attempt_timeout: time(message.attempt_timeout_us),
        server_timeout: time(message.server_timeout_us),
        hedge_after: time(message.hedge_after_us),
        mirror: message.mirror.map(mirror).transpose().map_err(at("mirror"))?,
        split_key: read_sources(message.split_key).map_err(at("split_key"))?,
        role: read_role(message.role)?,
        retry_on: message.retry_on.into_iter().map(to_u16).collect(),
        redistributes_empty: message.redistributes_empty,
    })
}

/// Parses a role; an empty string means no role.
pub(super) fn read_role(role: String) -> Result<Option<Role>, Invalid> {
    let role = Some(role).filter(|role| !role.is_empty());
    role.map(|role| Role::try_from(role).map_err(|e| e.within("role"))).transpose()
}

/// Parses the sources of a key.
pub(super) fn read_sources(sources: Vec<v1::KeySource>) -> Result<Vec<KeySource>, Invalid> {
    sources.into_iter().map(TryInto::try_into).collect()
}

pub(super) fn write_limit(limit: RateLimit) -> v1::RateLimit {
    let scope = match limit.scope {
        Scope::Caller => v1::rate_limit::Scope::Unspecified,
        Scope::Mesh => v1::rate_limit::Scope::Mesh,
    };
    v1::RateLimit { calls: limit.calls, per_us: micros(limit.per), burst: limit.burst, scope: scope.into() }
}

pub(super) fn read_limit(message: v1::RateLimit) -> RateLimit {
    // An unknown scope of a newer release is applied per caller rather than not at all.
    let scope = match message.scope() {
        v1::rate_limit::Scope::Unspecified => Scope::Caller,
        v1::rate_limit::Scope::Mesh => Scope::Mesh,
    };
    RateLimit {
        calls: message.calls,
        per: Duration::from_micros(message.per_us),
        burst: message.burst,
        scope,
    }
}

fn write_redirect(redirect: Redirect) -> v1::Redirect {
    v1::Redirect {
        scheme: redirect.https.map(|https| if https { "https" } else { "http" }).unwrap_or_default().into(),
        host: redirect.host.unwrap_or_default(),
        port: redirect.port.unwrap_or_default().into(),
        path: redirect.path.map(write_path),
        status: redirect.status.into(),
    }
}

fn read_redirect(message: v1::Redirect) -> Result<Redirect, Invalid> {
    let https = match message.scheme.as_str() {
        "" => None,
        "https" => Some(true),
        "http" => Some(false),
        other => {
            return Err(Invalid::new("scheme", format!("'{other}' is not a scheme"), "write http or https"));
        }
    };
    Ok(Redirect {
        https,
        host: text(message.host),
        port: Some(to_u16(message.port)).filter(|port| *port > 0),
        path: message.path.map(read_path).transpose().map_err(|e| e.within("path"))?,
        status: to_u16(message.status),
    })
}

fn write_path(path: PathRewrite) -> v1::PathRewrite {
    let to = match path {
        PathRewrite::Full(path) => To::Full(path),
        PathRewrite::Prefix(path) => To::Prefix(path),
    };
    v1::PathRewrite { to: Some(to) }
}

fn read_path(message: v1::PathRewrite) -> Result<PathRewrite, Invalid> {
    match message.to {
        Some(To::Full(path)) => Ok(PathRewrite::Full(path)),
        Some(To::Prefix(path)) => Ok(PathRewrite::Prefix(path)),
        None => Err(Invalid::new("", "is empty", "set full or prefix")),
    }
}

fn write_edits(edits: HeaderEdits) -> Option<v1::HeaderEdits> {
    (!edits.is_empty()).then_some(v1::HeaderEdits { set: edits.set, add: edits.add, remove: edits.remove })
}

fn read_edits(message: v1::HeaderEdits) -> HeaderEdits {
    HeaderEdits { set: message.set, add: message.add, remove: message.remove }
}

/// Converts a status or port. Numbers out of range become 0, which validation rejects.
fn to_u16(number: u32) -> u16 {
    u16::try_from(number).unwrap_or_default()
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn share(millionths: u32) -> Result<Share, Invalid> {
    Share::of_millionths(millionths).map_err(|e| e.within("share_millionths"))
}

impl From<KeySource> for v1::KeySource {
    fn from(source: KeySource) -> Self {
        let source = match source {
            KeySource::Header(name) => Source::Header(name),
            KeySource::Cookie(name) => Source::Cookie(name),
            KeySource::Query(name) => Source::Query(name),
        };
        Self { source: Some(source) }
    }
}

impl TryFrom<v1::KeySource> for KeySource {
    type Error = Invalid;

    fn try_from(message: v1::KeySource) -> Result<Self, Invalid> {
        match message.source {
            Some(Source::Header(name)) => Ok(Self::Header(name)),
            Some(Source::Cookie(name)) => Ok(Self::Cookie(name)),
            Some(Source::Query(name)) => Ok(Self::Query(name)),
            None => Err(Invalid::new("key", "is empty", "set header, cookie or query")),
        }
    }
}
