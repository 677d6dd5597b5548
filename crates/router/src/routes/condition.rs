use fairmesh_model::{GrpcMatch, HostMatch, Match, PathMatch};

use super::texts::{decoded, parameter, text_satisfies};
use crate::{Headers, RequestView};

/// A request with its host and path cut to what conditions compare.
#[derive(Debug)]
pub(super) struct View<'a, H: Headers + ?Sized> {
    /// Without port, in any case.
    pub(super) host: &'a str,
    /// Without query.
    pub(super) path: &'a str,
    /// Without `?`.
    query: &'a str,
    pub(super) method: &'a str,
    headers: &'a H,
    grpc: bool,
}

impl<'a, H: Headers + ?Sized> View<'a, H> {
    #[inline]
    pub(super) fn new(request: &RequestView<'a, H>) -> Self {
        let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
        Self {
            host: without_port(request.host),
            path,
            query,
            method: request.method,
            headers: request.headers,
            grpc: request.grpc,
        }
    }

    /// Whether all conditions hold.
    #[inline]
    pub(super) fn satisfies(&self, wanted: &Match) -> bool {
        wanted.path.as_ref().is_none_or(|path| path_satisfies(self.path, path))
            && (wanted.methods.is_empty() || wanted.methods.iter().any(|method| method == self.method))
            && (wanted.hosts.is_empty() || wanted.hosts.iter().any(|host| host_satisfies(self.host, host)))
            && wanted.grpc.as_ref().is_none_or(|grpc| self.grpc && grpc_satisfies(self.path, grpc))
            && wanted.headers.iter().all(|header| {
                let value = self.headers.get(&header.name).map(|value| value.iter().copied());
                text_satisfies(value, &header.value)
            })
            && wanted
                .query
                .iter()
                .all(|query| text_satisfies(parameter(self.query, &query.name).map(decoded), &query.value))
    }
}

/// `example.org:80` → `example.org`, `[::1]:80` → `[::1]`.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !within_brackets(name) => name,
        _ => host,
    }
}

/// Whether the end of `text` lies inside the brackets of an IPv6 address, so that a colon after it is part of that.
fn within_brackets(text: &str) -> bool {
    text.starts_with('[') && !text.ends_with(']')
}

pub(super) fn host_satisfies(host: &str, wanted: &HostMatch) -> bool {
    match wanted {
        HostMatch::Exact(name) => host.eq_ignore_ascii_case(name),
        HostMatch::Suffix(domain) => host
            .len()
            .checked_sub(domain.len())
            .is_some_and(|cut| cut > 0 && host.as_bytes()[cut..].eq_ignore_ascii_case(domain.as_bytes())),
    }
}

#[inline]
pub(super) fn path_satisfies(path: &str, wanted: &PathMatch) -> bool {
    match wanted {
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Prefix(prefix) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        PathMatch::Template(template) => template.matches(path),
        PathMatch::Regex(pattern) => pattern.matches(path),
    }
}

/// A gRPC path is `/service/method`, and neither part holds a `/`.
fn grpc_satisfies(path: &str, wanted: &GrpcMatch) -> bool {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).is_some_and(|(service, method)| {
        service == wanted.service && wanted.method.as_ref().is_none_or(|name| name == method)
    })
}
